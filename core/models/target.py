"""The target model as proposers see it at load."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..api import DraftModel
from .hidden_states import text_config
from .load import LoadedModel

AddDraftModel = Callable[[str, torch.nn.Module, Mapping[str, Any]], DraftModel]
"""Called with the arguments of `TargetModel.add_draft_model`."""


class Target:
    """A loaded model, as `api.TargetModel` describes it.

    Attributes:
        num_layers: decoder layers.
    """

    def __init__(self, loaded: LoadedModel, add_draft_model: AddDraftModel) -> None:
        language_model = text_config(loaded.model)
        self.model: torch.nn.Module = loaded.model
        self.config: Any = loaded.config
        self.embedding: torch.nn.Module = loaded.model.get_input_embeddings()  # type: ignore[operator]
        self.lm_head: torch.nn.Module = loaded.model.get_output_embeddings()  # type: ignore[operator]
        self.tokenizer: Any = loaded.tokenizer
        self.device: torch.device = loaded.device
        self.dtype: torch.dtype = loaded.dtype
        self.vocab_size: int = loaded.vocab_size
        self.hidden_size: int = int(language_model.hidden_size)
        self.num_layers: int = int(language_model.num_hidden_layers)
        self.max_model_len: int = loaded.max_model_len
        self._add_draft_model = add_draft_model

    def add_draft_model(
        self, name: str, module: torch.nn.Module, *, dummy_inputs: Mapping[str, Any] = {}
    ) -> DraftModel:
        """See `api.TargetModel.add_draft_model`."""
        return self._add_draft_model(name, module, dummy_inputs)

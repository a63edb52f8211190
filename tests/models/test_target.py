from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from outrider.api import TargetModel
from outrider.config import ModelConfig
from outrider.models.load import load_model
from outrider.models.target import Target
from outrider.testing.tiny_models import tiny_transformer


def test_a_target_shows_the_model_and_passes_draft_models_on(tmp_path: Path) -> None:
    loaded = load_model(ModelConfig(model=str(tiny_transformer(tmp_path, num_layers=3)), max_model_len=99))
    added: list[tuple[str, torch.nn.Module, Mapping[str, Any]]] = []
    handle: Any = object()

    def add(name: str, module: torch.nn.Module, inputs: Mapping[str, Any]) -> Any:
        added.append((name, module, inputs))
        return handle

    target: TargetModel = Target(loaded, add)
    assert (target.vocab_size, target.hidden_size, target.num_layers, target.max_model_len) == (64, 32, 3, 99)
    assert (target.dtype, target.device) == (torch.float32, torch.device("cpu"))
    assert target.model is loaded.model
    assert target.embedding(torch.tensor([1])).shape == (1, 32)
    assert target.lm_head(torch.zeros(1, 32)).shape == (1, 64)
    module = torch.nn.Identity()
    assert target.add_draft_model("head", module, dummy_inputs={"x": 1}) is handle
    assert added == [("head", module, {"x": 1})]

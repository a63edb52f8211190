"""A drafter's own network, run on rows of its choice in the engine's block tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ..api import DraftRows, PluginError, ProposeContext, StateCacheSpec
from ..models.routing import RoutedLayer, RoutedModel
from ..plugins import BackendHooks
from .metadata import FlatRows, build_common_metadata


class RoutedDraftModel:
    """`api.DraftModel`: registered in `load_model`, usable after `route`."""

    def __init__(self, name: str, module: torch.nn.Module, dummy_inputs: Mapping[str, Any]) -> None:
        self.name = name
        self.module = module
        self.dummy_inputs = dummy_inputs
        self.routed: RoutedModel | None = None
        self._backends: Sequence[BackendHooks] = ()
        self._device = torch.device("cpu")

    def route(self, routed: RoutedModel, backends: Sequence[BackendHooks], device: torch.device) -> None:
        """Attach the routed module and the backends that claimed its layers.

        Raises:
            PluginError: a layer keeps a state of fixed size, which a drafter cannot roll back.
        """
        for layer in routed.layers:
            if isinstance(layer.impl.cache_spec, StateCacheSpec):
                raise PluginError(
                    f"draft model {self.name!r}: layer {layer.name!r} keeps a recurrent state, and only a target's"
                    " state is rolled back; draft with attention layers"
                )
        self.routed = routed
        self._backends = [backend for backend in backends if backend.name in routed.backends]
        self._device = device

    @property
    def layers(self) -> Sequence[RoutedLayer]:
        """Its attention layers, once routed."""
        return () if self.routed is None else self.routed.layers

    def forward(self, context: ProposeContext, rows: DraftRows, *, draft_index: int, **inputs: Any) -> Any:
        """See `api.DraftModel.forward`.

        Raises:
            ValueError: a row lies beyond the blocks reserved for its request.
        """
        if self.routed is None or context.attention is None:
            raise RuntimeError(
                f"draft model {self.name!r} cannot run yet: it works inside `propose`, for a proposer whose"
                " capabilities declare own_kv=True"
            )
        attention = context.attention
        requests = np.asarray(rows.request_indices, np.int64)
        lengths = np.fromiter((len(tokens) for tokens in rows.token_ids), np.int64, len(requests))
        flat = FlatRows.build(requests, np.asarray(rows.start_positions, np.int64), lengths)
        common = build_common_metadata(
            flat,
            attention.block_table.cpu().numpy()[requests],
            attention.block_size,
            attention.state_slots.cpu().numpy()[requests],
            attention.num_accepted_tokens.cpu().numpy()[requests],
            self._device,
        )
        metadata = {
            backend.name: backend.build_for_drafting(common, draft_index) for backend in self._backends
        }
        input_ids = np.concatenate([np.asarray(tokens, np.int64) for tokens in rows.token_ids])
        return self.routed.forward(
            metadata,
            input_ids=torch.as_tensor(input_ids, device=self._device)[None],
            position_ids=common.positions[None],
            **inputs,
        )

    def logits_rows(self, rows: DraftRows) -> torch.Tensor:
        """See `api.DraftModel.logits_rows`."""
        lengths = np.fromiter((len(tokens) for tokens in rows.token_ids), np.int64, len(rows.token_ids))
        return torch.as_tensor(np.cumsum(lengths) - 1, device=self._device)

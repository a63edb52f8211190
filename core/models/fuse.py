"""Replaces the decoder layers that we know by fast twins, each checked against the layer it replaces."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..api import NUM_DISCOVERY_TOKENS, AttentionShape
from .attention_interface import bound
from .attention_shape import plain_attention
from .fast_decoder_layer import FastDecoderLayer, LlamaShape, Workspace

logger = logging.getLogger(__name__)

_TOLERANCE = 1e-4
"""Of the largest output, in float32: both sides add the same products in another order."""


@dataclass(frozen=True, slots=True)
class _Plain:
    """Attention of a layer for the check."""

    shape: AttentionShape
    positions: torch.Tensor

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, keywords: dict[str, Any]
    ) -> torch.Tensor:
        return plain_attention(query, key, value, self.positions, self.shape)


def fuse_decoder_layers(
    module: nn.Module, attention: Mapping[nn.Module, AttentionShape], dummy_inputs: Mapping[str, Any]
) -> int:
    """Replace each decoder layer of the Llama shape in `module`, whose layers are packed, by its fast twin.

    A twin stays only if it computes what its layer computes, on a few random rows.

    Args:
        attention: the modules that call the attention interface, and the shape of what they ask for.
        dummy_inputs: as in `RoutedModel.route`.

    Returns:
        The number of layers replaced.
    """
    layers = [
        (path, layer)
        for path, layer in module.named_modules()
        if getattr(layer, "self_attn", None) in attention and layer.__class__ is not FastDecoderLayer
    ]
    workspace = Workspace()
    candidates = [
        (path, layer, shape) for path, layer in layers if (shape := LlamaShape.of(layer, workspace))
    ]
    if not candidates:
        return 0
    positions = torch.arange(NUM_DISCOVERY_TOKENS)
    bindings = [(layer, _Plain(shape, positions)) for layer, shape in attention.items()]
    with torch.no_grad(), bound(bindings):
        calls = _record_calls(module, [layer for _, layer, _ in candidates], dummy_inputs, positions)
        return sum(
            _replace(path, layer, shape, *calls[layer]) for path, layer, shape in candidates if layer in calls
        )


def _record_calls(
    module: nn.Module, layers: list[nn.Module], dummy_inputs: Mapping[str, Any], positions: torch.Tensor
) -> dict[nn.Module, tuple[Any, Any]]:
    """Run the module once; return with which arguments each layer was called."""
    calls: dict[nn.Module, tuple[Any, Any]] = {}

    def record(layer: nn.Module, args: Any, kwargs: Any) -> None:
        calls[layer] = args, kwargs

    handles = [layer.register_forward_pre_hook(record, with_kwargs=True) for layer in layers]
    try:
        module(**{**dummy_inputs, "input_ids": positions[None], "position_ids": positions[None]})
    finally:
        for handle in handles:
            handle.remove()
    return calls


def _replace(path: str, layer: Any, shape: LlamaShape, args: Any, kwargs: dict[str, Any]) -> bool:
    hidden = args[0] if args else kwargs["hidden_states"]
    rows = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(0))
    rest = {name: value for name, value in kwargs.items() if name != "hidden_states"}
    expected = layer.forward(rows, *args[1:], **rest)
    kind, layer._shape = layer.__class__, shape
    layer.__class__ = FastDecoderLayer
    result = layer.forward(rows, *args[1:], **rest)
    if isinstance(expected, torch.Tensor) and _close(expected, result):
        return True
    layer.__class__ = kind
    del layer._shape
    logger.info("%s (%s) is not of the Llama shape after all; it runs as it is", path, kind.__name__)
    return False


def _close(expected: torch.Tensor, result: torch.Tensor) -> bool:
    scale = float(expected.abs().max())
    return expected.shape == result.shape and bool(
        torch.allclose(expected, result, rtol=_TOLERANCE, atol=_TOLERANCE * scale)
    )

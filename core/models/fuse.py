"""Replaces the layers and models that we know by fast twins, each checked against what it replaces."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from ..api import NUM_DISCOVERY_TOKENS, AttentionShape
from ..kernels.cpu.decoder_workspace import DecoderWorkspace
from .attention_interface import Bindings
from .attention_shape import plain_attention
from .fast_decoder_layer import FastDecoderLayer, LlamaShape
from .fast_model import FastCausalLM, FastDecoder

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


def fuse_layers(
    module: nn.Module, attention: Mapping[nn.Module, AttentionShape], dummy_inputs: Mapping[str, Any]
) -> int:
    """Replace decoder layers of the Llama shape, and a model that is nothing but such layers, by their fast twins.

    A twin stays only if it computes what it replaces: a layer on a few random rows, a model on a few tokens.

    Args:
        module: its linear layers and norms are packed.
        attention: the modules that call the attention interface, and the shape of what they ask for.
        dummy_inputs: as in `RoutedModel.route`.

    Returns:
        The number of decoder layers replaced.
    """
    shapes = {
        layer: shape
        for layer in module.modules()
        if getattr(layer, "self_attn", None) in attention
        and not isinstance(layer, FastDecoderLayer)
        and (shape := LlamaShape.of(layer)) is not None
    }
    if not shapes:
        return 0
    spaces = {
        sizes: DecoderWorkspace(sizes, count)
        for sizes, count in Counter(s.sizes for s in shapes.values()).items()
    }
    positions = torch.arange(NUM_DISCOVERY_TOKENS)
    inputs = {**dummy_inputs, "input_ids": positions[None], "position_ids": positions[None]}
    bindings = [(layer, _Plain(shape, positions)) for layer, shape in attention.items()]
    with torch.no_grad(), Bindings(bindings):
        calls = _record_calls(module, list(shapes), inputs)
        fused = [
            layer
            for layer, (rows, rest) in calls.items()
            if _fuse_layer(layer, shapes[layer], spaces[shapes[layer].sizes], rows, rest)
        ]
        for parent in [*module.modules()][::-1]:  # a decoder before the model that holds it
            for twin in (FastDecoder, FastCausalLM):
                if twin.fits(parent):
                    _replace(parent, twin, inputs)
    return len(fused)


def _record_calls(
    module: nn.Module, layers: list[nn.Module], inputs: Mapping[str, Any]
) -> dict[nn.Module, tuple[torch.Size, dict[str, Any]]]:
    """Run the module once; return the shape of the rows that each layer got, and the other arguments."""
    calls: dict[nn.Module, tuple[torch.Size, dict[str, Any]]] = {}

    def record(layer: nn.Module, args: Any, kwargs: Any) -> None:
        named = {**kwargs, **({"hidden_states": args[0]} if args else {})}
        if len(args) < 2:
            calls[layer] = named.pop("hidden_states").shape, named

    handles = [layer.register_forward_pre_hook(record, with_kwargs=True) for layer in layers]
    try:
        module(**inputs)
    finally:
        for handle in handles:
            handle.remove()
    return calls


def _fuse_layer(
    layer: Any, shape: LlamaShape, space: DecoderWorkspace, size: torch.Size, rest: dict[str, Any]
) -> bool:
    layer.shape, layer.workspace = shape, space
    rows = torch.randn(size, generator=torch.Generator().manual_seed(0))
    replaced = _replace(layer, FastDecoderLayer, {"hidden_states": rows, **rest})
    if not replaced:
        del layer.shape, layer.workspace
    return replaced


def _replace(module: nn.Module, twin: type[nn.Module], inputs: dict[str, Any]) -> bool:
    """Give `module` a class that is its own but for `forward`, if that computes the same."""
    kind: Any = type(module)
    expected = module(**inputs)
    module.__class__ = type(kind.__name__, (twin, kind), {"__module__": kind.__module__})
    if _close(expected, module(**inputs)):
        return True
    module.__class__ = kind
    logger.info("%s does not compute what its fast twin does; it runs as it is", kind.__name__)
    return False


def _close(expected: Any, result: Any) -> bool:
    pairs = list(zip_longest(tree_leaves(expected), tree_leaves(result)))
    return type(expected) is type(result) and all(
        isinstance(a, torch.Tensor)
        and isinstance(b, torch.Tensor)
        and a.shape == b.shape
        and torch.allclose(a, b, rtol=_TOLERANCE, atol=_TOLERANCE * float(a.abs().max()))
        for a, b in pairs
    )

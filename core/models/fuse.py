"""Replaces the layers and models that we know by fast twins, each checked against what it replaces."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
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
from .hidden_states import text_config

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

    A twin stays only if it computes what it replaces, at the first positions and at the last: a layer on a few random
    rows, a model on a few tokens. In these trials attention is not native, so layers run one by one.

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
    trials = [_Trial.at(positions, attention, dummy_inputs) for positions in _trial_positions(module)]
    with torch.no_grad():
        calls = [_record_calls(module, list(shapes), trial) for trial in trials]
        fused = [
            layer
            for layer in calls[0]
            if _fuse_layer(layer, shapes[layer], spaces[shapes[layer].sizes], [call[layer] for call in calls])
        ]
        for parent in [*module.modules()][::-1]:  # a decoder before the model that holds it
            for twin in (FastDecoder, FastCausalLM):
                if twin.fits(parent):
                    _replace(parent, twin, trials)
    return len(fused)


@dataclass(frozen=True, slots=True)
class _Trial:
    """What a module is called with, and what its attention is bound to meanwhile."""

    bindings: Bindings
    inputs: dict[str, Any]

    @classmethod
    def at(
        cls, positions: torch.Tensor, attention: Mapping[nn.Module, AttentionShape], inputs: Mapping[str, Any]
    ) -> _Trial:
        """A few tokens at these positions."""
        bindings = Bindings((layer, _Plain(shape, positions)) for layer, shape in attention.items())
        token_ids = torch.arange(len(positions))
        return cls(bindings, {**inputs, "input_ids": token_ids[None], "position_ids": positions[None]})


def _trial_positions(module: nn.Module) -> Iterator[torch.Tensor]:
    """The first, and the last that the model was made for: some architectures do something from a position on."""
    near = torch.arange(NUM_DISCOVERY_TOKENS)
    yield near
    most = getattr(text_config(module), "max_position_embeddings", None)
    if isinstance(most, int) and most > 2 * len(near):
        yield near + most - len(near)


def _record_calls(module: nn.Module, layers: list[nn.Module], trial: _Trial) -> dict[nn.Module, _Trial]:
    """Run the module once; return what each layer got, with random rows instead of its own."""
    calls: dict[nn.Module, _Trial] = {}

    def record(layer: nn.Module, args: Any, kwargs: Any) -> None:
        named = {**kwargs, **({"hidden_states": args[0]} if args else {})}
        if len(args) < 2:
            size = named["hidden_states"].shape
            rows = torch.randn(size, generator=torch.Generator().manual_seed(0))
            calls[layer] = _Trial(trial.bindings, {**named, "hidden_states": rows})

    handles = [layer.register_forward_pre_hook(record, with_kwargs=True) for layer in layers]
    try:
        with trial.bindings:
            module(**trial.inputs)
    finally:
        for handle in handles:
            handle.remove()
    return calls


def _fuse_layer(layer: Any, shape: LlamaShape, space: DecoderWorkspace, trials: list[_Trial]) -> bool:
    layer.shape, layer.workspace = shape, space
    replaced = _replace(layer, FastDecoderLayer, trials)
    if not replaced:
        del layer.shape, layer.workspace
    return replaced


def _replace(module: nn.Module, twin: type[nn.Module], trials: list[_Trial]) -> bool:
    """Give `module` a class that is its own but for `forward`, if that computes the same in all trials."""
    kind: Any = type(module)
    expected = [_run(module, trial) for trial in trials]
    module.__class__ = type(kind.__name__, (twin, kind), {"__module__": kind.__module__})
    if all(_close(one, _run(module, trial)) for one, trial in zip(expected, trials, strict=True)):
        return True
    module.__class__ = kind
    logger.info("%s does not compute what its fast twin does; it runs as it is", kind.__name__)
    return False


def _run(module: nn.Module, trial: _Trial) -> Any:
    with trial.bindings:
        return module(**trial.inputs)


def _close(expected: Any, result: Any) -> bool:
    pairs = list(zip_longest(tree_leaves(expected), tree_leaves(result)))
    return type(expected) is type(result) and all(
        isinstance(a, torch.Tensor)
        and isinstance(b, torch.Tensor)
        and a.shape == b.shape
        and torch.allclose(a, b, rtol=_TOLERANCE, atol=_TOLERANCE * float(a.abs().max()))
        for a, b in pairs
    )

"""How much cache the claimed layers need, and the tensors themselves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from ..api import ConfigError, PagedCacheSpec, PluginError, StateCacheSpec, TensorSpec
from .routing import RoutedLayer

_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePlan:
    """Sizes of the caches of all layers of an engine.

    Attributes:
        bytes_per_block: of one block of `block_size` tokens, all paged layers together.
        num_state_slots: slots per layer with a `StateCacheSpec`; 0 if there is no such layer.
        state_bytes: of all state slots of all layers.
        prefix_caching: whether a prefix can be reused. Not with a recurrent state: it is kept for the newest tokens
            only.
    """

    block_size: int
    num_blocks: int
    bytes_per_block: int
    num_state_slots: int
    state_bytes: int
    prefix_caching: bool


def plan_caches(
    layers: Sequence[RoutedLayer],
    *,
    block_size: int,
    num_kv_blocks: int | None,
    kv_cache_memory_gib: float,
    max_num_seqs: int,
    max_model_len: int,
    num_speculative_tokens: int,
) -> CachePlan:
    """Decide how many blocks and state slots there will be.

    Args:
        layers: of the target and of every draft model.
        num_kv_blocks: as configured; None: as many as fit into `kv_cache_memory_gib` beside the states, and without a
            paged layer as many as `max_num_seqs` requests of `max_model_len` tokens can fill.
        num_speculative_tokens: 0 without speculation.

    Raises:
        PluginError: drafts are to be verified, but a layer's state cannot be rewound.
        ConfigError: not even one block fits.
    """
    paged = [spec for spec in _specs(layers) if isinstance(spec, PagedCacheSpec)]
    states = [spec for spec in _specs(layers) if isinstance(spec, StateCacheSpec)]
    if num_speculative_tokens > 0:
        _check_rewindable(layers)
    bytes_per_block = block_size * sum(_bytes_per_entry(spec.tensors) for spec in paged)
    num_state_slots = max_num_seqs * (num_speculative_tokens + 1) if states else 0
    state_bytes = num_state_slots * sum(_bytes_per_entry(spec.tensors) for spec in states)
    if num_kv_blocks is None and bytes_per_block == 0:
        num_kv_blocks = max_num_seqs * math.ceil(max_model_len / block_size)
    elif num_kv_blocks is None:
        budget = int(kv_cache_memory_gib * _GIB)
        num_kv_blocks = (budget - state_bytes) // bytes_per_block
        if num_kv_blocks < 1:
            raise ConfigError(
                f"kv_cache_memory_gib={kv_cache_memory_gib:g} ({budget} bytes) does not hold one block: {block_size}"
                f" tokens take {bytes_per_block} bytes, and {num_state_slots} state slots {state_bytes} bytes; raise"
                " kv_cache_memory_gib, or lower block_size or max_num_seqs"
            )
    return CachePlan(
        block_size=block_size,
        num_blocks=num_kv_blocks,
        bytes_per_block=bytes_per_block,
        num_state_slots=num_state_slots,
        state_bytes=state_bytes,
        prefix_caching=not states,
    )


def allocate_caches(
    layers: Sequence[RoutedLayer], plan: CachePlan, device: torch.device
) -> dict[str, dict[str, torch.Tensor]]:
    """Allocate every layer's cache and hand it over with `bind_cache`.

    Returns:
        By layer name and tensor name: `[num_blocks, block_size, *shape]` for a paged layer, `[num_state_slots, *shape]`
        for a state.

    Raises:
        ConfigError: there is not enough memory.
    """
    caches: dict[str, dict[str, torch.Tensor]] = {}
    for layer in layers:
        spec = layer.impl.cache_spec
        leading = (
            (plan.num_blocks, plan.block_size)
            if isinstance(spec, PagedCacheSpec)
            else (plan.num_state_slots,)
        )
        try:
            cache = {
                # Not zeroed: pages that no token ever reaches cost neither time nor memory.
                name: torch.empty((*leading, *tensor.shape), dtype=tensor.dtype, device=device)
                for name, tensor in spec.tensors.items()
            }
        except (RuntimeError, MemoryError) as error:  # torch raises a plain RuntimeError on CPU
            raise ConfigError(
                f"cannot allocate {plan.num_blocks} blocks of {plan.bytes_per_block} bytes and {plan.state_bytes} bytes"
                f" of states on {device}: {error}; lower num_kv_blocks or kv_cache_memory_gib"
            ) from error
        layer.impl.bind_cache(cache)
        caches[layer.name] = cache
    return caches


def _specs(layers: Sequence[RoutedLayer]) -> list[PagedCacheSpec | StateCacheSpec]:
    return [layer.impl.cache_spec for layer in layers]


def _check_rewindable(layers: Sequence[RoutedLayer]) -> None:
    for layer in layers:
        spec = layer.impl.cache_spec
        if isinstance(spec, StateCacheSpec) and not spec.rewindable:
            raise PluginError(
                f"attention backend {layer.backend!r} keeps a state for layer {layer.name!r} that cannot be rewound, so"
                " a rejected draft would stay in it; choose another backend, or turn speculation off"
            )


def _bytes_per_entry(tensors: Mapping[str, TensorSpec]) -> int:
    return sum(math.prod(spec.shape) * spec.dtype.itemsize for spec in tensors.values())

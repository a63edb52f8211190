from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from outrider.api import ConfigError, PagedCacheSpec, PluginError, StateCacheSpec, TensorSpec
from outrider.models.cache import allocate_caches, plan_caches
from outrider.models.routing import RoutedLayer

KV = PagedCacheSpec(
    tensors={"key": TensorSpec((2, 16), torch.float32), "value": TensorSpec((2, 8), torch.bfloat16)}
)
KV_BYTES = 2 * 16 * 4 + 2 * 8 * 2
STATE = StateCacheSpec(tensors={"state": TensorSpec((3,), torch.int64)}, rewindable=True)
SETTINGS: dict[str, Any] = {
    "block_size": 4,
    "num_kv_blocks": None,
    "kv_cache_memory_gib": 1.0,
    "max_num_seqs": 8,
    "max_model_len": 30,
    "num_speculative_tokens": 0,
}


class Layer:
    def __init__(self, spec: PagedCacheSpec | StateCacheSpec) -> None:
        self.cache_spec = spec
        self.cache: Mapping[str, torch.Tensor] = {}

    def bind_cache(self, cache: Mapping[str, torch.Tensor]) -> None:
        self.cache = cache

    def forward(self, metadata: Any, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


def layers(*specs: PagedCacheSpec | StateCacheSpec) -> list[RoutedLayer]:
    return [RoutedLayer(f"layer.{i}", torch.nn.Identity(), "b", Layer(s), None) for i, s in enumerate(specs)]


def test_blocks_fill_the_memory_and_no_more() -> None:
    plan = plan_caches(layers(KV, KV), **{**SETTINGS, "kv_cache_memory_gib": (10.5 * 8 * KV_BYTES) / 2**30})
    assert plan.bytes_per_block == 4 * 2 * KV_BYTES
    assert plan.num_blocks == 10


def test_the_number_of_blocks_can_be_given() -> None:
    assert plan_caches(layers(KV), **{**SETTINGS, "num_kv_blocks": 7}).num_blocks == 7


def test_states_take_their_memory_first() -> None:
    slots = 8 * (3 + 1)
    gib = (slots * 24 + 5 * 4 * KV_BYTES) / 2**30
    plan = plan_caches(
        layers(KV, STATE), **{**SETTINGS, "kv_cache_memory_gib": gib, "num_speculative_tokens": 3}
    )
    assert (plan.num_state_slots, plan.state_bytes, plan.num_blocks) == (slots, slots * 24, 5)


def test_without_paged_layers_there_are_blocks_for_every_request() -> None:
    plan = plan_caches(layers(STATE), **SETTINGS)
    assert (plan.num_blocks, plan.bytes_per_block, plan.num_state_slots) == (8 * 8, 0, 8)


def test_a_prefix_can_be_reused_only_without_states() -> None:
    assert plan_caches(layers(KV), **SETTINGS).prefix_caching
    assert not plan_caches(layers(KV, STATE), **SETTINGS).prefix_caching


def test_a_budget_below_one_block_is_an_error_with_both_numbers() -> None:
    with pytest.raises(
        ConfigError, match=rf"\(107 bytes\) does not hold one block: 4 tokens take {4 * KV_BYTES} bytes"
    ):
        plan_caches(layers(KV), **{**SETTINGS, "kv_cache_memory_gib": 1e-7})


def test_a_state_that_cannot_be_rewound_refuses_speculation_and_only_that() -> None:
    forgetful = layers(KV, StateCacheSpec(tensors=STATE.tensors, rewindable=False))
    assert plan_caches(forgetful, **SETTINGS).num_state_slots == 8
    with pytest.raises(PluginError, match=r"backend 'b' .* layer 'layer.1' that cannot be rewound"):
        plan_caches(forgetful, **{**SETTINGS, "num_speculative_tokens": 1})


def test_caches_are_allocated_and_bound_by_layer() -> None:
    routed = layers(KV, STATE)
    plan = plan_caches(routed, **{**SETTINGS, "num_kv_blocks": 5, "num_speculative_tokens": 1})
    caches = allocate_caches(routed, plan, torch.device("cpu"))
    shapes = {
        layer: {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in cache.items()}
        for layer, cache in caches.items()
    }
    assert shapes == {
        "layer.0": {"key": ((5, 4, 2, 16), torch.float32), "value": ((5, 4, 2, 8), torch.bfloat16)},
        "layer.1": {"state": ((16, 3), torch.int64)},
    }
    assert routed[0].impl.cache is caches["layer.0"]  # type: ignore[attr-defined]


def test_too_many_blocks_for_the_machine_is_a_clear_error() -> None:
    routed = layers(KV)
    plan = plan_caches(routed, **{**SETTINGS, "num_kv_blocks": 2**50})
    with pytest.raises(ConfigError, match="lower num_kv_blocks"):
        allocate_caches(routed, plan, torch.device("cpu"))

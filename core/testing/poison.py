"""Fill everything in the caches that nobody may read with NaN: one read of a stale entry then shows in the output."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

GARBAGE = 0x5EED5EED
"""Stands for NaN in caches of integers."""


def poison(core: Any, caches: Mapping[str, Mapping[str, torch.Tensor]]) -> int:
    """Overwrite free KV blocks, the unwritten end of owned ones, and idle state slots. Call it between two steps.

    A free block that still holds a cached prefix is left alone, since a later request may be given it; so is the one
    state of a running request that its next step starts from. What lies behind a request's `num_computed_tokens` is
    overwritten: rejected drafts are there, and every forward writes its rows before it reads them.

    Args:
        core: an `EngineCore` whose runner is a `ModelRunner`.
        caches: all tensors of the engine's caches, by layer.

    Returns:
        How many tensor entries were overwritten.
    """
    kv_cache, running = core.scheduler.kv_cache, core.scheduler.running
    paged_shape = (kv_cache.pool.num_blocks, kv_cache.block_size)
    slots = _free_slots(kv_cache, running)
    num_poisoned = 0
    for layer in caches.values():
        for cache in layer.values():
            # The first two sizes tell a paged cache from one of state slots.
            is_paged = tuple(cache.shape[:2]) == paged_shape
            entries = cache.view(-1, *cache.shape[2:]) if is_paged else cache
            idle = slots if is_paged else _idle_state_slots(core.runner._batch, running)
            entries[idle] = float("nan") if cache.is_floating_point() else GARBAGE % 2**31
            num_poisoned += len(idle)
    return num_poisoned


def _free_slots(kv_cache: Any, running: Iterable[Any]) -> torch.Tensor:
    pool, block_size = kv_cache.pool, kv_cache.block_size
    blocks = [block for block in pool._free if block not in pool._hash_of]
    slots = [block * block_size + offset for block in blocks for offset in range(block_size)]
    for request in running:
        for position in range(request.num_computed_tokens, len(request.block_ids) * block_size):
            slots.append(request.block_ids[position // block_size] * block_size + position % block_size)
    return torch.tensor(slots, dtype=torch.int64)


def _idle_state_slots(batch: Any, running: Iterable[Any]) -> torch.Tensor:
    idle = torch.ones(batch.state_slots.size, dtype=torch.bool)
    for request in running:
        row = request.state_index
        idle[batch.state_slots[row, batch.num_accepted_tokens[row] - 1]] = False
    return idle.nonzero().flatten()

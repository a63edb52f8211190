"""Attention of one call, shared by the threads that meet in it: write the rows' keys and values, then attend.

A C function, so that its machine code exists once, whoever calls it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import carray, cfunc, types

from .entries import write_entry
from .fingerprint import source_fingerprint
from .memory import array, pointer, record
from .records import ITEM, LAYER, STEP
from .simd import compiled
from .stages import draw, finish_task, wait_for
from .tile import attend_item, merge_item

# Rows below which writing the cache is not worth sharing, and rows of a share.
_SERIAL_ROWS, _ROWS_PER_SHARE = 256, 64
_WRITE, _ATTEND, _MERGE = 0, 1, 2  # stages


@compiled
def write_rows(layer: Any, keys: int, values: int, slots: Any, first: int, last: int, scratch: int) -> None:
    """Write the keys and values of rows `[first, last)` at their slots."""
    keys += 4 * first * layer.num_kv_heads * layer.key_size
    values += 4 * first * layer.num_kv_heads * layer.value_size
    for row in range(first, last):
        block, offset = slots[row] // layer.block_size, slots[row] % layer.block_size
        key = layer.key_cache + block * layer.key_block + offset * layer.key_token
        value = layer.value_cache + block * layer.value_block + offset * layer.value_token
        for _ in range(layer.num_kv_heads):
            write_entry(keys, layer.key_size, key, layer.cache_type, scratch)
            keys, key = keys + 4 * layer.key_size, key + layer.key_head
            write_entry(values, layer.value_size, value, layer.cache_type, scratch)
            values, value = values + 4 * layer.value_size, value + layer.value_head


@compiled
def attend_together(
    layer: Any, step: Any, query: int, key: int, value: int, output: int, counters: int, worker: int
) -> None:
    """What one of the threads does; it owns row `worker` of the scratch memory."""
    scratch = step.scratch + 4 * worker * step.scratch_size
    num_rows = step.num_rows

    share = num_rows if num_rows < _SERIAL_ROWS else _ROWS_PER_SHARE
    num_shares = (num_rows + share - 1) // share if num_rows else 0
    slots = array(step.slots, num_rows, np.int64)
    while True:
        index = draw(counters, _WRITE)
        if index >= num_shares:
            break
        write_rows(layer, key, value, slots, index * share, min((index + 1) * share, num_rows), scratch)
        finish_task(counters, _WRITE)
    wait_for(counters, _WRITE, num_shares)

    positions, items = array(step.positions, num_rows, np.int64), array(step.items, step.num_items, ITEM)
    block_table = carray(pointer(step.block_table), (step.num_requests, step.max_blocks), np.int32)
    while True:
        index = draw(counters, _ATTEND)
        if index >= step.num_items:
            break
        attend_item(layer, query, output, positions, block_table, items[index], step.partials, scratch)
        finish_task(counters, _ATTEND)
    wait_for(counters, _ATTEND, step.num_items)

    if step.num_merges:
        merges = array(step.merges, step.num_merges, ITEM)
        while True:
            index = draw(counters, _MERGE)
            if index >= step.num_merges:
                break
            merge_item(layer, output, merges[index], step.partials, scratch)
            finish_task(counters, _MERGE)
        wait_for(counters, _MERGE, step.num_merges)


def _compile(fingerprint: int) -> Any:
    @cfunc(types.void(*[types.int64] * 9), cache=True, error_model="numpy")
    def attend(
        layer: int, step: int, query: int, key: int, value: int, output: int, counters: int, worker: int,
        num_workers: int,
    ) -> None:  # fmt: skip
        """See `outrider.api.NativeAttention`; `layer` and `step` are addresses of a `LAYER` and a `STEP`."""
        if fingerprint < 0:  # never: but what the function captures is part of its key in numba's cache
            return
        attend_together(record(layer, LAYER), record(step, STEP), query, key, value, output, counters, worker)

    return attend


@cache
def attention_address() -> int:
    """Address of the function; compiles it, or loads it from numba's cache.

    One version serves every layer: types and sizes are data to it.
    """
    address: int = _compile(source_fingerprint()).address
    return address

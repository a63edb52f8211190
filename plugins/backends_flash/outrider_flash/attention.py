"""Attention of one call, shared by the threads that meet in it: write the rows' keys and values, then attend."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, get_num_threads, njit, prange

from outrider.api import NATIVE_COUNTERS

from .entries import write_entry
from .fingerprint import source_fingerprint
from .memory import array, pointer, record
from .records import ITEM, LAYER, STEP, Call
from .simd import compiled
from .stages import draw, finish_task, wait_for
from .tile import attend_item, merge_item

# Rows below which writing the cache is not worth sharing, and rows of a share.
_SERIAL_ROWS, _ROWS_PER_SHARE = 256, 64
_WRITE, _ATTEND, _MERGE = 0, 1, 2  # stages


@compiled
def write_rows(layer: Any, call: Any, slots: Any, first: int, last: int, scratch: int) -> None:
    """Write the keys and values of rows `[first, last)` at their slots."""
    for row in range(first, last):
        block, offset = slots[row] // layer.block_size, slots[row] % layer.block_size
        key = layer.key_cache + block * layer.key_block + offset * layer.key_token
        value = layer.value_cache + block * layer.value_block + offset * layer.value_token
        for head in range(layer.num_kv_heads):
            source = call.key + row * call.key_row + head * call.key_head
            write_entry(source, layer.key_size, key, layer.cache_type, scratch)
            key += layer.key_head
            source = call.value + row * call.value_row + head * call.value_head
            write_entry(source, layer.value_size, value, layer.cache_type, scratch)
            value += layer.value_head


@compiled
def attend_together(layer_at: int, step_at: int, call: Any, counters: int, worker: int) -> None:
    """Write keys and values of all rows, then compute all rows, with whoever else calls this with the same arguments.

    Args:
        layer_at, step_at: addresses of a `LAYER` and a `STEP`.
        call: a `Call`.
        counters: address of `NATIVE_COUNTERS` int64, zero before the first thread comes.
        worker: number of the thread; it owns that row of the scratch memory.
    """
    layer, step = record(layer_at, LAYER), record(step_at, STEP)
    scratch = step.scratch + 4 * worker * step.scratch_size
    num_rows = step.num_rows

    share = num_rows if num_rows < _SERIAL_ROWS else _ROWS_PER_SHARE
    num_shares = (num_rows + share - 1) // share if num_rows else 0
    slots = array(step.slots, num_rows, np.int64)
    while True:
        index = draw(counters, _WRITE)
        if index >= num_shares:
            break
        write_rows(layer, call, slots, index * share, min((index + 1) * share, num_rows), scratch)
        finish_task(counters, _WRITE)
    wait_for(counters, _WRITE, num_shares)

    positions, items = array(step.positions, num_rows, np.int64), array(step.items, step.num_items, ITEM)
    block_table = carray(pointer(step.block_table), (step.num_requests, step.max_blocks), np.int32)
    while True:
        index = draw(counters, _ATTEND)
        if index >= step.num_items:
            break
        attend_item(layer, call, positions, block_table, items[index], step.partials, scratch)
        finish_task(counters, _ATTEND)
    wait_for(counters, _ATTEND, step.num_items)

    if step.num_merges:
        merges = array(step.merges, step.num_merges, ITEM)
        while True:
            index = draw(counters, _MERGE)
            if index >= step.num_merges:
                break
            merge_item(layer, call, merges[index], step.partials, scratch)
            finish_task(counters, _MERGE)
        wait_for(counters, _MERGE, step.num_merges)


@compiled
def _call_of(places: Any) -> Any:
    return Call(
        places[0], places[1], places[2], places[3], places[4], places[5], places[6], places[7], places[8], places[9]
    )  # fmt: skip


def _compile(fingerprint: int) -> Any:
    @njit(cache=True, parallel=True, error_model="numpy")
    def attend(layer: int, step: int, places: Any, counters: Any, num_workers: int) -> int:
        """`attend_together` with `num_workers` threads.

        Args:
            layer, step: addresses of a `LAYER` and a `STEP`.
            places: `[10]` int64, the fields of a `Call`.
            counters: `[NATIVE_COUNTERS]` int64.
        """
        for i in range(counters.size):
            counters[i] = 0
        if num_workers == 1:  # nobody to wake
            attend_together(layer, step, _call_of(places), counters.ctypes.data, 0)
            return fingerprint
        for worker in prange(num_workers):
            attend_together(layer, step, _call_of(places), counters.ctypes.data, worker)
        return fingerprint

    return attend


attend = _compile(source_fingerprint())


def warm_up() -> None:
    """Compile `attend`, or load it from numba's cache, and start its threads. Afterwards it never compiles again.

    One version serves every layer: types and sizes are data to it. Arguments of other types raise a TypeError.
    """
    if not attend.signatures:
        layer, step = np.zeros(1, LAYER), np.zeros(1, STEP)
        counters = np.zeros(NATIVE_COUNTERS, np.int64)
        attend(layer.ctypes.data, step.ctypes.data, np.zeros(10, np.int64), counters, get_num_threads())
        attend.disable_compile()

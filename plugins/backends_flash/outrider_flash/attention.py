"""The one compiled function of this backend: write the rows' keys and values, then attend."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from numba import config, get_num_threads, njit, prange

from . import simd
from .entries import write_entry
from .records import CALL, FLOAT32, ITEM, LAYER, padded
from .simd import compiled
from .tile import attend_item, merge_item

# Rows below which writing the cache is not worth waking other threads.
_SERIAL_ROWS = 256


@compiled
def write_rows(layer: Any, call: Any, slots: Any, first: int, last: int, scratch: int) -> None:
    """Write the keys and values of rows `[first, last)` at their slots."""
    item = 4 if layer.cache_type == FLOAT32 else 2
    for row in range(first, last):
        block, offset = slots[row] // layer.block_size, slots[row] % layer.block_size
        key = layer.key_cache + block * layer.key_block + offset * layer.key_token
        value = layer.value_cache + block * layer.value_block + offset * layer.value_token
        for head in range(layer.num_kv_heads):
            source = call.key + row * call.key_row + head * call.key_head
            write_entry(source, layer.key_size, key, layer.cache_type, scratch)
            key += padded(layer.key_size) * item
            source = call.value + row * call.value_row + head * call.value_head
            write_entry(source, layer.value_size, value, layer.cache_type, scratch)
            value += padded(layer.value_size) * item


@compiled
def take_items(
    layer: Any, call: Any, positions: Any, block_table: Any, items: Any, ticket: int, scratch: int
) -> None:
    """Do items until none is left; other threads draw from the same counter at `ticket`."""
    while True:
        index = simd.fetch_and_add(ticket, 1)
        if index >= items.shape[0]:
            return
        attend_item(layer, call, positions, block_table, items[index], scratch)


def source_fingerprint() -> int:
    """A digest of the sources of this package."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return int.from_bytes(digest.digest()[:4])


def _compile(fingerprint: int) -> Any:
    # numba's cache on disk notices changes of this file only, but the machine code contains that of the files it
    # imports: a captured number is part of the cache key.
    @njit(cache=True, parallel=True, error_model="numpy")
    def attend(
        layers: Any, calls: Any, positions: Any, slots: Any, block_table: Any, items: Any, merges: Any,
        scratch: Any, ticket: Any, num_workers: int, output: Any,
    ) -> int:  # fmt: skip
        """Write keys and values of all rows, then compute all rows.

        Args:
            layers, calls: `[1]` of `LAYER` and `CALL`.
            positions, slots: `[T]` int64.
            block_table: `[B, max_blocks]` int32.
            items, merges: of `ITEM`, from `make_plan`.
            scratch: `[threads, scratch_size]` float32; a worker owns a row.
            ticket: `[1]` int64.
            output: `[T, num_heads, value_size]` float32; its address is put into `calls`.
        """
        num_rows = slots.shape[0]
        ticket[0] = 0
        calls[0].output = output.ctypes.data
        if num_workers == 1:
            write_rows(layers[0], calls[0], slots, 0, num_rows, scratch.ctypes.data)
            take_items(
                layers[0], calls[0], positions, block_table, items, ticket.ctypes.data, scratch.ctypes.data
            )
            return fingerprint

        writers = num_workers if num_rows >= _SERIAL_ROWS else 1
        if writers == 1:
            write_rows(layers[0], calls[0], slots, 0, num_rows, scratch.ctypes.data)
        else:
            for worker in prange(writers):
                first, last = num_rows * worker // writers, num_rows * (worker + 1) // writers
                write_rows(layers[0], calls[0], slots, first, last, scratch[worker].ctypes.data)
        for worker in prange(num_workers):
            own = scratch[worker].ctypes.data
            take_items(layers[0], calls[0], positions, block_table, items, ticket.ctypes.data, own)
        for merge in range(merges.shape[0]):
            merge_item(layers[0], calls[0], merges[merge], scratch.ctypes.data)
        return fingerprint

    return attend


attend = _compile(source_fingerprint())


def warm_up() -> None:
    """Compile `attend`, or load it from numba's cache, and start its threads. Afterwards it never compiles again.

    One version serves every layer: types and sizes are data to it. Arrays of other types than here raise a TypeError.
    """
    if not attend.signatures:
        items = np.zeros(0, ITEM)
        attend(
            np.zeros(1, LAYER),
            np.zeros(1, CALL),
            np.zeros(0, np.int64),
            np.zeros(0, np.int64),
            np.zeros((0, 0), np.int32),
            items,
            items,
            np.zeros((config.NUMBA_NUM_THREADS, 0), np.float32),
            np.zeros(1, np.int64),
            get_num_threads(),
            np.zeros((0, 0, 0), np.float32),
        )
        attend.disable_compile()

"""Cache entries: writing them, finding them through the block table, laying sixteen out for the arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from . import simd
from .records import BFLOAT16, FLOAT32, padded


@njit
def copy_in(source: int, target: int, size: int) -> None:
    """Copy `size` floats and fill up the last vector with zeros."""
    whole = size // simd.LANES * simd.LANES
    for i in range(0, whole, simd.LANES):
        simd.store(target + 4 * i, simd.load(source + 4 * i))
    if whole < size:
        simd.store(target + 4 * whole, simd.splat(0.0))
        for i in range(whole, size):
            simd.store_one(target + 4 * i, simd.load_one(source + 4 * i))


@njit
def copy_out(source: int, target: int, size: int) -> None:
    """Copy `size` floats and touch nothing beyond."""
    whole = size // simd.LANES * simd.LANES
    for i in range(0, whole, simd.LANES):
        simd.store(target + 4 * i, simd.load(source + 4 * i))
    for i in range(whole, size):
        simd.store_one(target + 4 * i, simd.load_one(source + 4 * i))


@njit
def write_entry(source: int, size: int, target: int, cache_type: int, scratch: int) -> None:
    """Write a key or value head of `size` floats to the cache, in the cache's type, filled up with zeros."""
    copy_in(source, scratch, size)
    for i in range(0, size, simd.LANES):
        entry = simd.load(scratch + 4 * i)
        if cache_type == FLOAT32:
            simd.store(target + 4 * i, entry)
        elif cache_type == BFLOAT16:
            simd.store_bfloat16(target + 2 * i, entry)
        else:
            simd.store_float16(target + 2 * i, entry)


@njit
def find_entries(layer: Any, blocks: Any, head: int, begin: int, end: int, keys: int, values: int) -> None:
    """Store the addresses of the keys and values of positions `[begin, end)` at `keys` and `values`."""
    item = 4 if layer.cache_type == FLOAT32 else 2
    key_base = layer.key_cache + head * padded(layer.key_size) * item
    value_base = layer.value_cache + head * padded(layer.value_size) * item
    position = begin
    while position < end:
        block, offset = np.int64(blocks[position // layer.block_size]), position % layer.block_size
        key = key_base + block * layer.key_block + offset * layer.key_token
        value = value_base + block * layer.value_block + offset * layer.value_token
        for _ in range(min(layer.block_size - offset, end - position)):
            simd.store_address(keys, key)
            simd.store_address(values, value)
            key, value = key + layer.key_token, value + layer.value_token
            keys, values = keys + 8, values + 8
            position += 1


@njit
def prefetch_entries(pointers: int, first: int, last: int, num_bytes: int) -> None:
    """Ask for entries `[first, last)`: they lie scattered, which a processor does not foresee."""
    for lane in range(first, last):
        address = simd.load_address(pointers + 8 * lane)
        for i in range(0, num_bytes, 64):
            simd.prefetch(address + i)


@njit
def stage_keys(cache_type: int, addresses: int, size: int, target: int) -> None:
    """Lay sixteen keys out as `[size, 16]` float32, so that scores need no sum across lanes."""
    for i in range(0, size, simd.LANES):
        if cache_type == FLOAT32:
            simd.load_transposed(addresses, 4 * i, target + 64 * i)
        elif cache_type == BFLOAT16:
            simd.load_transposed_bfloat16(addresses, 2 * i, target + 64 * i)
        else:
            simd.load_transposed_float16(addresses, 2 * i, target + 64 * i)


@njit
def stage_values(cache_type: int, pointers: int, first: int, last: int, size: int, target: int) -> None:
    """Convert values `[first, last)` of sixteen to float32 at `target` and let their pointers say so; float32 stays."""
    if cache_type == FLOAT32:
        return
    for lane in range(first, last):
        source = simd.load_address(pointers + 8 * lane)
        row = target + 4 * lane * size
        for i in range(0, size, simd.LANES):
            if cache_type == BFLOAT16:
                simd.store(row + 4 * i, simd.load_bfloat16(source + 2 * i))
            else:
                simd.store(row + 4 * i, simd.load_float16(source + 2 * i))
        simd.store_address(pointers + 8 * lane, row)

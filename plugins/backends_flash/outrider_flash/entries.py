"""Cache entries: writing them, finding them through the block table, laying sixteen out for the arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import simd
from .records import AHEAD, BFLOAT16, FLOAT32
from .simd import compiled


@compiled
def copy_in(source: int, target: int, size: int) -> None:
    """Copy `size` floats and fill up the last vector with zeros."""
    whole = size // simd.LANES * simd.LANES
    for i in range(0, whole, simd.LANES):
        simd.store(target + 4 * i, simd.load(source + 4 * i))
    if whole < size:
        simd.store(target + 4 * whole, simd.splat(0.0))
        for i in range(whole, size):
            simd.store_one(target + 4 * i, simd.load_one(source + 4 * i))


@compiled
def copy_out(source: int, target: int, size: int) -> None:
    """Copy `size` floats and touch nothing beyond."""
    whole = size // simd.LANES * simd.LANES
    for i in range(0, whole, simd.LANES):
        simd.store(target + 4 * i, simd.load(source + 4 * i))
    for i in range(whole, size):
        simd.store_one(target + 4 * i, simd.load_one(source + 4 * i))


@compiled
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


@compiled
def find_entries(
    blocks: Any,
    block_size: int,
    begin: int,
    end: int,
    base: int,
    block_step: int,
    token_step: int,
    pointers: int,
) -> None:
    """Store at `pointers` the addresses of the entries of positions `[begin, end)`, in blocks of these steps."""
    position = begin
    while position < end:
        block, offset = np.int64(blocks[position // block_size]), position % block_size
        address = base + block * block_step + offset * token_step
        for _ in range(min(block_size - offset, end - position)):
            simd.store_address(pointers, address)
            address, pointers, position = address + token_step, pointers + 8, position + 1


@compiled
def fill_pointers(pointers: int, number: int, address: int) -> None:
    """Store an address `number` times."""
    for i in range(number):
        simd.store_address(pointers + 8 * i, address)


@compiled
def find_keys(layer: Any, blocks: Any, head: int, begin: int, end: int, pointers: int) -> None:
    """Store at `pointers` the addresses of the keys of positions `[begin, end)`."""
    base = layer.key_cache + head * layer.key_head
    find_entries(blocks, layer.block_size, begin, end, base, layer.key_block, layer.key_token, pointers)


@compiled
def find_values(layer: Any, blocks: Any, head: int, begin: int, end: int, pointers: int) -> None:
    """Store at `pointers` the addresses of the values of positions `[begin, end)`."""
    base = layer.value_cache + head * layer.value_head
    find_entries(blocks, layer.block_size, begin, end, base, layer.value_block, layer.value_token, pointers)


@compiled
def prefetch(pointers: int, offset: int) -> None:
    """Ask for cache lines of sixteen entries: they lie scattered, which a processor does not foresee."""
    for lane in range(simd.LANES):
        simd.prefetch(simd.load_address(pointers + 8 * lane) + offset)


@compiled
def prefetch_entries(cache_type: int, pointers: int, number: int, size: int) -> None:
    """Ask for entries of `size` numbers."""
    num_bytes = size * (4 if cache_type == FLOAT32 else 2)
    for lane in range(number):
        entry = simd.load_address(pointers + 8 * lane)
        for i in range(0, num_bytes, 64):
            simd.prefetch(entry + i)


@compiled
def stage_columns(cache_type: int, pointers: int, size: int, target: int) -> None:
    """Lay sixteen keys out as `[size, 16]` float32, so that scores need no sum across lanes.

    Meanwhile ask for the entries `AHEAD`, line by line: a processor drops requests in bulk.
    """
    following = pointers + 8 * AHEAD
    for i in range(0, size, simd.LANES):
        if cache_type == FLOAT32:
            prefetch(following, 4 * i)
            simd.load_transposed(pointers, 4 * i, target + 64 * i)
        elif cache_type == BFLOAT16:
            prefetch(following, 2 * i)
            simd.load_transposed_bfloat16(pointers, 2 * i, target + 64 * i)
        else:
            prefetch(following, 2 * i)
            simd.load_transposed_float16(pointers, 2 * i, target + 64 * i)


@compiled
def stage_rows(cache_type: int, pointers: int, first: int, last: int, size: int, target: int) -> None:
    """Lay entries `[first, last)` of sixteen, of sixteen bits a number, out as rows of `[16, size]` float32.

    Meanwhile ask for the entries `AHEAD`.
    """
    for lane in range(first, last):
        source = simd.load_address(pointers + 8 * lane)
        following = simd.load_address(pointers + 8 * (lane + AHEAD))
        row = target + 4 * lane * size
        for i in range(0, size, simd.LANES):
            simd.prefetch(following + 2 * i)
            if cache_type == BFLOAT16:
                simd.store(row + 4 * i, simd.load_bfloat16(source + 2 * i))
            else:
                simd.store(row + 4 * i, simd.load_float16(source + 2 * i))

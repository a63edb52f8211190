"""`x @ weight.T` for a range of columns: how rows and columns are walked so that weights are streamed once."""

from __future__ import annotations

from typing import Any

from .simd import inlined
from .tile import (
    TILE_COLUMNS,
    TILE_ROWS,
    first_tile,
    tile,
    tile_of_1_column,
    tile_of_1_row,
    tile_of_2_rows,
)

_ROWS_BYTES = 512 * 1024  # activations of a block of rows: half of a usual second-level cache


@inlined
def columns(x: Any, weight: Any, scales: Any, bias: Any, out: Any, first: int, last: int) -> None:
    """`out[:, n] = x @ weight[n] * scales[n] + bias[n]` for `first <= n < last`.

    The weight is streamed from memory once for all rows (once per block of `_ROWS_BYTES` of activations): on CPUs a
    product with few rows is limited by that stream, so 8 rows cost little more than 1.

    Args:
        x: `[M, K]` float32, C order, `K` a multiple of `STEP`.
        weight: `[N, K]`: float32, uint16 (bfloat16 numbers) or int8, C order.
        scales: `[N]` float32 for int8, else `[0]`.
        bias: `[N]` float32, or `[0]`.
        out: `[M, .]` float32, C order.
    """
    num_rows, depth = x.shape
    block = max(1, _ROWS_BYTES // (4 * max(depth, 1) * TILE_ROWS)) * TILE_ROWS
    for start in range(0, num_rows, block):
        end = min(num_rows, start + block)
        n = first
        while n + TILE_COLUMNS <= last:
            m = start
            if m + TILE_ROWS <= end:
                first_tile(x, weight, scales, out, m, n)
                m += TILE_ROWS
            while m + TILE_ROWS <= end:
                tile(x, weight, scales, out, m, n)
                m += TILE_ROWS
            while m + 2 <= end:
                tile_of_2_rows(x, weight, scales, out, m, n)
                m += 2
            if m < end:
                tile_of_1_row(x, weight, scales, out, m, n)
            n += TILE_COLUMNS
        while n < last:
            for m in range(start, end):
                tile_of_1_column(x, weight, scales, out, m, n)
            n += 1
    if len(bias):
        for m in range(num_rows):
            for n in range(first, last):
                out[m, n] += bias[n]

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

_MANY_ROWS = 32  # from here on arithmetic takes longer than the stream of weights
_PANEL_BYTES = 128 * 1024  # weights that stay in the second-level cache while many rows pass by


@inlined
def _group(x: Any, weight: Any, scales: Any, out: Any, first_row: int, last_row: int, n: int) -> None:
    """The columns `[n, n + TILE_COLUMNS)` of the rows `[first_row, last_row)`."""
    m = first_row
    if m + TILE_ROWS <= last_row:
        first_tile(x, weight, scales, out, m, n)
        m += TILE_ROWS
    while m + TILE_ROWS <= last_row:
        tile(x, weight, scales, out, m, n)
        m += TILE_ROWS
    while m + 2 <= last_row:
        tile_of_2_rows(x, weight, scales, out, m, n)
        m += 2
    if m < last_row:
        tile_of_1_row(x, weight, scales, out, m, n)


@inlined
def columns(x: Any, weight: Any, scales: Any, bias: Any, out: Any, first: int, last: int) -> None:
    """`out[:, n] = x @ weight[n] * scales[n] + bias[n]` for `first <= n < last`.

    The weight is streamed from memory once for all rows: a product with few rows is limited by that stream, so 8 rows
    cost little more than 1. Few rows stay in the cache while the weight passes by; of many rows each tile passes by a
    panel of the weight.

    Args:
        x: `[M, K]` float32, C order, `K` a multiple of `STEP`.
        weight: `[N, K]`: float32, uint16 (bfloat16 numbers) or int8, C order.
        scales: `[N]` float32 for int8, else `[0]`.
        bias: `[N]` float32, or `[0]`.
        out: `[M, .]` float32, C order.
    """
    num_rows, depth = x.shape
    main = first + (last - first) // TILE_COLUMNS * TILE_COLUMNS
    if num_rows < _MANY_ROWS:
        for n in range(first, main, TILE_COLUMNS):
            _group(x, weight, scales, out, 0, num_rows, n)
    else:
        whole = num_rows // TILE_ROWS * TILE_ROWS
        panel = max(1, _PANEL_BYTES // (weight.itemsize * max(depth, 1) * TILE_COLUMNS)) * TILE_COLUMNS
        for begin in range(first, main, panel):
            end = min(main, begin + panel)
            for m in range(0, whole, TILE_ROWS):
                for n in range(begin, end, TILE_COLUMNS):
                    tile(x, weight, scales, out, m, n)
            for n in range(begin, end, TILE_COLUMNS):
                _group(x, weight, scales, out, whole, num_rows, n)
    for n in range(main, last):
        for m in range(num_rows):
            tile_of_1_column(x, weight, scales, out, m, n)
    if len(bias):
        for m in range(num_rows):
            for n in range(first, last):
                out[m, n] += bias[n]

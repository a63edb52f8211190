"""`x @ weight.T` for a range of columns: how rows and columns are walked so that weights are streamed once."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.extending import overload

from .packed_bfloat16 import FACTOR, ROWS_PER_START
from .simd import inlined, merged
from .tile import (
    TILE_COLUMNS,
    TILE_ROWS,
    decode_rows,
    first_tile,
    tile,
    tile_of_1_column,
    tile_of_1_row,
    tile_of_2_rows,
)

_MANY_ROWS = 32  # from here on arithmetic takes longer than the stream of weights
_UNPACK_FROM = 96  # rows; from here on packed numbers are decoded once for all of them
_PANEL_BYTES = 128 * 1024  # weights that stay in the second-level cache while many rows pass by
_FACTOR = np.float32(FACTOR)
_TOO_LARGE = np.float32(2.0**128 / FACTOR).view(np.uint32)


@merged
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


@merged
def _panel(x: Any, weight: Any, scales: Any, out: Any, first: int, last: int) -> None:
    """The columns `[first, last)`, some groups, of many rows."""
    whole = len(x) // TILE_ROWS * TILE_ROWS
    for m in range(0, whole, TILE_ROWS):
        for n in range(first, last, TILE_COLUMNS):
            tile(x, weight, scales, out, m, n)
    for n in range(first, last, TILE_COLUMNS):
        _group(x, weight, scales, out, whole, len(x), n)


@inlined
def _panel_columns(row_bytes: int) -> int:
    return max(1, _PANEL_BYTES // (max(1, row_bytes) * TILE_COLUMNS)) * TILE_COLUMNS


@merged
def _stream(x: Any, weight: Any, scales: Any, out: Any, first: int, last: int) -> None:
    """The columns `[first, last)`, some groups."""
    if len(x) < _MANY_ROWS:
        for n in range(first, last, TILE_COLUMNS):
            _group(x, weight, scales, out, 0, len(x), n)
    else:
        panel = _panel_columns(weight.shape[1] * weight.itemsize)
        for begin in range(first, last, panel):
            _panel(x, weight, scales, out, begin, min(last, begin + panel))


@inlined
def _overflows(x: Any) -> Any:
    """Whether an entry times `FACTOR` is not finite."""
    bits = x.view(
        np.uint32
    )  # magnitudes are ordered as their bits are, and integers are compared many at a time
    largest = np.uint32(0)
    for m in range(bits.shape[0]):
        for k in range(bits.shape[1]):
            largest = max(largest, bits[m, k] & np.uint32(0x7FFFFFFF))
    return largest >= _TOO_LARGE


@inlined
def _aligned(num_bytes: int) -> Any:
    """Scratch that begins at a cache line: vectors of 64 bytes would each lie on two, and take twice as long."""
    memory = np.empty(num_bytes + 64, np.uint8)
    begin = -memory.ctypes.data % 64
    return memory[begin : begin + num_bytes]


@inlined
def _unpack_and_stream(x: Any, weight: Any, scales: Any, out: Any, first: int, last: int) -> None:
    """`_stream` for packed bfloat16, with the same bits however it is done.

    Products are multiplied by `FACTOR` in every tile, if there are few rows; else `x` is, before, or, if it pays to
    decode a panel, the decoded weight.
    """
    num_rows, depth = x.shape
    if num_rows <= TILE_ROWS:
        for n in range(first, last, TILE_COLUMNS):
            _group(x, weight, scales, out, 0, num_rows, n)
    elif num_rows < _UNPACK_FROM or _overflows(x):
        scaled = _aligned(4 * num_rows * depth).view(np.float32).reshape(x.shape)
        for m in range(num_rows):
            for k in range(depth):
                scaled[m, k] = x[m, k] * _FACTOR
        _stream(scaled.view(np.uint32), weight, scales, out, first, last)
    else:
        panel = _panel_columns(2 * depth)
        decoded = _aligned(2 * panel * depth).view(np.int16).reshape((panel, depth))
        for begin in range(first, last, panel):
            end = min(last, begin + panel)
            decode_rows(weight, begin, end, decoded)
            _panel(x, decoded, scales[begin:end], out[:, begin:end], 0, end - begin)


def _groups(x: Any, weight: Any, scales: Any, out: Any, first: int, last: int) -> None:
    """The columns `[first, last)`, some groups, of a weight of any format."""
    raise NotImplementedError("compiled only")


@overload(_groups, jit_options={"error_model": "numpy"})
def _groups_of(x: Any, weight: Any, scales: Any, out: Any, first: int, last: int) -> Any:
    product = _unpack_and_stream if weight.dtype == types.uint8 else _stream

    def groups(x: Any, weight: Any, scales: Any, out: Any, first: int, last: int) -> Any:
        product(x, weight, scales, out, first, last)

    return groups


class Matrix(NamedTuple):
    """A weight `[N, K]` and what belongs to it.

    Attributes:
        values: `[N, K]` float32, uint16 (bfloat16 numbers) or int8; or uint8 `[N, K * 3 / 2]`, see `packed_bfloat16`;
            C order, `K` a multiple of `STEP`.
        scales: `[N]` float32 for int8 and uint8, else `[0]`.
        exceptions: those of uint8, or `[0]`.
        bias: `[N]` float32, or `[0]`.
    """

    values: Any
    scales: Any
    exceptions: Any
    bias: Any


@inlined
def columns(x: Any, weight: Any, out: Any, first: int, last: int) -> None:
    """`out[:, n] = x @ weight[n] + bias[n]` for `first <= n < last`.

    The weight is streamed from memory once for all rows: a product with few rows is limited by that stream, so 8 rows
    cost little more than 1. Few rows stay in the cache while the weight passes by; of many rows each tile passes by a
    panel of the weight.

    Args:
        x: `[M, K]` float32, C order.
        weight: a `Matrix`.
        out: `[M, .]` float32, C order.
    """
    num_rows = len(x)
    values, scales, exceptions, bias = weight
    main = first + (last - first) // TILE_COLUMNS * TILE_COLUMNS
    _groups(x, values, scales, out, first, main)
    for n in range(main, last):
        for m in range(num_rows):
            tile_of_1_column(x, values, scales, out, m, n)
    if len(exceptions):
        at = exceptions[first // ROWS_PER_START].column
        while exceptions[at].row < last:
            one = exceptions[at]
            if one.row >= first:
                for m in range(num_rows):
                    out[m, one.row] += x[m, one.column] * one.delta
            at += 1
    if len(bias):
        for m in range(num_rows):
            for n in range(first, last):
                out[m, n] += bias[n]

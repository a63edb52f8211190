"""What happens to single rows between the products: normalisation, rotary embedding, gating."""

from __future__ import annotations

from typing import Any

import numpy as np

from .simd import LANES, gate_lanes, inlined
from .tile import tile_of_1_column
from .weights import NOTHING


@inlined
def normalize_row(x: Any, weight: Any, epsilon: Any, out: Any, square: Any, row: int) -> None:
    """`out[row] = weight * x[row] / rms(x[row])`, zeros behind the end of `x` (Zhang & Sennrich 2019).

    Args:
        x: `[M, H]`.
        weight: `[H]`.
        epsilon: added to the mean square.
        out: `[M, padded(H)]`.
        square: `[1, 1]`, scratch of this thread.
    """
    size, width = x.shape[1], out.shape[1]
    for i in range(size):
        out[row, i] = x[row, i]
    for i in range(size, width):
        out[row, i] = np.float32(0.0)
    one = out[row : row + 1]
    tile_of_1_column(one, one, NOTHING, square, 0, 0)
    factor = np.float32(1.0) / np.sqrt(square[0, 0] / np.float32(size) + epsilon)
    for i in range(size):
        out[row, i] = weight[i] * (out[row, i] * factor)


@inlined
def normalize_head(row: Any, weight: Any, epsilon: Any) -> None:
    """`normalize_row` of one head `[D]`, in place; terms are added in order."""
    square = np.float32(0.0)
    for i in range(len(row)):
        square += row[i] * row[i]
    factor = np.float32(1.0) / np.sqrt(square / np.float32(len(row)) + epsilon)
    for i in range(len(row)):
        row[i] = weight[i] * (row[i] * factor)


@inlined
def rotate_head(row: Any, cos: Any, sin: Any) -> None:
    """Rotary embedding of one head `[D]`, in place (Su et al. 2021, the halves of transformers' `rotate_half`).

    Args:
        cos, sin: `[R]`, `R <= D`; entries behind `R` stay.
    """
    half = len(cos) // 2
    for i in range(half):
        a, b = row[i], row[i + half]
        row[i] = a * cos[i] - b * sin[i]
        row[i + half] = b * cos[i + half] + a * sin[i + half]


@inlined
def gate_columns(gates: Any, ups: Any, first: int, last: int) -> None:
    """`gates[:, first:last] = silu(gates) * ups`; both bounds multiples of `LANES`."""
    for row in range(len(gates)):
        for column in range(first, last, LANES):
            gate_lanes(gates, ups, row, column)

"""`x @ weight.T + bias` whose rows do not know each other; see `tile` for why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import get_num_threads, prange

from .product import Matrix, columns
from .simd import LANES, STEP, inlined, kernel
from .weights import NOTHING, PackedWeight, padded
from .work import LINE, Team, draw, lines_of

Float32Array = npt.NDArray[np.float32]

_PARALLEL_FROM = 256 * 1024  # multiply-adds that are worth waking the other threads for


TASKS_PER_WORKER = 2
"""Few, since each begins with weights that nobody has fetched ahead; more than one, so that a thread that lost its core
for a while holds less up."""


@inlined
def chunk_of_columns(num_columns: int, num_workers: int) -> int:
    """Columns of a task: a multiple of `LANES`, so that threads write to different cache lines."""
    return -(-num_columns // (num_workers * TASKS_PER_WORKER * LANES)) * LANES


def _build(fingerprint: int) -> Callable[..., Any]:
    def multiply_rows(
        x: Any, values: Any, scales: Any, exceptions: Any, bias: Any, out: Any, num_workers: int
    ) -> int:
        num_columns = len(values)
        weight = Matrix(values, scales, exceptions, bias)
        if num_workers == 1:
            columns(x, weight, out, 0, num_columns)
            return fingerprint
        board = np.zeros((1, lines_of(num_workers), LINE), np.int64)
        chunk = chunk_of_columns(num_columns, num_workers)
        for worker in prange(num_workers):
            team = Team(board, worker, num_workers)
            task = draw(team, 0, TASKS_PER_WORKER)
            while task >= 0:
                first, last = min(num_columns, task * chunk), min(num_columns, (task + 1) * chunk)
                columns(x, weight, out, first, last)
                task = draw(team, 0, TASKS_PER_WORKER)
        return fingerprint

    return multiply_rows


_run = kernel(_build)


def linear(x: Float32Array, weight: PackedWeight, bias: Float32Array | None = None) -> Float32Array:
    """Return `x @ weight.T + bias`, `[M, N]`; the bits of a row depend on nothing but that row, `weight` and `bias`.

    Args:
        x: `[M, K]` float32; copied if its rows are not contiguous, or `K` is no multiple of `STEP`.
        weight: `[N, K]`.
        bias: `[N]` float32, added to the finished sums.

    Raises:
        TypeError: an array is not float32.
        ValueError: the shapes do not fit.
    """
    for name, array in (("x", x), ("bias", bias)):
        if array is not None and array.dtype != np.float32:
            raise TypeError(f"linear: {name} is {array.dtype}, expected float32")
    values = weight.values
    if x.ndim != 2 or x.shape[1] != weight.depth:
        raise ValueError(
            f"linear: x {x.shape} and weight {(len(values), weight.depth)} are not [M, K] and [N, K]"
        )
    if bias is not None and bias.shape != values.shape[:1]:
        raise ValueError(f"linear: bias {bias.shape} does not fit weight {(len(values), weight.depth)}")
    out = np.empty((len(x), len(values)), np.float32)
    num_workers = workers_for(len(x) * len(values) * weight.depth)
    added = NOTHING if bias is None else np.ascontiguousarray(bias)
    _run(whole_steps(x), values, weight.scales, weight.exceptions, added, out, num_workers)
    return out


def workers_for(multiply_adds: int) -> int:
    """How many threads to use: 1 if waking the others takes longer than the work."""
    return get_num_threads() if multiply_adds >= _PARALLEL_FROM else 1


def whole_steps(x: Float32Array) -> Float32Array:
    """`[M, K]` in C order, filled up with zeros to `padded(K)` columns; the array itself if it is so already."""
    num_rows, depth = x.shape
    if depth % STEP == 0:
        return np.ascontiguousarray(x)
    wide = np.zeros((num_rows, padded(depth)), np.float32)
    wide[:, :depth] = x
    return wide

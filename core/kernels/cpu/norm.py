"""RMSNorm of rows (Zhang & Sennrich 2019)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import get_num_threads, prange

from .rows import normalize_row
from .simd import inlined, kernel
from .weights import padded

_PARALLEL_FROM = 64 * 1024  # numbers that are worth waking the other threads for


@inlined
def _normalize(x: Any, weight: Any, epsilon: Any, out: Any, first: int, last: int) -> None:
    square = np.empty((1, 1), np.float32)
    for row in range(first, last):
        normalize_row(x, weight, epsilon, out, square, row)


def _build(fingerprint: int) -> Callable[..., Any]:
    def normalize_rows(x: Any, weight: Any, epsilon: Any, out: Any, num_workers: int) -> int:
        num_rows = len(x)
        if num_workers == 1:  # nobody to wake
            _normalize(x, weight, epsilon, out, 0, num_rows)
            return fingerprint
        for worker in prange(num_workers):
            first, last = num_rows * worker // num_workers, num_rows * (worker + 1) // num_workers
            _normalize(x, weight, epsilon, out, first, last)
        return fingerprint

    return normalize_rows


_run = kernel(_build)


def rms_norm(
    x: npt.NDArray[np.float32], weight: npt.NDArray[np.float32], epsilon: np.float32
) -> npt.NDArray[np.float32]:
    """Return `weight * x / sqrt(mean(x ** 2) + epsilon)`, row by row: `[M, H]` as `x`; `weight` is `[H]`."""
    num_rows, size = x.shape
    out = np.empty((num_rows, padded(size)), np.float32)
    _run(np.ascontiguousarray(x), weight, epsilon, out, get_num_threads() if x.size >= _PARALLEL_FROM else 1)
    return np.ascontiguousarray(out[:, :size])

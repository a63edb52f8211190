"""Every worker of a call is one call of the C function, with counters that start at zero."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import carray, cfunc, types
from outrider_flash.memory import pointer
from outrider_flash.team import attend_in_parallel, warm_up

from outrider.api import NATIVE_COUNTERS


@cfunc(types.void(*[types.int64] * 9))
def note_arguments(
    layer: int, step: int, query: int, key: int, value: int, output: int, counters: int, worker: int,
    num_workers: int,
) -> None:  # fmt: skip
    """Add to row `worker` of `output`."""
    row = carray(pointer(output), (num_workers, 8), np.int64)[worker]
    row += np.array([layer, step, query, key, value, num_workers, 1, 0])
    row[7] += carray(pointer(counters), (NATIVE_COUNTERS,), np.int64).sum()


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("num_workers", [1, 2, 5])
def test_each_worker_is_called_once(num_workers: int) -> None:
    warm_up()
    calls, counters = np.zeros((num_workers, 8), np.int64), np.full(NATIVE_COUNTERS, 9)
    numbers: Any = 11, 12, 13, 14, 15, calls.ctypes.data, counters.ctypes.data
    attend_in_parallel(note_arguments.address, *numbers, num_workers)
    assert calls.tolist() == [[11, 12, 13, 14, 15, num_workers, 1, 0]] * num_workers

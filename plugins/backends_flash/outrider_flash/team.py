"""Threads that are woken for one call of the C function in `attention`, where none stand ready."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import get_num_threads, njit, prange, types
from numba.extending import intrinsic

from outrider.api import NATIVE_COUNTERS

from .attention import attention_address
from .fingerprint import source_fingerprint
from .memory import array
from .records import LAYER, STEP


@intrinsic
def _attend(
    typing_context: Any, function: Any, layer: Any, step: Any, query: Any, key: Any, value: Any, output: Any,
    counters: Any, worker: Any, num_workers: Any,
) -> Any:  # fmt: skip

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(64)] * 9)
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 10), codegen


def _compile(fingerprint: int) -> Any:
    @njit(cache=True, parallel=True, error_model="numpy")
    def attend_in_parallel(
        function: int, layer: int, step: int, query: int, key: int, value: int, output: int, counters: int,
        num_workers: int,
    ) -> int:  # fmt: skip
        """Let `num_workers` threads call a function.

        Args:
            function: its address; an argument since numba's cache must not keep it.
            layer, step, query, key, value, output, counters: its arguments; the counters may hold anything.
        """
        numbers = array(counters, NATIVE_COUNTERS, np.int64)
        for i in range(NATIVE_COUNTERS):
            numbers[i] = 0
        if num_workers == 1:  # nobody to wake
            _attend(function, layer, step, query, key, value, output, counters, 0, 1)
            return fingerprint
        for worker in prange(num_workers):
            _attend(function, layer, step, query, key, value, output, counters, worker, num_workers)
        return fingerprint

    return attend_in_parallel


attend_in_parallel = _compile(source_fingerprint())


def warm_up() -> None:
    """Compile all of attention, or load it from numba's cache, and start the threads.

    Afterwards `attend_in_parallel` never compiles again: arguments of other types raise a TypeError.
    """
    if not attend_in_parallel.signatures:
        layer, step = np.zeros(1, LAYER), np.zeros(1, STEP)
        counters = np.zeros(NATIVE_COUNTERS, np.int64)
        addresses = layer.ctypes.data, step.ctypes.data, 0, 0, 0, 0, counters.ctypes.data
        attend_in_parallel(attention_address(), *addresses, get_num_threads())
        attend_in_parallel.disable_compile()

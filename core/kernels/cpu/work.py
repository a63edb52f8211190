"""How the threads of one parallel region share the tasks of several stages.

A region is a sequence of stages, a stage a number of tasks. Threads draw tasks from a counter, and a stage begins when
all tasks of the one before are *done*: not when all threads have arrived. So a thread that the operating system has
put aside, or that never came, holds nothing up but the one task it may have begun, and any number of threads works,
one included.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .simd import data_of, inlined

_SPREAD = 8  # counters stand a cache line apart
_PATIENCE = 200  # looks at a counter before the core is offered to somebody else

_yield_core = types.ExternalFunction("sched_yield", types.int32())


def new_board(num_stages: int) -> npt.NDArray[np.int64]:
    """Counters of a region: two per stage, tasks drawn and tasks done."""
    return np.zeros((2 * num_stages, _SPREAD), np.int64)


@intrinsic
def _fetch_and_add(typingctx: Any, board: Any, counter: Any) -> Any:
    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        offset = builder.mul(args[1], ir.IntType(64)(_SPREAD))
        address = builder.gep(data_of(context, builder, signature.args[0], args[0]), [offset])
        return builder.atomic_rmw("add", address, ir.IntType(64)(1), "acq_rel")

    return types.int64(board, types.intp), codegen


@intrinsic
def _read(typingctx: Any, board: Any, counter: Any) -> Any:
    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        offset = builder.mul(args[1], ir.IntType(64)(_SPREAD))
        address = builder.gep(data_of(context, builder, signature.args[0], args[0]), [offset])
        return builder.load_atomic(address, "acquire", 8)

    return types.int64(board, types.intp), codegen


@inlined
def draw(board: Any, stage: int) -> int:
    """Number of the next task of a stage; what is not below the number of its tasks means that none is left."""
    return _fetch_and_add(board, 2 * stage)


@inlined
def done(board: Any, stage: int) -> None:
    """Tell that a drawn task is finished; what it wrote can be read by whoever waited for the stage."""
    _fetch_and_add(board, 2 * stage + 1)


@inlined
def wait(board: Any, stage: int, num_tasks: int) -> None:
    """Return when all tasks of a stage are done."""
    looks = 0
    while _read(board, 2 * stage + 1) < num_tasks:
        looks += 1
        if looks > _PATIENCE:
            _yield_core()

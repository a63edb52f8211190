"""How the threads of one parallel region share the tasks of several stages.

A region is a sequence of stages. In each, every worker owns a few tasks: neighbours in memory, so that one worker's
stream of weights goes on from task to task. Who has done his own takes from others, and a stage begins when all tasks
of the one before are *done*: not when all threads have arrived. So a thread that the operating system has put aside, or
that never came, holds nothing up but the one task it may have begun, and any number of threads works, one included.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .simd import data_of, inlined
from .weights import empty_aligned

LINE = 8
"""Counters in a cache line."""
_PATIENCE = 200  # looks at a counter before the core is offered to somebody else

_yield_core = types.ExternalFunction("sched_yield", types.int32())


class Team(NamedTuple):
    """A worker and those it works with.

    Attributes:
        board: counters, from `new_board`, zero when the region begins.
        worker: its number, from 0.
    """

    board: Any
    worker: int
    num_workers: int


def new_board(num_stages: int, num_workers: int) -> npt.NDArray[np.int64]:
    """Counters of a region: for each stage the tasks done, on a line of its own, and each worker's tasks drawn."""
    board: npt.NDArray[np.int64] = empty_aligned((num_stages, lines_of(num_workers), LINE), np.int64)
    board[:] = 0
    return board


@inlined
def lines_of(num_workers: int) -> int:
    """Cache lines of a stage."""
    return 1 + -(-num_workers // LINE)


@intrinsic
def _fetch_and_add(typingctx: Any, board: Any, counter: Any) -> Any:
    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        address = builder.gep(data_of(context, builder, signature.args[0], args[0]), [args[1]])
        return builder.atomic_rmw("add", address, ir.IntType(64)(1), "acq_rel")

    return types.int64(board, types.intp), codegen


@intrinsic
def _read(typingctx: Any, board: Any, counter: Any) -> Any:
    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        address = builder.gep(data_of(context, builder, signature.args[0], args[0]), [args[1]])
        return builder.load_atomic(address, "acquire", 8)

    return types.int64(board, types.intp), codegen


@inlined
def draw(team: Any, stage: int, tasks_per_worker: int) -> int:
    """A task that nobody has drawn, of the worker's own first: those of worker `w` are `w * tasks_per_worker` and those
    after it. -1: none is left."""
    first = (stage * team.board.shape[1] + 1) * LINE
    for distance in range(team.num_workers):
        owner = team.worker + distance
        if owner >= team.num_workers:
            owner -= team.num_workers
        if _read(team.board, first + owner) < tasks_per_worker:
            task = _fetch_and_add(team.board, first + owner)
            if task < tasks_per_worker:
                return owner * tasks_per_worker + task
    return -1


@inlined
def done(team: Any, stage: int) -> None:
    """Tell that a drawn task is finished; what it wrote can be read by whoever waited for the stage."""
    _fetch_and_add(team.board, stage * team.board.shape[1] * LINE)


@inlined
def wait(team: Any, stage: int, tasks_per_worker: int) -> None:
    """Return when all tasks of a stage are done."""
    looks = 0
    while _read(team.board, stage * team.board.shape[1] * LINE) < team.num_workers * tasks_per_worker:
        looks += 1
        if looks > _PATIENCE:
            _yield_core()

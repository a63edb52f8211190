"""How threads that meet in one call share its work: each stage is a number of tasks, drawn from a counter.

A stage is over when all its tasks are done, whoever did them: nobody waits for a thread that has not come.
"""

from __future__ import annotations

from typing import Any

from numba import types

from . import simd
from .simd import compiled

_LINE = 64  # bytes between counters, so that no two share a cache line
_SPINS = 200  # looks at a counter before the core is offered to others

_yield_core: Any = types.ExternalFunction("sched_yield", types.int32())


@compiled
def draw(counters: int, stage: int) -> int:
    """The next task of a stage; none is left if it is not below the number of its tasks."""
    return simd.fetch_and_add(counters + 2 * _LINE * stage, 1)


@compiled
def finish_task(counters: int, stage: int) -> None:
    """A drawn task is done: who waits for the stage sees what it wrote."""
    simd.fetch_and_add(counters + 2 * _LINE * stage + _LINE, 1)


@compiled
def wait_for(counters: int, stage: int, num_tasks: int) -> None:
    """Return when all tasks of the stage are done."""
    spins = 0
    while simd.load_acquire(counters + 2 * _LINE * stage + _LINE) < num_tasks:
        spins += 1
        if spins > _SPINS:
            _yield_core()

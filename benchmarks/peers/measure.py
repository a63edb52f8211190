"""All systems through all jobs, turn by turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Protocol

from .noise import Sample, others_cores, sample, session_cores
from .protocol import Reply, Request, WorkerError

QUIET = 0.15
"""Cores that others may keep busy in a turn that counts as undisturbed."""

_PAUSE_SECONDS = 0.3
"""Between two turns: the threads of the one before have stopped spinning by then."""


class Runs(Protocol):
    """What is measured; see `client.Worker`."""

    @property
    def session(self) -> int: ...

    def run(self, request: Request) -> Reply: ...


@dataclass(frozen=True, slots=True)
class Job:
    """What every system is asked for once per repeat.

    Attributes:
        name: the prompt's question id.
        is_prefill: whether it measures the time to the first token of a long prompt; else decoding.
    """

    name: str
    category: str
    request: Request
    is_prefill: bool = False


@dataclass(frozen=True, slots=True)
class Turn:
    """One job of one system, once.

    Attributes:
        others: how many cores others kept busy meanwhile; None: not known.
        tries: how often it was run until it was undisturbed, or patience ended.
    """

    system: str
    repeat: int
    job: Job
    reply: Reply
    others: float | None
    tries: int


Clocks = Callable[[Sequence[int]], Sample | None]


def rotated(names: Sequence[str], by: int) -> list[str]:
    """`names`, beginning with another one for each value of `by`: nobody is always the first."""
    first = by % len(names) if names else 0
    return [*names[first:], *names[:first]]


class Measurement:
    """Systems and jobs, and which systems have failed.

    Args:
        patience: how often a disturbed turn is run again. It is the last run that counts, whatever it gave.
        clocks: reads the processors' clocks.
    """

    def __init__(
        self,
        workers: Mapping[str, Runs],
        jobs: Sequence[Job],
        *,
        patience: int,
        clocks: Clocks = sample,
        pause_seconds: float = _PAUSE_SECONDS,
    ) -> None:
        self._workers = dict(workers)
        self._jobs = jobs
        self._patience = patience
        self._clocks = clocks
        self._pause_seconds = pause_seconds
        self.failed: dict[str, str] = {}
        """Reasons, by system. A system that fails once takes no more turns."""

    def warm_up(self) -> None:
        """Each system runs one job of each kind, which counts nowhere."""
        jobs = {job.is_prefill: job for job in self._jobs}
        for name in list(self._workers):
            for job in jobs.values():
                if name in self.failed:
                    break
                self._try(name, 0, job, patience=0)

    def idle_cores(self, seconds: float) -> dict[str, float | None]:
        """How many cores each system keeps busy while nobody asks it for anything."""
        time.sleep(self._pause_seconds)
        before = self._read()
        time.sleep(seconds)
        after = self._read()
        return {name: session_cores(before, after, one.session) for name, one in self._workers.items()}

    def turns(self, repeats: int) -> Iterator[Turn]:
        """Measure: one process computes at a time, and the order changes with each job and repeat."""
        for repeat in range(repeats):
            for index, job in enumerate(self._jobs):
                for name in rotated(list(self._workers), index + repeat):
                    turn = self._try(name, repeat, job, self._patience)
                    if turn is not None:
                        yield turn

    def _try(self, name: str, repeat: int, job: Job, patience: int) -> Turn | None:
        worker = self._workers[name]
        try:
            for tries in count(1):
                time.sleep(self._pause_seconds)
                before = self._read()
                reply = worker.run(job.request)
                others = others_cores(before, self._read(), worker.session)
                if others is None or others <= QUIET or tries > patience:
                    break
        except WorkerError as error:
            self.failed[name] = str(error)
            del self._workers[name]
            return None
        return Turn(name, repeat, job, reply, others, tries)

    def _read(self) -> Sample | None:
        return self._clocks([worker.session for worker in self._workers.values()])

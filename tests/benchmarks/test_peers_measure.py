"""Whose turn it is, which turns are run again, and which systems are given up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from peers.measure import Job, Measurement, rotated
from peers.noise import Sample, busy_ticks, others_cores, session_ticks
from peers.protocol import Reply, Request, WorkerError

JOBS = [
    Job("a", "qa", Request([1], 4)),
    Job("b", "qa", Request([2], 4)),
    Job("long", "prefill", Request([3], 1), is_prefill=True),
]


class Toy:
    """A worker that notes its calls in `log` and fails at the calls in `failing`."""

    def __init__(self, name: str, log: list[str], failing: Sequence[int] = ()) -> None:
        self.session = ord(name)
        self._name = name
        self._log = log
        self._failing = failing
        self._calls = 0

    def run(self, request: Request) -> Reply:
        self._log.append(f"{self._name}{request.prompt_token_ids[0]}")
        self._calls += 1
        if self._calls in self._failing:
            raise WorkerError("broke")
        return Reply([7] * request.max_tokens, 0.5, 1, 1.0)


def measurement(
    workers: dict[str, Toy],
    *,
    patience: int = 0,
    clocks: Callable[[Sequence[int]], Sample | None] = lambda sessions: None,
) -> Measurement:
    return Measurement(workers, JOBS, patience=patience, clocks=clocks, pause_seconds=0)


def busy(*cores: float) -> Callable[[Sequence[int]], Sample | None]:
    """Clocks of a machine on which others keep so many cores busy in the first turn, the second, ..."""
    wall = busy = 0.0
    readings = []
    for share in cores:
        for _ in range(2):
            readings.append((wall, busy))
            wall, busy = wall + 1, busy + share
    left = iter(readings)

    def clocks(sessions: Sequence[int]) -> Sample:
        return Sample(*next(left), dict.fromkeys(sessions, 0.0))

    return clocks


def test_everybody_begins_equally_often() -> None:
    names = ["a", "b", "c"]
    orders = [rotated(names, by) for by in range(6)]
    assert Counter(order[0] for order in orders) == {"a": 2, "b": 2, "c": 2}
    assert all(sorted(order) == names for order in orders)


def test_systems_take_turns_job_by_job() -> None:
    log: list[str] = []
    turns = list(measurement({"x": Toy("x", log), "y": Toy("y", log)}).turns(2))
    assert log == ["x1", "y1", "y2", "x2", "x3", "y3", "y1", "x1", "x2", "y2", "y3", "x3"]
    assert [turn.repeat for turn in turns] == [0] * 6 + [1] * 6


def test_a_system_that_fails_takes_no_more_turns() -> None:
    log: list[str] = []
    run = measurement({"x": Toy("x", log, failing=[2]), "y": Toy("y", log)})
    assert Counter(turn.system for turn in run.turns(1)) == {"x": 1, "y": 3}
    assert run.failed == {"x": "broke"}
    assert log == ["x1", "y1", "y2", "x2", "y3"]


def test_a_system_that_fails_while_warming_up_is_not_measured() -> None:
    log: list[str] = []
    run = measurement({"x": Toy("x", log, failing=[1]), "y": Toy("y", log)})
    run.warm_up()
    assert log == ["x2", "y2", "y3"]
    assert {turn.system for turn in run.turns(1)} == {"y"}


def test_a_disturbed_turn_is_run_again_until_it_is_quiet() -> None:
    log: list[str] = []
    clocks = busy(0.75, 0.5, 0.0, 0.0, 0.0)
    turns = list(measurement({"x": Toy("x", log)}, patience=3, clocks=clocks).turns(1))
    assert log == ["x1", "x1", "x1", "x2", "x3"]
    assert [(turn.tries, turn.others) for turn in turns] == [(3, 0.0), (1, 0.0), (1, 0.0)]


def test_patience_ends_and_the_turn_counts_as_disturbed() -> None:
    log: list[str] = []
    turns = list(measurement({"x": Toy("x", log)}, patience=1, clocks=busy(*[0.75] * 6)).turns(1))
    assert log == ["x1", "x1", "x2", "x2", "x3", "x3"]
    assert [turn.others for turn in turns] == [0.75] * 3


def test_what_a_system_computes_itself_does_not_disturb_it() -> None:
    before = Sample(10.0, 100.0, {1: 5.0, 2: 7.0})
    after = Sample(12.0, 104.5, {1: 9.0, 2: 7.5})
    assert others_cores(before, after, 1) == 0.25
    assert others_cores(before, None, 1) is None


def test_steal_is_busy_and_waiting_for_a_disk_is_not() -> None:
    assert busy_ticks("cpu  1 2 4 1000 2000 8 16 32 500 500") == 63


def test_a_process_name_may_hold_spaces_and_brackets() -> None:
    fields = ["S", "1", "2", "77", "0", "-1", "0", "0", "0", "0", "0", "10", "20", "3", "4", "20", "0"]
    assert session_ticks(f"42 (a) b (c) {' '.join(fields)}") == (77, 37)

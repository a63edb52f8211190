"""What driver and worker say to each other, and a worker as a process of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from peers import client
from peers.client import Worker
from peers.protocol import Emit, Ready, Reply, Request, WorkerError, answer, decode_line, encode
from peers.systems import System


def clock(*times: float) -> Callable[[], float]:
    """A clock that gives these readings."""
    return iter(times).__next__


def decode_in(*steps: Sequence[int]) -> Callable[[Sequence[int], int, Emit], None]:
    """An engine that gives these tokens, step by step."""

    def decode(prompt: Sequence[int], max_tokens: int, emit: Emit) -> None:
        for step in steps:
            emit(step)

    return decode


@pytest.mark.parametrize("message", [Ready({"torch": "2"}), Request([1, 2], 3), Reply([4, 5], 0.5, 1, 0.75)])
def test_a_message_survives_the_line(message: Ready | Request | Reply) -> None:
    line = encode(message)
    assert "\n" not in line
    assert decode_line(line, type(message)) == message


def test_the_first_tokens_are_timed_apart() -> None:
    reply = answer(Request([9], 4), decode_in([1, 2], [3], [4]), clock(10.0, 12.0, 13.0, 15.0))
    assert reply == Reply([1, 2, 3, 4], first_seconds=2.0, num_first=2, seconds=5.0)


def test_a_step_without_tokens_is_not_the_first() -> None:
    reply = answer(Request([9], 2), decode_in([], [1], [2]), clock(0.0, 1.0, 2.0, 3.0))
    assert (reply.first_seconds, reply.num_first) == (2.0, 1)


@pytest.mark.parametrize("steps", [[[1], [2]], [[1, 2], [3, 4]], []])
def test_another_number_of_tokens_than_asked_for_is_an_error(steps: list[list[int]]) -> None:
    with pytest.raises(WorkerError, match="asked for 3 tokens"):
        answer(Request([9], 3), decode_in(*steps))


@pytest.mark.parametrize("line", ["", "no JSON", "[]", '{"first_seconds": 1}'])
def test_a_line_that_is_no_message_is_shown(line: str) -> None:
    with pytest.raises(WorkerError, match="expected a Reply"):
        decode_line(line, Reply)


def test_an_error_line_carries_its_text() -> None:
    with pytest.raises(WorkerError, match="^out of memory$"):
        decode_line('{"error": "out of memory"}', Reply)


WORKER = """
import os
import sys

sys.path.insert(0, {benchmarks!r})
from peers.protocol import serve


def load(options):
    print("loading ...")  # engines print to stdout as they like
    print(os.environ["WHERE"], file=sys.stderr)
    print(os.environ["OMP_NUM_THREADS"], "threads", file=sys.stderr)
    if options.get("broken"):
        raise MemoryError("no room")

    def decode(prompt, max_tokens, emit):
        if prompt == [0]:
            sys.exit("killed")
        for token in range(max_tokens):
            print("token", token)
            emit([prompt[0] + token])

    return decode


serve(load, ["pytest"])
"""


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Worker]]:
    """Starts workers that run `WORKER`, and closes them."""
    benchmarks = str(Path(client.__file__).parents[1])
    script = tmp_path / "python"
    script.write_text(
        f"#!{sys.executable}\nimport sys\nsys.argv[1:3] = []\n" + WORKER.format(benchmarks=benchmarks)
    )
    script.chmod(0o755)
    monkeypatch.setattr(client, "python_of", lambda name: script)
    workers: list[Worker] = []

    def start_one(**options: object) -> Worker:
        workers.append(Worker(System("toy", "toy", options, {"WHERE": "in {environment}"}), tmp_path))
        return workers[-1]

    yield start_one
    for worker in workers:
        worker.close()


def test_a_worker_answers_request_after_request(start: Callable[..., Worker]) -> None:
    worker = start()
    assert worker.ready.versions == {"pytest": pytest.__version__}
    assert worker.run(Request([5], 3)).token_ids == [5, 6, 7]
    assert worker.run(Request([1], 2)).token_ids == [1, 2]


def test_a_worker_that_cannot_load_says_why(start: Callable[..., Worker]) -> None:
    with pytest.raises(WorkerError, match="MemoryError: no room"):
        start(broken=True)


def test_a_worker_that_dies_leaves_the_last_line_of_its_log(start: Callable[..., Worker]) -> None:
    worker = start()
    with pytest.raises(WorkerError, match="last line of its log: killed"):
        worker.run(Request([0], 3))


def test_variables_may_name_the_environment(start: Callable[..., Worker], tmp_path: Path) -> None:
    start()
    assert f"in {tmp_path / 'toy'}\n" in (tmp_path / "logs" / "toy.log").read_text()


def test_a_limit_on_threads_in_the_callers_shell_does_not_reach_a_worker(
    start: Callable[..., Worker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "0")
    start()
    assert f"{os.cpu_count()} threads\n" in (tmp_path / "logs" / "toy.log").read_text()

"""Sharing of tasks: each is drawn once, and who waits for a stage sees all that it wrote."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from numba import njit, prange

from outrider.kernels.cpu.work import Team, done, draw, new_board, wait

GIVE_UP_S = 60.0  # so that a test that hangs fails


@njit(nogil=True)
def draw_all(board: Any, worker: int, stage: int, tasks_per_worker: int, owner: Any, order: Any) -> int:
    """Draw until no task is left; count each in `owner`, keep them in `order`, and return their number."""
    team = Team(board, worker, len(owner) // tasks_per_worker)
    num_drawn = 0
    task = draw(team, stage, tasks_per_worker)
    while task >= 0:
        owner[task] += 1
        order[num_drawn] = task
        num_drawn += 1
        done(team, stage)
        task = draw(team, stage, tasks_per_worker)
    return num_drawn


@njit(nogil=True)
def copy_after_stage(board: Any, num_tasks: int, written: Any, seen: Any) -> None:
    wait(Team(board, 0, 1), 0, num_tasks)
    for i in range(len(written)):
        seen[i] = written[i]


@njit(nogil=True)
def finish(board: Any) -> None:
    done(Team(board, 0, 1), 0)


@njit(parallel=True)
def two_stages(
    written: Any, noise: Any, read: Any, board: Any, num_workers: int, tasks_per_worker: int, step: int
) -> None:
    """Stage 0 writes `step` everywhere, its first task slowly; each task of stage 1 reads all of it."""
    board[:] = 0
    for worker in prange(num_workers):
        team = Team(board, worker, num_workers)
        task = draw(team, 0, tasks_per_worker)
        while task >= 0:
            value = step
            for _i in range(50_000 if task == 0 else 10):
                value = (value * 1103515245 + 12345) % 2147483648
            noise[task] = value  # or the loop would be left out
            written[task] = step
            done(team, 0)
            task = draw(team, 0, tasks_per_worker)
        wait(team, 0, tasks_per_worker)
        task = draw(team, 1, tasks_per_worker)
        while task >= 0:
            read[task] = written.min()
            done(team, 1)
            task = draw(team, 1, tasks_per_worker)


def in_threads(num_threads: int, target: Any) -> None:
    threads = [threading.Thread(target=target, args=(i,), daemon=True) for i in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(GIVE_UP_S)
        assert not thread.is_alive()


@pytest.mark.parametrize(("num_workers", "lines"), [(1, 2), (8, 2), (9, 3)])
def test_a_board_begins_at_a_cache_line_and_counts_what_is_done_on_a_line_of_its_own(
    num_workers: int, lines: int
) -> None:
    board = new_board(3, num_workers)
    assert board.shape == (3, lines, 8)
    assert board.strides[1] == 64
    assert board.ctypes.data % 64 == 0
    assert not board.any()


@pytest.mark.parametrize("num_threads", [1, 2, 3, 9])
def test_each_task_is_drawn_exactly_once(num_threads: int) -> None:
    tasks_per_worker = 2_000_000 // num_threads
    num_tasks = tasks_per_worker * num_threads
    board, owners = new_board(2, num_threads), np.zeros((num_threads, num_tasks), np.int8)
    orders = np.zeros((num_threads, num_tasks), np.int32)
    draw_all(new_board(2, 1), 0, 1, 1, np.zeros(1, np.int8), orders[0])  # compiled now
    drawn = [0] * num_threads
    together = threading.Barrier(num_threads)

    def work(thread: int) -> None:
        together.wait(GIVE_UP_S)
        drawn[thread] = draw_all(board, thread, 1, tasks_per_worker, owners[thread], orders[thread])

    in_threads(num_threads, work)
    assert (owners.sum(axis=0) == 1).all()
    assert sum(drawn) == num_tasks
    assert not board[0].any()  # another stage
    assert board[1, 0].tolist() == [num_tasks] + [0] * 7
    # Each owner's counter: its tasks, and at most one vain draw of every thread.
    counters = board[1, 1:].reshape(-1)
    assert (counters[:num_threads] >= tasks_per_worker).all()
    assert (counters[:num_threads] <= tasks_per_worker + num_threads).all()
    assert not counters[num_threads:].any()


def test_a_worker_does_its_own_tasks_first_and_then_those_of_the_next() -> None:
    order = np.zeros(12, np.int32)
    assert draw_all(new_board(1, 3), 1, 0, 4, np.zeros(12, np.int8), order) == 12
    assert order.tolist() == [4, 5, 6, 7, 8, 9, 10, 11, 0, 1, 2, 3]


def test_who_waits_goes_on_when_the_last_task_is_done_and_sees_what_was_written() -> None:
    written, seen = np.zeros(1000, np.int64), np.zeros(1000, np.int64)
    copy_after_stage(new_board(1, 1), 0, written, seen)  # compiled now; nothing to wait for
    finish(new_board(1, 1))
    for _ in range(20):
        board = new_board(1, 1)
        written[:], seen[:] = 0, -1
        thread = threading.Thread(target=copy_after_stage, args=(board, 3, written, seen), daemon=True)
        thread.start()
        for value in (1, 2):
            written[:] = value
            finish(board)
        thread.join(0.005)  # long enough to be done, if it did not wait
        assert thread.is_alive()
        written[:] = 3
        finish(board)
        thread.join(GIVE_UP_S)
        assert (seen == 3).all()


@pytest.mark.parametrize("num_workers", [1, 2, 3, 8, 40])
@pytest.mark.parametrize("tasks_per_worker", [1, 7, 40])
def test_a_stage_begins_when_the_one_before_is_done(num_workers: int, tasks_per_worker: int) -> None:
    """With more workers than threads, too: those that come late find nothing to do."""
    num_tasks = num_workers * tasks_per_worker
    board = new_board(2, num_workers)
    written, noise, read = (np.zeros(num_tasks, np.int64) for _ in range(3))
    for step in range(1, 100):
        two_stages(written, noise, read, board, num_workers, tasks_per_worker, step)
        assert (written == step).all()
        assert (read == step).all()
        assert board[:, 0, 0].tolist() == [num_tasks] * 2

"""Sharing of tasks: each is drawn once, and who waits for a stage sees all that it wrote."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from numba import njit, prange

from outrider.kernels.cpu.work import done, draw, new_board, wait

GIVE_UP_S = 60.0  # so that a test that hangs fails


@njit(nogil=True)
def draw_all(board: Any, stage: int, num_tasks: int, owner: Any) -> int:
    """Draw until no task is left; count each drawn task in `owner`, and return their number."""
    num_drawn = 0
    task = draw(board, stage)
    while task < num_tasks:
        owner[task] += 1
        num_drawn += 1
        done(board, stage)
        task = draw(board, stage)
    return num_drawn


@njit(nogil=True)
def copy_after_stage(board: Any, num_tasks: int, written: Any, seen: Any) -> None:
    wait(board, 0, num_tasks)
    for i in range(len(written)):
        seen[i] = written[i]


@njit(parallel=True)
def two_stages(written: Any, noise: Any, read: Any, board: Any, num_workers: int, step: int) -> None:
    """Stage 0 writes `step` everywhere, its first task slowly; each task of stage 1 reads all of it."""
    board[:] = 0
    for _ in prange(num_workers):
        task = draw(board, 0)
        while task < len(written):
            value = step
            for _i in range(50_000 if task == 0 else 10):
                value = (value * 1103515245 + 12345) % 2147483648
            noise[task] = value  # or the loop would be left out
            written[task] = step
            done(board, 0)
            task = draw(board, 0)
        wait(board, 0, len(written))
        task = draw(board, 1)
        while task < len(read):
            read[task] = written.min()
            done(board, 1)
            task = draw(board, 1)


def in_threads(num_threads: int, target: Any) -> None:
    threads = [threading.Thread(target=target, args=(i,), daemon=True) for i in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(GIVE_UP_S)
        assert not thread.is_alive()


def test_counters_lie_in_cache_lines_of_their_own() -> None:
    board = new_board(3)
    assert board.shape == (6, 8)
    assert board.strides[0] == 64
    assert not board.any()


@pytest.mark.parametrize("num_threads", [1, 2, 3, 8])
def test_each_task_is_drawn_exactly_once(num_threads: int) -> None:
    num_tasks = 2_000_000
    board, owners = new_board(2), np.zeros((num_threads, num_tasks), np.int8)
    draw_all(new_board(2), 1, 0, owners[0])  # compiled now
    drawn = [0] * num_threads
    together = threading.Barrier(num_threads)

    def work(thread: int) -> None:
        together.wait(GIVE_UP_S)
        drawn[thread] = draw_all(board, 1, num_tasks, owners[thread])

    in_threads(num_threads, work)
    assert (owners.sum(axis=0) == 1).all()
    assert sum(drawn) == num_tasks
    # Of stage 1: each thread draws once in vain; what was drawn is done. Stage 0 is another's.
    assert board[:, 0].tolist() == [0, 0, num_tasks + num_threads, num_tasks]
    assert not board[:, 1:].any()


def test_who_waits_goes_on_when_the_last_task_is_done_and_sees_what_was_written() -> None:
    written, seen = np.zeros(1000, np.int64), np.zeros(1000, np.int64)
    copy_after_stage(new_board(1), 0, written, seen)  # compiled now; nothing to wait for
    finish = njit(nogil=True)(lambda board: done(board, 0))
    finish(new_board(1))
    for _ in range(20):
        board = new_board(1)
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
@pytest.mark.parametrize("num_tasks", [1, 7, 300])
def test_a_stage_begins_when_the_one_before_is_done(num_workers: int, num_tasks: int) -> None:
    """With more workers than threads, too: those that come late find nothing to do."""
    board = new_board(2)
    written, noise, read = (np.zeros(n, np.int64) for n in (num_tasks, num_tasks, 64))
    for step in range(1, 100):
        two_stages(written, noise, read, board, num_workers, step)
        assert (written == step).all()
        assert (read == step).all()
        assert board[1::2, 0].tolist() == [num_tasks, 64]

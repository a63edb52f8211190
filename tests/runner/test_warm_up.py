"""Made-up requests: what they measure, and that nothing of them is left."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np
import pytest

from outrider.engine.outputs import SchedulerOutput
from outrider.runner.input_batch import InputBatch
from outrider.runner.warm_up import measure_verify_cost, warm_up


class Runner:
    """Takes down each plan, and takes a second per row."""

    def __init__(self, batch: InputBatch) -> None:
        self.batch = batch
        self.plans: list[SchedulerOutput] = []
        self.now = 0.0

    def execute(self, plan: SchedulerOutput) -> None:
        for new in plan.scheduled_new_reqs:
            self.batch.add(new)
        self.plans.append(plan)
        self.now += plan.total_num_scheduled_tokens

    def take_draft_token_ids(self, budgets: Any) -> None:
        assert not budgets

    def clock(self) -> float:
        return self.now


@pytest.fixture
def runner() -> Runner:
    return Runner(InputBatch(max_num_seqs=4, max_len=64, block_size=4, num_speculative_tokens=5))


def measure(
    runner: Runner, num_blocks: int = 99, seconds: float = 1e9, num_drafts: int = 5
) -> dict[int, float]:
    batch: Any = runner.batch
    any_runner: Any = runner
    return measure_verify_cost(
        any_runner, batch, num_drafts=num_drafts, num_blocks=num_blocks, seconds=seconds, clock=runner.clock
    )


def test_every_row_decides_a_token_and_no_request_has_too_many_drafts(runner: Runner) -> None:
    assert measure(runner) == {n: n for n in (1, 6, 2, 4, 16, 3, 12, 24)}
    for plan in runner.plans:
        for request_id, num_rows in plan.num_scheduled_tokens.items():
            assert 1 <= num_rows <= 6
            assert len(plan.scheduled_spec_decode_tokens.get(request_id, ())) == num_rows - 1


def test_requests_stand_in_different_rows_and_blocks_that_exist_and_leave(runner: Runner) -> None:
    measure(runner, num_blocks=5)
    assert max(plan.total_num_scheduled_tokens for plan in runner.plans) == 12
    for plan in runner.plans:
        block_ids = [block for new in plan.scheduled_new_reqs for block in new.block_ids]
        assert len(set(block_ids)) == len(block_ids)
        assert max(block_ids) < 5
        assert [new.state_index for new in plan.scheduled_new_reqs] == [*range(len(plan.scheduled_new_reqs))]
    assert not runner.batch.row_of


def test_a_slow_model_is_measured_once_where_it_matters_most(runner: Runner) -> None:
    assert list(measure(runner, seconds=0.0)) == [1, 6, 2, 4, 16]
    assert len(runner.plans) == 5


def test_the_least_time_counts(runner: Runner) -> None:
    extra: Iterator[int] = count(100, -1)
    execute = runner.execute

    def ever_faster(plan: SchedulerOutput) -> None:
        execute(plan)
        runner.now += next(extra)

    runner.execute = ever_faster  # type: ignore[method-assign]
    first = measure(runner)[1]
    assert first == 1 + 100 - 10  # one row is measured first in each of three rounds of five


def test_without_room_for_more_than_one_request_there_is_one(runner: Runner) -> None:
    assert list(measure(runner, num_blocks=1)) == [1, 6, 2, 4, 3]


def test_warming_up_runs_a_plain_row_and_a_full_draft(runner: Runner) -> None:
    any_runner: Any = runner
    warm_up(any_runner, runner.batch, num_drafts=5)
    warm_up(any_runner, runner.batch, num_drafts=0)
    assert [plan.total_num_scheduled_tokens for plan in runner.plans] == [1, 6, 1]
    assert not runner.batch.row_of
    assert isinstance(runner.batch.num_tokens, np.ndarray)

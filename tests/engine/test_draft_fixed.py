"""Lengths that depend on nothing, and lengths by batch size."""

from __future__ import annotations

import pytest

from outrider.engine.draft_fixed import FixedDrafts

from .fake_runner import oracle
from .harness import Harness


def test_a_fixed_number_is_asked_for_and_verified_in_full() -> None:
    policy = FixedDrafts([(1, 1, 4)])
    assert policy.budgets({"a": 9, "b": 2, "c": 0}) == {"a": 4, "b": 2, "c": 0}
    assert policy.lengths({"a": [1, 2, 3, 4], "b": []}, {}, 2) == {"a": 4, "b": 0}


@pytest.mark.parametrize(
    ("batch_size", "number"), [(1, 5), (2, 5), (3, 5), (4, 2), (8, 2), (15, 2), (16, 0), (64, 0), (65, 0)]
)
def test_a_table_gives_a_number_by_batch_size_and_a_gap_the_one_before_it(
    batch_size: int, number: int
) -> None:
    policy = FixedDrafts([(1, 2, 5), (4, 8, 2), (16, 64, 0)])
    room = {f"r{i}": 9 for i in range(batch_size)}
    assert policy.budgets(room) == dict.fromkeys(room, number)


def test_the_batch_size_is_that_of_the_step_to_come() -> None:
    policy = FixedDrafts([(1, 1, 3), (2, 8, 1)])
    harness = Harness(num_speculative_tokens=3, drafter=oracle(), draft_policy=policy)
    harness.add("short", [1, 2], max_tokens=2, seed=0)
    harness.add("long", [3, 4], max_tokens=12, seed=0)
    for _ in range(3):
        harness.step()
    # The short one ends in the second step, so the third is the long one's alone.
    assert harness.runner.budgets == [{"short": 0, "long": 1}, {"long": 3}, {"long": 3}]

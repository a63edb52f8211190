"""Counts and the rates that are made of them."""

from __future__ import annotations

import copy

from hypothesis import given
from hypothesis import strategies as st

from outrider.metrics.stats import EngineStats, SpecDecodeStats


def observed(*steps: tuple[int, int, int]) -> SpecDecodeStats:
    stats = SpecDecodeStats()
    for drafted, accepted, emitted in steps:
        stats.observe(num_draft_tokens=drafted, num_accepted_tokens=accepted, num_emitted_tokens=emitted)
    return stats


def test_acceptance_per_position_is_out_of_the_drafts_that_reached_it() -> None:
    stats = observed((1, 1, 2), (3, 3, 4), (3, 1, 2), (0, 0, 1))
    assert stats.num_drafts == 3
    assert (stats.num_draft_tokens, stats.num_accepted_tokens) == (7, 5)
    assert stats.num_draft_tokens_per_pos == [3, 2, 2]
    assert stats.num_accepted_tokens_per_pos == [3, 1, 1]
    assert stats.acceptance_rate_per_pos == [1.0, 0.5, 0.5]
    assert stats.acceptance_rate == 5 / 7


def test_mean_acceptance_length_is_over_the_steps_that_verified_drafts() -> None:
    stats = observed((0, 0, 1), (2, 2, 3), (2, 0, 1), (0, 0, 1))
    assert stats.num_emitted_tokens == 6
    assert stats.num_verified_tokens == 4
    assert stats.mean_acceptance_length == 2.0


def test_tokens_behind_the_end_of_a_request_count_nowhere() -> None:
    # Four drafts, all right, but the second accepted one ended the request.
    stats = observed((4, 2, 2))
    assert stats.mean_acceptance_length == 2.0
    assert stats.num_accepted_tokens_per_pos == [1, 1, 0, 0]


def test_nothing_is_divided_by_zero() -> None:
    stats = observed((0, 0, 1))
    assert stats.acceptance_rate is None
    assert stats.mean_acceptance_length is None
    assert stats.acceptance_rate_per_pos == []


step = st.integers(0, 6).flatmap(
    lambda drafted: st.tuples(st.just(drafted), st.integers(0, drafted), st.integers(1, 7))
)


@given(before=st.lists(step, max_size=8), after=st.lists(step, max_size=8))
def test_since_gives_what_happened_in_between(
    before: list[tuple[int, int, int]], after: list[tuple[int, int, int]]
) -> None:
    stats = EngineStats(spec=observed(*before), num_steps=len(before))
    earlier = copy.deepcopy(stats)
    stats.spec = observed(*before, *after)
    stats.num_steps += len(after)
    stats.model_seconds, earlier.model_seconds = 3.0, 1.0
    stats.num_trimmed_draft_tokens, earlier.num_trimmed_draft_tokens = 9, 4
    stats.num_shadow_drafts, earlier.num_shadow_drafts = 3, 1
    stats.num_finished["stop"] += 1
    stats.num_skipped_drafts["max_tokens"] += 2
    stats.num_running = 5
    difference = stats.since(earlier)
    expected = observed(*after)
    padding = len(stats.spec.num_draft_tokens_per_pos) - len(expected.num_draft_tokens_per_pos)
    expected.num_draft_tokens_per_pos += [0] * padding
    expected.num_accepted_tokens_per_pos += [0] * padding
    assert difference == EngineStats(
        spec=expected,
        num_steps=len(after),
        model_seconds=2.0,
        num_trimmed_draft_tokens=5,
        num_shadow_drafts=2,
        num_finished=stats.num_finished,
        num_skipped_drafts=stats.num_skipped_drafts,
        num_running=5,
    )
    assert len(difference.spec.acceptance_rate_per_pos) == len(stats.spec.num_draft_tokens_per_pos)

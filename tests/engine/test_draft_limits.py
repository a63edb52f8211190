"""Nobody is asked for drafts that there is no room for."""

from __future__ import annotations

import pytest

from outrider.api import ProposerCapabilities, SamplingParams

from .fake_runner import oracle
from .harness import Harness, plain


@pytest.mark.parametrize("max_tokens", [1, 2, 99])
@pytest.mark.parametrize("k", range(1, 11))
def test_length_limits_hold_at_every_prompt_and_draft_length(k: int, max_tokens: int) -> None:
    harness = Harness(max_model_len=32, num_speculative_tokens=k, drafter=oracle(), max_num_seqs=12)
    for length in range(20, 32):
        harness.add(f"r{length}", list(range(length)), max_tokens=max_tokens, seed=0)
    outputs = harness.run()
    for length in range(20, 32):
        completion = outputs[f"r{length}"].outputs[0]
        truth = plain(list(range(length)), SamplingParams(max_tokens=max_tokens), 0, max_len=32)
        assert completion.token_ids == truth.token_ids
        assert len(completion.token_ids) == min(max_tokens, 32 - length)
        assert completion.finish_reason == "length"
    harness.assert_clean()


def test_budgets_count_down_with_what_is_left() -> None:
    harness = Harness(num_speculative_tokens=4)
    harness.add("r", [1, 2], max_tokens=7, seed=0)
    harness.run()
    assert [budgets["r"] for budgets in harness.runner.budgets] == [4, 4, 3, 2, 1, 0]
    assert harness.stats.num_skipped_drafts == {"max_tokens": 1}


def test_a_drafter_with_a_shorter_context_is_not_asked_beyond_it() -> None:
    harness = Harness(
        num_speculative_tokens=3,
        drafter=oracle(),
        capabilities=ProposerCapabilities(max_positions=16),
    )
    harness.add("long", list(range(20)), max_tokens=10, seed=0)
    harness.add("short", [1, 2, 3], max_tokens=30, seed=0)
    outputs = harness.run()
    for name, prompt in (("long", list(range(20))), ("short", [1, 2, 3])):
        params = SamplingParams(max_tokens=10 if name == "long" else 30)
        assert outputs[name].outputs[0].token_ids == plain(prompt, params, 0, max_len=64).token_ids
    assert [b["long"] for b in harness.runner.budgets if "long" in b] == [0] * 9
    assert outputs["long"].metrics.num_drafts == 0
    budgets = [b["short"] for b in harness.runner.budgets if "short" in b]
    assert budgets == [3, 3, 3, *[0] * (len(budgets) - 3)]  # at 4, 8 and 12 tokens; then there are 16
    assert outputs["short"].metrics.num_draft_tokens == 9
    assert harness.stats.num_skipped_drafts == {"max_positions": 8 + len(budgets) - 4, "max_tokens": 2}
    harness.assert_clean()


def test_the_proposers_own_maximum_counts() -> None:
    harness = Harness(num_speculative_tokens=5, capabilities=ProposerCapabilities(max_draft_tokens=2))
    harness.add("r", [1, 2], max_tokens=9)
    harness.step()
    assert harness.runner.budgets == [{"r": 2}]


def test_an_unfinished_prompt_gets_no_budget_but_is_no_skip() -> None:
    harness = Harness(num_speculative_tokens=3, max_num_batched_tokens=4)
    harness.add("r", list(range(10)), max_tokens=9)
    for _ in range(3):
        harness.step()
    assert harness.runner.budgets == [{"r": 0}, {"r": 0}, {"r": 3}]
    assert not harness.stats.num_skipped_drafts


def test_a_finished_request_gets_no_budget() -> None:
    harness = Harness(num_speculative_tokens=3)
    harness.add("one", [1, 2], max_tokens=1)
    harness.add("two", [1, 2], max_tokens=9)
    harness.step()
    assert harness.runner.budgets == [{"two": 3}]


def test_an_aborted_request_gets_no_budget_and_its_drafts_are_dropped() -> None:
    harness = Harness(num_speculative_tokens=3, drafter=oracle())
    harness.add("r", [1, 2], max_tokens=9)
    harness.add("s", [1, 2], max_tokens=9)
    harness.step(abort_before_drafting=["r"])
    assert harness.runner.budgets == [{"s": 3}]
    harness.engine.post_step()
    assert len(harness.runner.budgets) == 1


def test_without_a_proposer_nobody_is_asked() -> None:
    harness = Harness()
    harness.add("r", [1, 2], max_tokens=9)
    harness.run()
    assert harness.runner.budgets == []


def test_drafts_beyond_the_budget_are_cut() -> None:
    harness = Harness(num_speculative_tokens=3, drafter=lambda history, seed, budget: [1] * 9)
    harness.add("r", [1, 2], max_tokens=9)
    harness.step()
    assert len(harness.scheduler.requests["r"].spec_token_ids) == 3

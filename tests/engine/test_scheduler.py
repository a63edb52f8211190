"""What goes into a step, in which order, and what has to wait."""

from __future__ import annotations

import pytest

from outrider.api import ConfigError, ProposerCapabilities

from .fake_runner import oracle
from .harness import Harness


def rows(harness: Harness) -> list[dict[str, int]]:
    """Rows per request, step by step."""
    return [dict(plan.num_scheduled_tokens) for plan in harness.runner.plans]


def test_prompts_are_cut_to_the_token_budget_and_go_on_in_the_next_step() -> None:
    harness = Harness(max_num_batched_tokens=8)
    harness.add("a", list(range(5)), max_tokens=3)
    harness.add("b", list(range(10, 22)), max_tokens=2)
    harness.run()
    assert rows(harness) == [{"a": 5, "b": 3}, {"a": 1, "b": 7}, {"a": 1, "b": 2}, {"b": 1}]
    harness.assert_clean()


def test_without_chunked_prefill_a_prompt_is_scheduled_whole_or_not_at_all() -> None:
    harness = Harness(max_num_batched_tokens=16, max_model_len=16, enable_chunked_prefill=False)
    harness.add("a", list(range(5)), max_tokens=3)
    harness.add("b", list(range(10, 24)), max_tokens=1)
    harness.add("c", [1], max_tokens=1)
    harness.run()
    assert rows(harness) == [{"a": 5}, {"a": 1, "b": 14, "c": 1}, {"a": 1}]
    harness.assert_clean()


def test_without_chunked_prefill_every_prompt_must_fit_a_step() -> None:
    with pytest.raises(
        ConfigError, match=r"max_num_batched_tokens=15 is below the longest possible prompt \(16\)"
    ):
        Harness(max_num_batched_tokens=15, max_model_len=16, enable_chunked_prefill=False)


def test_the_batch_is_those_that_run_then_those_that_enter() -> None:
    harness = Harness()
    harness.add("b", [1, 2], max_tokens=4)
    harness.step()
    harness.add("a", [3, 4], max_tokens=4)
    harness.step()
    plan = harness.runner.plans[1]
    assert list(plan.num_scheduled_tokens) == ["b", "a"]
    assert [cached.request_id for cached in plan.scheduled_cached_reqs] == ["b"]
    assert [new.request_id for new in plan.scheduled_new_reqs] == ["a"]


def test_first_come_first_served_within_max_num_seqs() -> None:
    harness = Harness(max_num_seqs=2)
    for name, max_tokens in (("a", 2), ("b", 1), ("c", 1), ("d", 1)):
        harness.add(name, [1, 2], max_tokens=max_tokens)
    harness.run()
    assert [list(step) for step in rows(harness)] == [["a", "b"], ["a", "c"], ["d"]]
    assert (harness.stats.num_running, harness.stats.num_waiting) == (0, 0)


def test_nobody_overtakes_a_request_that_waits_for_blocks() -> None:
    harness = Harness(num_blocks=4, block_size=4, max_model_len=16, enable_prefix_caching=False)
    harness.add("a", list(range(9)), max_tokens=2)
    harness.add("big", list(range(8)), max_tokens=1)
    harness.add("small", [1], max_tokens=1)
    harness.run()
    assert [list(step) for step in rows(harness)] == [["a"], ["a"], ["big", "small"]]


def test_drafts_are_the_last_rows_and_are_cut_to_the_token_budget() -> None:
    harness = Harness(num_speculative_tokens=5, drafter=oracle(), max_num_batched_tokens=4)
    harness.add("a", [1, 2], max_tokens=20, seed=0)
    harness.step()
    harness.step()
    plan = harness.runner.plans[1]
    assert plan.num_scheduled_tokens == {"a": 4}
    assert len(plan.scheduled_spec_decode_tokens["a"]) == 3
    assert [len(plan.scheduled_spec_decode_tokens.get("a", ())) for plan in harness.runner.plans] == [0, 3]


def test_drafts_leave_a_row_for_everybody() -> None:
    harness = Harness(num_speculative_tokens=5, drafter=oracle(), max_num_batched_tokens=6)
    for name in ("a", "b", "c"):
        harness.add(name, [1, 2], max_tokens=20, seed=0)
    harness.step()
    harness.step()
    assert rows(harness)[1] == {"a": 4, "b": 1, "c": 1}


def test_drafts_live_for_one_step() -> None:
    harness = Harness(num_speculative_tokens=2, drafter=oracle(), max_num_batched_tokens=2)
    harness.add("a", [1, 2], max_tokens=20, seed=0)
    harness.add("b", [1, 2], max_tokens=20, seed=0)
    harness.step()
    harness.scheduler.requests["a"].spec_token_ids = [1, 2]
    harness.scheduler.schedule()
    assert harness.scheduler.requests["a"].spec_token_ids == []


def test_rejected_drafts_are_computed_again_and_never_found_in_the_prefix_cache() -> None:
    harness = Harness(block_size=2, num_speculative_tokens=3, drafter=oracle(wrong_at=range(100)))
    harness.add("a", [1, 2, 3], max_tokens=4, seed=0)
    harness.run()
    assert rows(harness) == [{"a": 3}, {"a": 3}, {"a": 2}, {"a": 1}]
    starts = [c.num_computed_tokens for plan in harness.runner.plans for c in plan.scheduled_cached_reqs]
    assert starts == [3, 4, 5]
    wrong = [1, 2, 3, *harness.runner.plans[1].scheduled_spec_decode_tokens["a"]]
    first = harness.outputs["a"].outputs[0].token_ids[0]
    harness.add("b", [1, 2, 3, first, *wrong[3:], 0], max_tokens=1, seed=0)
    assert harness.run()["b"].num_cached_tokens == 4
    harness.assert_clean()


def test_a_prefix_hit_skips_rows_and_is_reported() -> None:
    harness = Harness(block_size=4)
    harness.add("a", list(range(10)), max_tokens=1)
    harness.add("b", list(range(10)), max_tokens=1)
    harness.run()
    harness.add("c", list(range(10)), max_tokens=1)
    outputs = harness.run()
    assert rows(harness) == [{"a": 10, "b": 10}, {"c": 2}]
    assert outputs["c"].num_cached_tokens == 8
    assert (harness.stats.num_prompt_tokens, harness.stats.num_cached_tokens) == (30, 8)


def test_output_tokens_are_found_in_the_prefix_cache_too() -> None:
    harness = Harness(block_size=4, num_speculative_tokens=3, drafter=oracle())
    harness.add("a", list(range(6)), max_tokens=8, seed=0)
    output = harness.run()["a"].outputs[0].token_ids
    harness.add("b", [*range(6), *output, 1, 2], max_tokens=1)
    assert harness.run()["b"].num_cached_tokens == 12


def test_the_blocks_of_the_last_step_are_not_found_if_a_drafter_did_not_see_them() -> None:
    harness = Harness(
        block_size=4,
        num_speculative_tokens=3,
        drafter=oracle(),
        capabilities=ProposerCapabilities(own_kv=True),
    )
    harness.add("a", list(range(6)), max_tokens=8, seed=0)
    output = harness.run()["a"].outputs[0].token_ids
    harness.add("b", [*range(6), *output, 1, 2], max_tokens=4, seed=0)
    assert harness.run()["b"].num_cached_tokens == 8
    harness.assert_clean()


def test_a_drafter_that_looks_one_token_ahead_finds_its_own_kv_right_behind_a_prefix_hit() -> None:
    # Its entry of token 3 was computed with the 9 that followed then, so the block that ends there is computed again.
    harness = Harness(
        block_size=4,
        num_speculative_tokens=2,
        drafter=oracle(),
        capabilities=ProposerCapabilities(own_kv=True, hidden_states=True),
    )
    harness.add("a", [0, 1, 2, 3, 9, 9, 9, 9, 9], max_tokens=5, seed=0)
    harness.run()
    harness.add("b", [0, 1, 2, 3, 4, 5], max_tokens=5, seed=0)
    harness.add("c", [0, 1, 2, 3, 9, 9, 9, 9, 4], max_tokens=5, seed=0)
    outputs = harness.run()
    assert (outputs["b"].num_cached_tokens, outputs["c"].num_cached_tokens) == (0, 4)
    harness.assert_clean()


def test_lookahead_reserves_blocks_for_a_drafters_own_kv_but_not_beyond_the_longest_request() -> None:
    harness = Harness(
        block_size=4,
        max_model_len=16,
        num_speculative_tokens=6,
        drafter=oracle(),
        capabilities=ProposerCapabilities(own_kv=True),
    )
    harness.add("a", [1, 2, 3], max_tokens=30, seed=0)
    harness.step()
    assert len(harness.scheduler.requests["a"].block_ids) == 3  # 3 tokens + 6
    harness.step()
    assert len(harness.scheduler.requests["a"].block_ids) == 4  # 3 + 1 + 6 + 6, but 16 is the end
    harness.run()
    harness.assert_clean()


def test_an_empty_engine_plans_nothing() -> None:
    harness = Harness()
    assert harness.step() == []
    assert harness.runner.plans == []
    harness.add("a", [1], max_tokens=1)
    harness.run()
    assert harness.step() == []
    # What ended is told with the next plan that is run.
    harness.add("b", [1], max_tokens=1)
    harness.run()
    assert [plan.finished_req_ids for plan in harness.runner.plans] == [frozenset(), frozenset({"a"})]

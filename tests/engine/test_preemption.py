"""Requests that lose their blocks come back and say the same."""

from __future__ import annotations

import pytest

from outrider.api import ProposerCapabilities, SamplingParams

from .fake_runner import oracle
from .harness import Harness, plain

PROMPTS = {"a": [1, 2, 3, 4, 5], "b": [6, 7, 8, 9]}


def truth(name: str, max_tokens: int) -> list[int]:
    return plain(PROMPTS[name], SamplingParams(max_tokens=max_tokens), 0, max_len=64).token_ids


@pytest.mark.parametrize("own_kv", [False, True])
@pytest.mark.parametrize("k", [0, 1, 3])
def test_two_requests_that_do_not_both_fit(k: int, own_kv: bool) -> None:
    harness = Harness(
        num_blocks=6,
        block_size=4,
        num_speculative_tokens=k,
        drafter=oracle(wrong_at=range(8, 64, 3)),
        capabilities=ProposerCapabilities(own_kv=own_kv),
    )
    for name, prompt in PROMPTS.items():
        harness.add(name, prompt, max_tokens=14, seed=0)
    outputs = harness.run()
    for name in PROMPTS:
        assert outputs[name].outputs[0].token_ids == truth(name, 14)
    assert harness.stats.num_preemptions > 0
    assert harness.stats.num_prompt_tokens == 9
    assert harness.events.names("a") == ["added", "finished"]
    assert harness.events.names("b") == ["added", "preempted"] * harness.stats.num_preemptions + [
        "added",
        "finished",
    ]
    harness.assert_clean()


@pytest.mark.parametrize("prefix_caching", [False, True])
@pytest.mark.parametrize("step", range(1, 8))
def test_a_preemption_at_any_step_with_drafts_in_flight(step: int, prefix_caching: bool) -> None:
    harness = Harness(
        num_blocks=80,
        block_size=1,
        num_speculative_tokens=3,
        drafter=oracle(wrong_at=[11, 14, 15]),
        enable_prefix_caching=prefix_caching,
    )
    for name, prompt in PROMPTS.items():
        harness.add(name, prompt, max_tokens=30, seed=0)
    for _ in range(step):
        harness.step()
    assert harness.scheduler.requests["b"].spec_token_ids
    pool = harness.kv_cache.pool
    stolen = pool.allocate(pool.num_free_blocks)
    while not harness.runner.plans[-1].preempted_req_ids:
        harness.step()
    pool.free(stolen)
    assert harness.runner.plans[-1].preempted_req_ids == {"b"}
    assert harness.scheduler.requests["b"].spec_token_ids == []
    before = len(harness.events.committed("b"))
    harness.step()
    resumed = harness.runner.plans[-1].scheduled_new_reqs[0]
    assert resumed.token_ids == PROMPTS["b"] + truth("b", before)
    assert resumed.num_prompt_tokens == 4
    assert ("added", "b", resumed.token_ids) in harness.events.log
    outputs = harness.run()
    for name in PROMPTS:
        assert outputs[name].outputs[0].token_ids == truth(name, 30)
        assert outputs[name].num_cached_tokens == 0  # what a resumed request finds is its own
    harness.assert_clean()


def test_the_last_admitted_goes_first_and_the_first_admitted_comes_back_first() -> None:
    harness = Harness(num_blocks=12, block_size=1, max_model_len=12)
    for index, name in enumerate("abcd"):
        harness.add(name, [index, index], max_tokens=7)
    harness.run()
    events = [(event, name) for event, name, _ in harness.events.log if event in ("added", "preempted")]
    assert events[:9] == [
        *[("added", "a"), ("added", "b"), ("added", "c"), ("added", "d")],
        *[("preempted", "d"), ("preempted", "c"), ("preempted", "b")],
        *[("added", "b"), ("added", "c")],
    ]
    harness.assert_clean()


def test_no_request_enters_in_a_step_that_preempts() -> None:
    harness = Harness(num_blocks=6, block_size=4, num_speculative_tokens=3, drafter=oracle())
    for name, prompt in PROMPTS.items():
        harness.add(name, prompt, max_tokens=14, seed=0)
    harness.add("c", [1], max_tokens=3)
    harness.run()
    assert any(plan.preempted_req_ids for plan in harness.runner.plans)
    for plan in harness.runner.plans:
        assert not (plan.preempted_req_ids and plan.scheduled_new_reqs)


def test_drafts_are_given_up_before_a_request_is_preempted() -> None:
    # Without drafts both fit until b is done. Five drafts of a would take the block that b needs.
    harness = Harness(
        num_blocks=4, block_size=4, num_speculative_tokens=5, drafter=oracle(wrong_at=range(64))
    )
    harness.add("a", PROMPTS["a"], max_tokens=10, seed=0)
    harness.add("b", PROMPTS["b"], max_tokens=3, seed=0)
    outputs = harness.run()
    assert harness.stats.num_preemptions == 0
    with_drafts = [list(plan.scheduled_spec_decode_tokens) for plan in harness.runner.plans]
    assert with_drafts[:4] == [[], ["b"], [], ["a"]]
    assert outputs["a"].outputs[0].token_ids == truth("a", 10)
    assert outputs["b"].outputs[0].token_ids == truth("b", 3)
    harness.assert_clean()


@pytest.mark.parametrize("k", [1, 4, 9])
def test_one_request_can_fill_the_whole_cache_whatever_its_drafter_wants(k: int) -> None:
    harness = Harness(
        num_blocks=4,
        block_size=4,
        num_speculative_tokens=k,
        drafter=oracle(),
        capabilities=ProposerCapabilities(own_kv=True),
    )
    harness.add("a", PROMPTS["a"], max_tokens=99, seed=0)
    completion = harness.run(max_steps=30)["a"].outputs[0]
    assert completion.token_ids == truth("a", 11)
    assert completion.finish_reason == "length"
    assert harness.stats.num_preemptions == 0
    harness.assert_clean()


def test_a_drafter_with_its_own_kv_gets_no_budget_beyond_its_blocks() -> None:
    harness = Harness(
        num_blocks=3,
        block_size=4,
        max_model_len=12,
        num_speculative_tokens=3,
        drafter=oracle(),
        capabilities=ProposerCapabilities(own_kv=True),
    )
    harness.add("a", [1, 2, 3, 4, 5], max_tokens=7, seed=0)
    harness.add("b", [6, 7, 8, 9], max_tokens=7, seed=0)
    harness.step()
    # Five tokens and three of lookahead make two blocks; the third is b's, whose tokens fill it.
    assert harness.runner.budgets == [{"a": 3, "b": 0}]
    assert harness.stats.num_skipped_drafts == {"kv_blocks": 1}
    harness.run()
    harness.assert_clean()

"""Kind 14: a request loses its place while drafts are in flight, and comes back."""

from collections import Counter

import pytest

from outrider import SamplingParams
from outrider.testing.harness import Harness
from outrider.testing.proposers import OracleProposer, ScheduleProposer, SelfProposer

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPTS = [[1, 2, 3, 4, 5], [9, 8, 7]]
K = 3


def sampled(temperature, max_tokens):
    return [SamplingParams(temperature=temperature, seed=seed, max_tokens=max_tokens) for seed in (42, 43)]


@pytest.fixture(scope="module", params=[0.0, 1.0], ids=["greedy", "sampled"])
def temperature(request):
    return request.param


@pytest.fixture(scope="module")
def unconstrained(tiny, temperature):
    """Long output per prompt; a shorter request gets the beginning of it."""
    return Harness(tiny).tokens(PROMPTS, sampled(temperature, 24))


def build(model, proposer, unconstrained, **settings):
    options = {"on_proposer_error": "raise"}
    if proposer is not SelfProposer:
        truth = [p + tokens for p, tokens in zip(PROMPTS, unconstrained, strict=True)]
        options |= {"truth": truth, "wrong_at": [9, 15]}
    if proposer is ScheduleProposer:
        options["schedule"] = [3, 0, 2]
    return Harness(model, proposer, num_speculative_tokens=K, options=options, **settings)


def check_life_cycle(events, outputs):
    """Added, then any number of preemptions each followed by a return with all tokens so far, then finished once."""
    for output in outputs:
        tokens, state, final = list(output.prompt_token_ids), "new", output.outputs[0].token_ids
        for hook, request_id, token_ids in events:
            if request_id != output.request_id:
                continue
            if hook == "request_added":
                assert state in ("new", "preempted")
                assert list(token_ids) == tokens
                state = "running"
            elif hook == "tokens_committed":
                assert state == "running"
                tokens += token_ids
            else:
                assert state == "running"
                state = {"request_preempted": "preempted", "request_finished": "finished"}[hook]
        assert state == "finished"
        assert tokens == list(output.prompt_token_ids) + final


@pytest.mark.parametrize("proposer", [None, OracleProposer, ScheduleProposer, SelfProposer])
@pytest.mark.parametrize("max_tokens", range(12, 17))
def test_two_requests_that_do_not_both_fit(tiny, temperature, unconstrained, proposer, max_tokens):
    harness = build(tiny, proposer, unconstrained, num_kv_blocks=6)
    outputs = harness.generate(PROMPTS, sampled(temperature, max_tokens))
    assert [o.outputs[0].token_ids for o in outputs] == [tokens[:max_tokens] for tokens in unconstrained]
    assert harness.llm.stats.num_preemptions > 0
    assert harness.num_free_blocks == 6
    check_life_cycle(harness.spy.events, outputs)


@pytest.mark.parametrize("proposer", [OracleProposer, ScheduleProposer, SelfProposer])
@pytest.mark.parametrize("step", range(1, 6))
def test_preempted_at_any_step(tiny, temperature, unconstrained, proposer, step):
    """With one token per block every step needs blocks: take all free ones away behind this step until it happens."""
    harness = build(tiny, proposer, unconstrained, block_size=1)
    pool = harness.core.scheduler.kv_cache.pool
    num_steps, taken = 0, []

    def take_blocks(core):
        nonlocal num_steps
        num_steps += 1
        if num_steps > step and not core.stats.num_preemptions:
            taken.extend(pool.allocate(pool.num_free_blocks))
        elif taken:
            pool.free(taken)
            taken.clear()

    outputs = harness.generate(PROMPTS, sampled(temperature, 24), take_blocks)
    assert [o.outputs[0].token_ids for o in outputs] == unconstrained
    assert harness.llm.stats.num_preemptions == 1
    assert harness.num_free_blocks == 64
    check_life_cycle(harness.spy.events, outputs)


def test_a_request_that_comes_back_is_all_new_to_the_proposer(tiny, unconstrained, temperature):
    harness = build(tiny, OracleProposer, unconstrained, num_kv_blocks=6)
    harness.generate(PROMPTS, sampled(temperature, 16))
    returns = Counter(request_id for hook, request_id, _ in harness.spy.events if hook == "request_preempted")
    for request_id, num_preemptions in returns.items():
        seen = [record for record in harness.spy.proposals if record.request_id == request_id]
        firsts = [record for record in seen if record.num_new_tokens == len(record.token_ids)]
        assert len(firsts) == 1 + num_preemptions
    assert returns


def test_an_abandoned_stream_gives_everything_back(tiny, unconstrained, temperature):
    harness = build(tiny, SelfProposer, unconstrained)
    for _ in harness.llm.stream({"prompt_token_ids": PROMPTS[0]}, sampled(temperature, 24)[0]):
        break
    assert harness.num_free_blocks == 64
    assert [hook for hook, _, _ in harness.spy.events].count("request_finished") == 1
    assert harness.tokens(PROMPTS, sampled(temperature, 24)) == unconstrained

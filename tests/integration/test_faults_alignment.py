"""Kind 25: token, hidden row and position belong together, so a drafter that is its target is never wrong."""

import pytest

from outrider import SamplingParams
from outrider.testing.harness import Harness
from outrider.testing.proposers import SelfProposer

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPTS = [[1, 2, 3], [(5 * i + 1) % 64 for i in range(11)], [40]]
LENGTH = 26


def sampled(temperature=0.0, **others):
    return [
        SamplingParams(temperature=temperature, seed=seed, max_tokens=LENGTH, **others) for seed in range(3)
    ]


@pytest.fixture(scope="module")
def plain(tiny):
    return {t: Harness(tiny).tokens(PROMPTS, sampled(t)) for t in (0.0, 1.3)}


def build(model, k, **settings):
    return Harness(
        model,
        SelfProposer,
        num_speculative_tokens=k,
        options={"on_proposer_error": "raise"},
        **{"num_kv_blocks": 96} | settings,
    )


def assert_accepted_in_full(harness, num_runs=1):
    """Every draft was accepted, and drafts were as long as the budgets allow."""
    spec = harness.llm.stats.spec
    assert spec.num_draft_tokens == spec.num_accepted_tokens > 0
    for seen in harness.spy.proposals:
        assert len(seen.drafts) == seen.draft_budget
    assert spec.num_emitted_tokens == num_runs * len(PROMPTS) * LENGTH


@pytest.mark.parametrize("temperature", [0.0, 1.3])
@pytest.mark.parametrize("k", range(1, 9))
def test_the_target_as_its_own_drafter_is_accepted_in_full(tiny, plain, k, temperature):
    harness = build(tiny, k)
    assert harness.tokens(PROMPTS, sampled(temperature)) == plain[temperature]
    assert_accepted_in_full(harness)
    # One token of the prompt's step, then k + 1 per step.
    assert harness.llm.stats.num_steps == 1 + -(-(LENGTH - 1) // (k + 1))


@pytest.mark.parametrize("filters", [{"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.1}, {"min_tokens": 20}])
def test_also_with_every_sampling_parameter(tiny, filters):
    params = sampled(1.0, stop_token_ids=(7, 8, 9, 10, 11), **filters)
    harness = build(tiny, 4)
    assert harness.tokens(PROMPTS, params) == Harness(tiny).tokens(PROMPTS, params)
    spec = harness.llm.stats.spec
    assert harness.llm.stats.spec.num_draft_tokens > 0
    ended_inside = sum(tokens[-1] in (7, 8, 9, 10, 11) for tokens in Harness(tiny).tokens(PROMPTS, params))
    assert spec.num_draft_tokens - spec.num_accepted_tokens <= 4 * ended_inside


@pytest.mark.parametrize("temperature", [0.0, 1.3])
@pytest.mark.parametrize("num_batched_tokens", [8, 11, 13])
def test_also_when_prompts_come_in_chunks(tiny, plain, temperature, num_batched_tokens):
    harness = build(tiny, 2, max_num_batched_tokens=num_batched_tokens)
    assert harness.tokens(PROMPTS, sampled(temperature)) == plain[temperature]
    assert_accepted_in_full(harness)
    assert any(
        seen.num_rows < 11 and seen.num_computed_tokens + seen.num_rows < 11 for seen in harness.spy.proposals
    )


@pytest.mark.parametrize("temperature", [0.0, 1.3])
@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("k", [1, 3, 4])
def test_also_after_a_preemption(tiny, plain, k, temperature, prefix_caching):
    harness = build(tiny, k, num_kv_blocks=14, enable_prefix_caching=prefix_caching)
    assert harness.tokens(PROMPTS, sampled(temperature)) == plain[temperature]
    assert_accepted_in_full(harness)
    assert harness.llm.stats.num_preemptions > 0


@pytest.mark.parametrize("k", [1, 3, 8])
def test_also_after_a_prefix_hit(tiny, plain, k):
    """The drafter's own KV of a shared block must be there as well: of a prompt, and of an earlier answer."""
    harness = build(tiny, k)
    assert harness.tokens(PROMPTS, sampled()) == plain[0.0]
    outputs = harness.generate(PROMPTS, sampled())
    assert [o.outputs[0].token_ids for o in outputs] == plain[0.0]
    assert [o.num_cached_tokens for o in outputs] == [0, 8, 0]
    assert_accepted_in_full(harness, num_runs=2)
    longer = [prompt + tokens for prompt, tokens in zip(PROMPTS, plain[0.0], strict=True)]
    before = harness.llm.stats.spec.num_draft_tokens
    outputs = harness.generate(longer, sampled())
    assert all(o.num_cached_tokens >= len(p) - 12 for o, p in zip(outputs, longer, strict=True))
    assert_accepted_in_full(harness, num_runs=3)
    assert harness.llm.stats.spec.num_draft_tokens > before


@pytest.mark.parametrize("k", [2, 5])
def test_no_stale_entry_is_read_by_target_or_drafter(tiny, plain, k):
    harness = build(tiny, k, num_kv_blocks=20)
    assert harness.tokens(PROMPTS, sampled(1.3), harness.poison) == plain[1.3]
    assert_accepted_in_full(harness)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_first_layers_draft_something_else_and_do_no_harm(tiny, temperature):
    harness = Harness(
        tiny, SelfProposer, options={"num_layers": 1, "on_proposer_error": "raise"}, num_kv_blocks=18
    )
    assert harness.tokens(PROMPTS, sampled(temperature), harness.poison) == Harness(tiny).tokens(
        PROMPTS, sampled(temperature)
    )
    spec = harness.llm.stats.spec
    assert 0 < spec.num_accepted_tokens < spec.num_draft_tokens

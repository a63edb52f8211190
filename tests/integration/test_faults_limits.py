"""Kinds 11 and 12: no more tokens than allowed, no position out of range, a drafter with a shorter context."""

import pytest

from outrider import SamplingParams, hookimpl
from outrider.api import ProposerCapabilities
from outrider.testing.harness import Harness
from outrider.testing.proposers import OracleProposer, SelfProposer

pytestmark = pytest.mark.usefixtures("one_thread")

MAX_LEN = 32
LONGEST = [(7 * i + 3) % 64 for i in range(31)]
PROMPTS = [LONGEST[:length] for length in range(20, 32)]
LIMITS = (1, 2, 99)


def greedy(max_tokens):
    return SamplingParams(temperature=0, max_tokens=max_tokens)


@pytest.fixture(scope="module")
def plain(tiny):
    """Output per prompt, up to the model's length."""
    harness = Harness(tiny, max_model_len=MAX_LEN, num_kv_blocks=128, max_num_seqs=36)
    return harness.tokens(PROMPTS, greedy(99))


@pytest.mark.parametrize("k", range(1, 11))
@pytest.mark.parametrize("proposer", [OracleProposer, SelfProposer])
def test_lengths_positions_and_budgets_are_exact(tiny, plain, proposer, k):
    options = {}
    if proposer is OracleProposer:
        # It knows more than fits: whatever limits the drafts, it is not the proposer.
        options["truth"] = [p + tokens + [1] * 20 for p, tokens in zip(PROMPTS, plain, strict=True)]
    harness = Harness(
        tiny,
        proposer,
        num_speculative_tokens=k,
        options={**options, "on_proposer_error": "raise"},
        max_model_len=MAX_LEN,
        num_kv_blocks=8 * 36,
        max_num_seqs=36,
    )
    batch = [prompt for prompt in PROMPTS for _ in LIMITS]
    outputs = harness.generate(batch, [greedy(limit) for _ in PROMPTS for limit in LIMITS])

    for i, output in enumerate(outputs):
        expected = plain[i // 3][: LIMITS[i % 3]]
        assert output.outputs[0].token_ids == expected
        assert output.outputs[0].finish_reason == "length"
        assert len(batch[i]) + len(expected) <= MAX_LEN
        assert LIMITS[i % 3] == 99 or len(expected) == min(LIMITS[i % 3], MAX_LEN - len(batch[i]))
    for forward in harness.spy.forwards:
        assert max(forward.positions) < MAX_LEN
    limits = {output.request_id: LIMITS[i % 3] for i, output in enumerate(outputs)}
    prompts = {output.request_id: len(batch[i]) for i, output in enumerate(outputs)}
    for seen in harness.spy.proposals:
        num_tokens = len(seen.token_ids)
        room = min(limits[seen.request_id] + prompts[seen.request_id], MAX_LEN) - num_tokens
        assert seen.draft_budget == max(min(k, room - 1), 0)
    assert harness.num_free_blocks == 8 * 36


class NearSighted(OracleProposer):
    """An oracle with a context of 16 tokens."""

    @hookimpl
    def capabilities(self):
        return ProposerCapabilities(max_positions=16)


def test_a_request_beyond_the_drafters_context_goes_on_undrafted_and_the_others_still_draft(tiny):
    prompts = [LONGEST[:20], LONGEST[:4], LONGEST[:14]]
    params = greedy(30)
    truth = [p + t for p, t in zip(prompts, Harness(tiny).tokens(prompts, params), strict=True)]
    harness = Harness(tiny, NearSighted, options={"truth": truth}, max_model_len=64)
    outputs = harness.generate(prompts, params)
    assert [p + o.outputs[0].token_ids for p, o in zip(prompts, outputs, strict=True)] == truth

    drafted = [output.metrics.num_draft_tokens for output in outputs]
    assert drafted[0] == 0
    # From 5 tokens on, drafts of 4 and their bonus: up to 10 and 15 tokens, then one draft up to position 16.
    assert drafted[1] == 4 + 4 + 1
    assert drafted[2] == 1
    for seen in harness.spy.proposals:
        assert len(seen.token_ids) + seen.draft_budget <= max(16, len(seen.token_ids))
    # Request-steps at 17 or more tokens (21 for the first), without the one behind which only one token is left.
    assert harness.llm.stats.num_skipped_drafts["max_positions"] == (29 - 1) + (17 - 1) + (27 - 1)


def test_a_top_k_beyond_any_vocabulary_keeps_all_of_it(tiny):
    sampled = SamplingParams(temperature=1.0, seed=5, max_tokens=8)
    huge = sampled.model_copy(update={"top_k": 10**12})
    once, again = Harness(tiny).tokens([[1, 2, 3], [1, 2, 3]], [sampled, huge])
    assert once == again

"""Kinds 7, 8 and 9: seeds, distributions, and sampling parameters that both sides see."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from outrider import SamplingParams, hookimpl
from outrider.api import DraftTokens, ProposerCapabilities, ProposerError
from outrider.testing.distribution import assert_distribution
from outrider.testing.harness import Harness
from outrider.testing.proposers import (
    FixedDistributionProposer,
    HostileProposer,
    OracleProposer,
    RandomProposer,
    SelfProposer,
)

pytestmark = pytest.mark.usefixtures("one_thread")

MINE, OTHERS = [1, 2, 3], [[9, 9], [30, 31, 32, 33]]
SEEDED = SamplingParams(temperature=1.0, seed=42, max_tokens=20)
UNSEEDED = SamplingParams(temperature=1.0, max_tokens=20)
VOCAB = 64


@pytest.fixture(scope="module")
def alone(tiny):
    return Harness(tiny).tokens([MINE], SEEDED)[0]


def proposers(alone):
    return [
        (None, {}),
        (OracleProposer, {"truth": [MINE + alone], "wrong_at": [6, 11]}),
        (SelfProposer, {}),
        (RandomProposer, {}),
    ]


def test_a_seed_decides_in_any_company_and_with_any_drafter(tiny, alone):
    for proposer, options in proposers(alone):
        harness = Harness(tiny, proposer, options=options)
        assert harness.tokens([MINE], SEEDED) == [alone]
        for place in range(3):
            batch, params = [*OTHERS], [UNSEEDED, UNSEEDED]
            batch.insert(place, MINE)
            params.insert(place, SEEDED)
            assert harness.tokens(batch, params)[place] == alone


def test_a_seed_decides_after_a_preemption(tiny, alone):
    for proposer, options in proposers(alone):
        # The last of two is the one that is preempted.
        harness = Harness(tiny, proposer, options=options, num_kv_blocks=7, enable_prefix_caching=False)
        outputs = harness.generate([OTHERS[1], MINE], [UNSEEDED, SEEDED])
        assert outputs[1].outputs[0].token_ids == alone
        assert ("request_preempted", outputs[1].request_id, ()) in harness.spy.events


def test_unseeded_requests_differ_and_report_a_seed_that_repeats_them(tiny):
    harness = Harness(tiny, SelfProposer)
    first, second = harness.generate([MINE, MINE], UNSEEDED)
    assert first.outputs[0].token_ids != second.outputs[0].token_ids
    assert first.seed != second.seed
    for output in (first, second):
        again = UNSEEDED.model_copy(update={"seed": output.seed})
        assert Harness(tiny).tokens([MINE], again) == [output.outputs[0].token_ids]


def test_the_engines_seed_decides_what_unseeded_requests_draw(tiny):
    outputs = [Harness(tiny, seed=seed).tokens([MINE, MINE], UNSEEDED) for seed in (1, 1, 2)]
    assert outputs[0] == outputs[1] != outputs[2]


@pytest.fixture(scope="module")
def model(tiny):
    return AutoModelForCausalLM.from_pretrained(tiny).eval()


def second_token_distribution(model):
    """Exact probabilities of the second output token, all first tokens weighed in."""
    first = model(torch.tensor([MINE])).logits[0, -1].double().softmax(-1)
    continued = torch.tensor([[*MINE, token] for token in range(VOCAB)])
    return (first @ model(continued).logits[:, -1].double().softmax(-1)).tolist()


@pytest.mark.parametrize("verification", ["coupled", "rejection"])
@pytest.mark.parametrize("proposer", [FixedDistributionProposer, RandomProposer])
def test_the_distribution_of_a_verified_token_is_the_models(tiny, model, verification, proposer):
    """The first token is sampled, the second is verified: a draft that was accepted, or what replaced it."""
    options = {"verification": verification}
    if proposer is FixedDistributionProposer:
        options["probs"] = [1.0 + token % 7 for token in range(VOCAB)]
    harness = Harness(
        tiny, proposer, num_speculative_tokens=1, options=options, max_num_seqs=64, num_kv_blocks=128
    )
    # A third token leaves room for a draft of the second; nothing is asked of it.
    params = SamplingParams(temperature=1.0, max_tokens=3)
    outputs = harness.tokens([MINE] * 3000, params)
    assert_distribution([tokens[1] for tokens in outputs], second_token_distribution(model))
    spec = harness.llm.stats.spec
    assert spec.num_drafts == 3000
    assert spec.num_accepted_tokens > 20


class ThirdBest:
    """Always drafts the target's third best token, with all its probability there."""

    outrider_api = 1
    model = None

    @hookimpl
    def capabilities(self):
        return ProposerCapabilities(probs=True)

    @hookimpl
    def propose(self, context):
        drafts = [self.third_best(r.token_ids.tolist())[: r.draft_budget] for r in context.requests]
        return DraftTokens(token_ids=drafts, probs=[torch.eye(VOCAB)[draft] for draft in drafts])

    def third_best(self, tokens):
        return [int(self.model(torch.tensor([tokens])).logits[0, -1].argsort()[-3])]


@pytest.mark.parametrize("verification", ["coupled", "rejection"])
def test_a_token_outside_top_k_is_never_emitted_however_sure_the_drafter_is(tiny, model, verification):
    class Proposer(ThirdBest):
        pass

    Proposer.model = model
    harness = Harness(
        tiny,
        Proposer,
        num_speculative_tokens=1,
        options={"verification": verification},
        max_num_seqs=50,
        num_kv_blocks=600,
    )
    outputs = harness.generate([MINE] * 50, SamplingParams(temperature=1.0, top_k=2, max_tokens=41))
    assert harness.llm.stats.spec.num_draft_tokens == 50 * 39
    assert harness.llm.stats.spec.num_accepted_tokens == 0
    with torch.no_grad():
        sequences = torch.tensor([MINE + output.outputs[0].token_ids for output in outputs])
        best_two = model(sequences).logits[:, len(MINE) - 1 : -1].argsort(-1)[..., -2:]
    emitted = sequences[:, len(MINE) :]
    assert (best_two == emitted[..., None]).any(-1).all()


def test_promised_probabilities_that_are_missing_are_the_plugins_fault(tiny):
    harness = Harness(
        tiny,
        HostileProposer,
        options={"mode": "probs_missing", "on_proposer_error": "raise", "verification": "rejection"},
    )
    with pytest.raises(ProposerError, match=r"proposer 'HostileProposer' .*did not return `probs`"):
        harness.generate([MINE], SEEDED)

"""Kind 17: a model whose layers keep a state, in which a token that is not undone changes all that follows."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from outrider import SamplingParams
from outrider.api import PluginError
from outrider.testing.harness import Harness
from outrider.testing.proposers import OracleProposer, RandomProposer, ScheduleProposer
from outrider.testing.recurrent import advance
from outrider.testing.recurrent_backend import ForgetfulRecurrentBackend, ToyRecurrentBackend

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPTS = [[1, 2, 3], [40, 41, 42, 43, 44, 45, 46], [63]]
SCHEDULE = [3, 0, 2, 0, 5, 0, 1]
LAYER = "model.layers.0.mixer"


def build(model, proposer=None, k=5, **others):
    return Harness(
        model, proposer, num_speculative_tokens=k, **{"attention_backend": ToyRecurrentBackend} | others
    )


def truth_of(model, params):
    tokens = build(model).tokens(PROMPTS, params)
    return [prompt + answer for prompt, answer in zip(PROMPTS, tokens, strict=True)]


def check_states(harness):
    """Return a function that compares the state of every running request with a replay of its computed tokens."""
    state = harness.caches[LAYER]["state"]
    batch = harness.core.runner._batch

    def check(core):
        for request in core.scheduler.running:
            row = request.state_index
            slot = batch.state_slots[row, batch.num_accepted_tokens[row] - 1]
            computed = request.token_ids[: request.num_computed_tokens]
            assert int(state[slot]) == advance(0, computed)[-1]

    return check


def test_plain_decoding_is_the_recurrence(recurrent):
    params = SamplingParams(temperature=0, max_tokens=12)
    model = AutoModelForCausalLM.from_pretrained(recurrent)
    for prompt, whole in zip(PROMPTS, truth_of(recurrent, params), strict=True):
        ids = torch.tensor([prompt])
        assert model.generate(ids, max_new_tokens=12, do_sample=False, use_cache=False)[0].tolist() == whole


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("wrong_at", [(), (5,), (6, 8), (7, 12, 13), range(3, 60, 4), range(60)])
def test_accepted_and_rejected_drafts_followed_by_empty_ones(recurrent, temperature, wrong_at):
    params = SamplingParams(temperature=temperature, seed=5, max_tokens=40)
    truth = truth_of(recurrent, params)
    options = {
        "truth": truth,
        "schedule": SCHEDULE,
        "wrong_at": list(wrong_at),
        "on_proposer_error": "raise",
    }
    harness = build(recurrent, ScheduleProposer, options=options)
    outputs = harness.generate(PROMPTS, params, check_states(harness))
    assert [p + o.outputs[0].token_ids for p, o in zip(PROMPTS, outputs, strict=True)] == truth
    drafted = {n for forward in harness.spy.forwards for n in forward.num_draft_tokens}
    assert {0, 1, 2, 3, 5} <= drafted


@pytest.mark.parametrize("k", [1, 2, 3])
def test_chunked_prompts_preemption_and_the_same_prompt_again(recurrent, k):
    """The state of a prefix is not kept, so the prefix cache must not claim it is."""
    params = SamplingParams(temperature=0, max_tokens=24)
    truth = truth_of(recurrent, params)
    harness = build(
        recurrent,
        OracleProposer,
        k,
        options={"truth": truth, "wrong_at": [9, 14, 15, 21]},
        max_num_batched_tokens=8,
        max_num_seqs=3,
        num_kv_blocks=9,
    )
    for _ in range(2):
        outputs = harness.generate(PROMPTS, params, check_states(harness))
        assert [p + o.outputs[0].token_ids for p, o in zip(PROMPTS, outputs, strict=True)] == truth
        assert [output.num_cached_tokens for output in outputs] == [0, 0, 0]
    assert harness.llm.stats.num_preemptions > 0


def test_idle_slots_are_never_read(recurrent):
    params = SamplingParams(temperature=0, max_tokens=30)
    truth = truth_of(recurrent, params)
    options = {"truth": truth, "schedule": SCHEDULE, "wrong_at": list(range(4, 60, 5))}
    harness = build(recurrent, ScheduleProposer, options=options)
    assert harness.tokens(PROMPTS, params, harness.poison) == [
        whole[len(prompt) :] for prompt, whole in zip(PROMPTS, truth, strict=True)
    ]


@pytest.mark.parametrize("verification", ["coupled", "rejection"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_random_drafts_are_accepted_about_one_time_in_the_vocabulary(recurrent, verification, temperature):
    """A verifier that accepts too much would hide behind a good drafter."""
    prompts = [[i, i + 1] for i in range(8)]
    params = [SamplingParams(temperature=temperature, seed=i, max_tokens=200) for i in range(8)]
    harness = build(recurrent, RandomProposer, options={"verification": verification}, num_kv_blocks=8 * 64)
    outputs = harness.tokens(prompts, params)
    spec = harness.llm.stats.spec
    assert 0.4 / 64 < spec.acceptance_rate_per_pos[0] < 2.5 / 64
    assert spec.num_emitted_tokens == 8 * 200
    if temperature == 0.0 or verification == "coupled":
        assert outputs == build(recurrent, num_kv_blocks=8 * 64).tokens(prompts, params)


def test_a_state_that_cannot_be_rewound_is_refused_at_load(recurrent):
    with pytest.raises(PluginError, match="cannot be rewound"):
        build(recurrent, RandomProposer, attention_backend=ForgetfulRecurrentBackend)
    params = SamplingParams(temperature=0, max_tokens=12)
    plain = build(recurrent, attention_backend=ForgetfulRecurrentBackend)
    assert plain.tokens(PROMPTS, params) == build(recurrent).tokens(PROMPTS, params)

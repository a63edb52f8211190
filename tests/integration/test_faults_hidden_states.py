"""Kind 25 again: a proposer gets exactly the hidden rows of the committed tokens, each with its position."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from outrider import SamplingParams
from outrider.api import PluginError
from outrider.testing.harness import Harness
from outrider.testing.proposers import HiddenStateProposer

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPTS = [[1, 2, 3], [(5 * i + 1) % 64 for i in range(11)], [40]]
LENGTH = 26
SETTINGS = {
    "together": {},
    "chunked": {"max_num_batched_tokens": 13},
    "preempted": {"num_kv_blocks": 14},
    "queued": {"max_num_seqs": 2},
}


@pytest.fixture(scope="module")
def expected(tiny):
    """Function: token ids -> hidden states that enter layer 0, 1 and leave layer 1, and those after the final norm."""
    model = AutoModelForCausalLM.from_pretrained(tiny).eval()
    before_norm = []
    model.model.layers[-1].register_forward_hook(lambda _, __, output: before_norm.append(output))

    def run(tokens):
        with torch.no_grad():
            embedded, between, after_norm = model(
                torch.tensor([tokens]), output_hidden_states=True
            ).hidden_states
        return [rows.reshape(len(tokens), -1) for rows in (embedded, between, before_norm.pop(), after_norm)]

    return run


def sampled(temperature):
    return [SamplingParams(temperature=temperature, seed=seed, max_tokens=LENGTH) for seed in range(3)]


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_are_those_of_the_committed_tokens(tiny, expected, temperature, settings):
    layers = (0, 1, 2)
    harness = Harness(
        tiny,
        HiddenStateProposer,
        options={"aux_hidden_layers": layers, "on_proposer_error": "raise"},
        **settings,
    )
    outputs = harness.generate(PROMPTS, sampled(temperature))
    assert [o.outputs[0].token_ids for o in outputs] == Harness(tiny).tokens(PROMPTS, sampled(temperature))
    assert (harness.llm.stats.num_preemptions > 0) is ("num_kv_blocks" in settings)

    seen_by = harness.proposer
    for output in outputs:
        *aux, last = expected([*output.prompt_token_ids, *output.outputs[0].token_ids])
        recorded = seen_by.hidden_states[output.request_id]
        assert len(recorded) >= LENGTH - 5
        for position, row in recorded.items():
            torch.testing.assert_close(row, last[position], atol=1e-4, rtol=0)
        for layer, rows in zip(layers, aux, strict=True):
            of_layer = seen_by.aux_hidden_states[layer][output.request_id]
            assert of_layer.keys() == recorded.keys()
            for position, row in of_layer.items():
                torch.testing.assert_close(row, rows[position], atol=1e-4, rtol=0)


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_last_row_says_the_newest_token(tiny, temperature, settings):
    harness = Harness(tiny, HiddenStateProposer, options={"on_proposer_error": "raise"}, **settings)
    harness.generate(PROMPTS, sampled(temperature))
    said, newest = zip(*harness.proposer.newest_tokens, strict=True)
    assert said == newest
    assert len(newest) > LENGTH
    assert harness.llm.stats.spec.num_draft_tokens > 0


def test_a_layer_that_the_target_does_not_have_is_refused_with_both_numbers(tiny):
    with pytest.raises(PluginError, match=r"layer 3.*layers 0\.\.1"):
        Harness(tiny, HiddenStateProposer, options={"aux_hidden_layers": (3,)})

"""Kind 24: whatever a proposer returns or raises, every request gets the model's text and the plugin gets the blame."""

import logging

import pytest
import torch

from outrider import SamplingParams, hookimpl
from outrider.api import DraftTokens, PluginError, ProposerError
from outrider.testing.harness import Harness
from outrider.testing.proposers import (
    HARMLESS_MODES,
    HOSTILE_MODES,
    HostileProposer,
    OracleProposer,
    RandomProposer,
)

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPTS = [[1, 2, 3], [9, 8, 7, 6, 5]]
PARAMS = SamplingParams(temperature=1.0, seed=8, max_tokens=10)
BAD_DRAFTS = [mode for mode in HOSTILE_MODES if mode != "life_cycle_raises"]


@pytest.fixture(scope="module")
def plain(tiny):
    return Harness(tiny).tokens(PROMPTS, PARAMS)


def build(model, mode, **options):
    return Harness(model, HostileProposer, options={"mode": mode, **options})


@pytest.mark.parametrize("verification", ["coupled", "rejection"])
@pytest.mark.parametrize("mode", BAD_DRAFTS)
def test_bad_drafts_are_dropped_before_anything_is_built_from_them(tiny, plain, mode, verification, caplog):
    harness = build(tiny, mode, verification=verification)
    with caplog.at_level(logging.WARNING):
        assert harness.tokens(PROMPTS, PARAMS) == plain
    stats = harness.llm.stats
    assert stats.num_plugin_errors >= harness.proposer.num_calls > 0
    assert stats.spec.num_draft_tokens == 0
    assert all(not forward.draft_token_ids for forward in harness.spy.forwards)
    assert "HostileProposer" in caplog.text
    assert stats.num_finished == {"length": 2}
    assert harness.num_free_blocks == 64


@pytest.mark.parametrize("mode", BAD_DRAFTS)
def test_the_policy_raise_names_the_plugin_and_the_engine_stays_usable(tiny, mode):
    harness = build(tiny, mode, on_proposer_error="raise")
    with pytest.raises(ProposerError, match="HostileProposer") as caught:
        harness.generate(PROMPTS, PARAMS)
    assert caught.value.plugin == "HostileProposer"
    assert harness.num_free_blocks == 64
    assert not harness.core.has_unfinished_requests()
    assert len(harness.tokens([PROMPTS[0]], SamplingParams(temperature=0, max_tokens=1))[0]) == 1


@pytest.mark.parametrize("mode", HARMLESS_MODES)
def test_odd_but_valid_drafts_are_taken(tiny, plain, mode):
    harness = build(tiny, mode, on_proposer_error="raise")
    assert harness.tokens(PROMPTS, PARAMS) == plain
    assert harness.llm.stats.num_plugin_errors == 0
    assert (harness.llm.stats.spec.num_draft_tokens > 0) is (mode != "empty_array")


def test_a_life_cycle_that_raises_is_counted_and_nothing_else(tiny, plain):
    harness = build(tiny, "life_cycle_raises")
    assert harness.tokens(PROMPTS, PARAMS) == plain
    # Added, ten times advanced, finished; both requests.
    assert harness.plugins.num_lifecycle_errors["HostileProposer"] == 2 * 12
    assert harness.core.stats.num_plugin_errors == 2 * 12
    assert harness.num_free_blocks == 64


class Unprintable(Exception):
    def __str__(self):
        raise ValueError("no text")


class RaisesUnprintable:
    outrider_api = 1

    @hookimpl
    def propose(self):
        raise Unprintable

    @hookimpl
    def tokens_committed(self):
        raise Unprintable


def test_an_exception_without_a_text_is_an_error_like_any_other(tiny, plain):
    harness = Harness(tiny, RaisesUnprintable)
    assert harness.tokens(PROMPTS, PARAMS) == plain
    assert harness.core.stats.num_plugin_errors > 0


class HalfBad(HostileProposer):
    """Right for every request but the first."""

    class Options(HostileProposer.Options):
        truth: list[list[int]]

    def __init__(self, options):
        super().__init__(HostileProposer.Options(mode=options.mode))
        self._oracle = OracleProposer(OracleProposer.Options(truth=options.truth))

    @hookimpl
    def propose(self, context):
        bad = super().propose(context)
        good = self._oracle.propose(context)
        return DraftTokens(token_ids=[*bad.token_ids[:1], *good.token_ids[1:]])


def test_other_requests_keep_their_drafts(tiny, plain):
    truth = [prompt + tokens for prompt, tokens in zip(PROMPTS, plain, strict=True)]
    harness = Harness(tiny, HalfBad, options={"mode": "id_too_large", "truth": truth})
    outputs = harness.generate(PROMPTS, PARAMS)
    assert [output.outputs[0].token_ids for output in outputs] == plain
    assert [output.metrics.num_accepted_tokens for output in outputs] == [0, 7]


def test_an_unknown_mode_is_a_configuration_error(tiny):
    with pytest.raises((PluginError, ValueError), match="unknown mode"):
        build(tiny, "polite")


class WritingProposer(RandomProposer):
    """Writes to the token ids that it may only read, by ways that numpy's flag does not close."""

    @hookimpl
    def propose(self, context):
        for request in context.requests:
            torch.from_numpy(request.token_ids).zero_()
            request.token_ids.base[:] = 1
        return super().propose(context)


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_no_forward_reads_what_a_proposer_can_write_to(tiny, plain):
    assert Harness(tiny, WritingProposer).tokens(PROMPTS, PARAMS) == plain

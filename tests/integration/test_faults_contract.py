"""What an engine refuses at load, and what no forward may ever read."""

import pytest

from outrider import SamplingParams, hookimpl
from outrider.api import DraftTokens, PluginError, ProposerCapabilities
from outrider.testing.harness import Harness
from outrider.testing.proposers import OracleProposer, RandomProposer, ScheduleProposer

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPTS = [[1, 2, 3], [(5 * i + 1) % 64 for i in range(11)], [40]]


class Trees:
    """Drafts two candidates for the next token."""

    outrider_api = 1

    @hookimpl
    def capabilities(self):
        return ProposerCapabilities(trees=True)

    @hookimpl
    def propose(self, context):
        return DraftTokens(
            token_ids=[[1, 2] for _ in context.requests], parents=[[-1, -1] for _ in context.requests]
        )


def test_a_proposer_of_trees_is_refused_at_load(tiny):
    with pytest.raises(PluginError, match=r"proposer 'Trees'.*trees.*chains only"):
        Harness(tiny, Trees)


class TwoHeads(RandomProposer):
    """Can draft two tokens."""

    @hookimpl
    def capabilities(self):
        return ProposerCapabilities(max_draft_tokens=2)


def test_more_drafts_than_the_proposer_has_heads_are_refused_at_load(tiny):
    with pytest.raises(PluginError, match=r"at most 2 tokens.*num_speculative_tokens is 5"):
        Harness(tiny, TwoHeads, num_speculative_tokens=5)
    harness = Harness(tiny, TwoHeads, num_speculative_tokens=2)
    params = SamplingParams(temperature=0, max_tokens=8)
    assert harness.tokens(PROMPTS, params) == Harness(tiny).tokens(PROMPTS, params)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("num_kv_blocks", [64, 15], ids=["roomy", "preempting"])
@pytest.mark.parametrize("proposer", [OracleProposer, ScheduleProposer])
def test_poisoned_caches_change_nothing(tiny, proposer, temperature, num_kv_blocks):
    params = [SamplingParams(temperature=temperature, seed=i, max_tokens=24) for i in range(3)]
    plain = Harness(tiny).tokens(PROMPTS, params)
    options = {
        "truth": [p + tokens for p, tokens in zip(PROMPTS, plain, strict=True)],
        "wrong_at": list(range(5, 40, 6)),
    }
    if proposer is ScheduleProposer:
        options["schedule"] = [3, 0, 2, 0, 4, 0, 1]
    harness = Harness(tiny, proposer, options=options, num_kv_blocks=num_kv_blocks)
    for _ in range(2):  # the second time from the prefix cache
        assert harness.tokens(PROMPTS, params, harness.poison) == plain
    assert (harness.llm.stats.num_preemptions > 0) is (num_kv_blocks == 15)
    assert harness.llm.stats.num_cached_tokens > 0
    assert harness.num_free_blocks == num_kv_blocks

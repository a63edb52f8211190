"""Adaptive drafting in a real engine: other lengths, the same text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outrider import LLM, SamplingParams, hookimpl
from outrider.api import DraftTokens, ProposeContext, ProposerCapabilities
from outrider.engine.draft_adaptive import AdaptiveDrafts
from outrider.engine.draft_fixed import FixedDrafts
from outrider.testing.harness import Harness
from outrider.testing.proposers import RandomProposer, SelfProposer
from outrider.testing.torch_attention import TorchAttentionBackend

PROMPTS = [[1, 2, 3, 4, 5, 6, 7], [9], [11, 12, 13, 14, 15], [5, 6] * 6]


def params(temperature: float, max_tokens: int = 24) -> SamplingParams:
    return SamplingParams(temperature=temperature, seed=3, max_tokens=max_tokens, ignore_eos=True)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("proposer", [SelfProposer, RandomProposer])
def test_the_text_is_that_of_plain_decoding(tiny: Path, proposer: type, temperature: float) -> None:
    plain = Harness(tiny).tokens(PROMPTS, params(temperature))
    harness = Harness(tiny, proposer, num_speculative_tokens=6, options={"adaptive": True})
    for _ in range(2):
        assert harness.tokens(PROMPTS, params(temperature)) == plain
        assert [harness.tokens([prompt], params(temperature))[0] for prompt in PROMPTS] == plain
    assert harness.core.stats.num_plugin_errors == 0


def test_a_wrong_drafter_is_trimmed(tiny: Path) -> None:
    harness = Harness(tiny, RandomProposer, num_speculative_tokens=6, options={"adaptive": True})
    harness.tokens([PROMPTS[0]] * 4, params(0.0, max_tokens=120))
    stats = harness.core.stats
    assert stats.spec.num_draft_tokens < 0.2 * 6 * stats.spec.num_emitted_tokens
    assert stats.num_trimmed_draft_tokens > 0
    assert stats.num_shadow_drafts > 0


@pytest.mark.parametrize(
    ("options", "policy"),
    [
        ({}, FixedDrafts),
        ({"adaptive": True}, AdaptiveDrafts),
        ({"num_speculative_tokens_per_batch_size": [(1, 1, 3), (2, 8, 0)]}, FixedDrafts),
    ],
)
def test_the_configuration_decides_who_decides(tiny: Path, options: dict[str, Any], policy: type) -> None:
    harness = Harness(tiny, RandomProposer, options=options)
    assert type(harness.core.scheduler.drafts.policy) is policy


@pytest.mark.parametrize(
    ("options", "alone", "both"),
    [({}, 4, 4), ({"num_speculative_tokens_per_batch_size": [(1, 1, 3), (2, 8, 0)]}, 3, 0)],
)
def test_a_fixed_number_is_for_all_and_a_table_goes_by_the_batch(
    tiny: Path, options: dict[str, Any], alone: int, both: int
) -> None:
    policy = Harness(tiny, RandomProposer, options=options).core.scheduler.drafts.policy
    assert policy.budgets({"a": 9}) == {"a": alone}
    assert policy.budgets({"a": 9, "b": 9}) == {"a": both, "b": both}


class Recording(RandomProposer):
    """Takes down the budgets; drafts two tokens at most."""

    Options = RandomProposer.Options

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.budgets: list[list[int]] = []

    @hookimpl
    def capabilities(self) -> ProposerCapabilities:
        return ProposerCapabilities(max_draft_tokens=2)

    @hookimpl
    def propose(self, context: ProposeContext) -> DraftTokens:
        self.budgets.append([request.draft_budget for request in context.requests])
        return super().propose(context)


def test_a_table_drafts_for_one_request_and_not_for_two(tiny: Path) -> None:
    table = {"num_speculative_tokens_per_batch_size": [(1, 1, 2), (2, 8, 0)]}
    harness = Harness(tiny, Recording, num_speculative_tokens=2, options=table)
    harness.tokens([PROMPTS[0]], params(0.0, max_tokens=9))
    assert harness.proposer.budgets[:3] == [[2]] * 3
    harness.proposer.budgets.clear()
    harness.tokens(PROMPTS[:2], params(0.0, max_tokens=9))
    assert harness.proposer.budgets == []


def test_a_default_length_bows_to_what_the_proposer_can_draft(tiny: Path) -> None:
    speculative = {"method": Recording, "adaptive": False}
    with LLM(str(tiny), attention_backend=TorchAttentionBackend, speculative_config=speculative) as llm:
        [output] = llm.generate([{"prompt_token_ids": PROMPTS[0]}], params(0.0), use_tqdm=False)
        assert len(llm.stats.spec.num_draft_tokens_per_pos) == 2
    assert len(output.outputs[0].token_ids) == 24

"""Tests that every proposer has to pass. A plugin's own test module inherits them:

    from outrider.testing.conformance import ProposerConformance

    class TestMyDrafter(ProposerConformance):
        proposer = MyDrafter
        options = {"window": 8}

They run the tiny transformer with and without the proposer, and want the same tokens. Nothing here asks whether the
drafts are any good.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from ..api import SamplingParams
from .harness import Harness
from .tiny_models import VOCAB_SIZE

PROMPTS = ([1, 2, 3, 1, 2, 3, 1, 2], [7], [(5 * i + 1) % VOCAB_SIZE for i in range(19)], [4, 4, 4])


@pytest.mark.usefixtures("one_thread")
class ProposerConformance:
    """Inherit, and name the proposer.

    Attributes:
        proposer: its class, `package.module:Class`, or its installed name.
        options: its own options.
        num_speculative_tokens: drafts per request and step.
        settings: further settings of `LLM`, for instance an attention backend for its own layers.
    """

    proposer: ClassVar[type | str]
    options: ClassVar[Mapping[str, Any]] = {}
    num_speculative_tokens: ClassVar[int] = 4
    settings: ClassVar[Mapping[str, Any]] = {}

    @pytest.fixture
    def model(self, tiny_model: Path) -> Path:
        """Folder of the target; override it for a proposer that is made for one model. Its vocabulary has 64 ids."""
        return tiny_model

    def build(self, model: Path, **settings: Any) -> Harness:
        """An engine with the proposer, in which every breach of contract is an error."""
        return Harness(
            model,
            self.proposer,
            num_speculative_tokens=self.num_speculative_tokens,
            options={**self.options, "on_proposer_error": "raise"},
            **{**self.settings, **settings},
        )

    def check(self, model: Path, params: list[SamplingParams], **settings: Any) -> Harness:
        """Run all prompts with and without the proposer, twice, and compare; return the engine with it."""
        plain = Harness(model, **{**self.settings, **settings, "num_kv_blocks": 128})
        expected = plain.tokens(PROMPTS, params)
        harness = self.build(model, **settings)
        for attempt in ("at first", "again, with everything in the prefix cache"):
            found = harness.tokens(PROMPTS, params, harness.poison)
            assert found == expected, f"the proposer changed the text {attempt}"
        scheduler = harness.core.scheduler
        assert harness.num_free_blocks == scheduler.kv_cache.pool.num_blocks, "KV blocks were not given back"
        return harness

    @pytest.mark.parametrize("temperature", [0.0, 0.8])
    def test_the_text_is_the_models_own(self, model: Path, temperature: float) -> None:
        """Greedy and sampled, in one batch."""
        self.check(model, _params(temperature, 40))

    @pytest.mark.parametrize("temperature", [0.0, 0.8])
    def test_also_when_prompts_come_in_chunks(self, model: Path, temperature: float) -> None:
        """`propose` is also called while other prompts are unfinished."""
        self.check(model, _params(temperature, 24), max_num_batched_tokens=9, max_num_seqs=3)

    @pytest.mark.parametrize("temperature", [0.0, 0.8])
    def test_also_when_requests_are_preempted(self, model: Path, temperature: float) -> None:
        """Requests lose their place and come back with more tokens than they left with."""
        harness = self.check(model, _params(temperature, 30), num_kv_blocks=16)
        assert harness.llm.stats.num_preemptions > 0

    def test_budgets_are_kept(self, model: Path) -> None:
        """Requests that end after 1, 2, 3, ... tokens, and at the end of the model's context."""
        for max_tokens in (1, 2, 3, 5):
            self.check(model, _params(0.0, max_tokens))
        self.check(model, _params(0.8, 99), max_model_len=24)

    def test_a_request_may_leave_at_any_time(self, model: Path) -> None:
        """One request is abandoned in mid-air while another goes on; then its id is never heard of again."""
        params = SamplingParams(temperature=0.0, max_tokens=30)
        harness = self.build(model)
        abandoned = harness.llm.stream({"prompt_token_ids": PROMPTS[0]}, params)
        kept = harness.llm.stream({"prompt_token_ids": PROMPTS[2]}, params)
        for _ in range(3):
            next(abandoned)
            next(kept)
        abandoned.close()  # type: ignore[attr-defined]
        *_, last = kept
        assert [last.outputs[0].token_ids] == Harness(model, **self.settings).tokens([PROMPTS[2]], params)


def _params(temperature: float, max_tokens: int) -> list[SamplingParams]:
    return [
        SamplingParams(temperature=temperature, seed=seed, max_tokens=max_tokens)
        for seed in range(len(PROMPTS))
    ]

"""What the engine counts of drafts that its policy does not have verified."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from outrider.engine.draft_fixed import FixedDrafts

from .fake_runner import oracle
from .harness import Harness


class Halving(FixedDrafts):
    """Has every other draft verified by half, and none of the others."""

    def __init__(self) -> None:
        super().__init__([(1, 1, 4)])
        self.num_calls = 0

    def lengths(
        self,
        drafts: Mapping[str, Sequence[int]],
        confidence: Mapping[str, Sequence[float]],
        num_requests: int,
    ) -> dict[str, int]:
        self.num_calls += 1
        return {name: len(draft) // 2 if self.num_calls % 2 else 0 for name, draft in drafts.items()}


def test_trimmed_tokens_and_whole_drafts_are_counted() -> None:
    harness = Harness(num_speculative_tokens=4, drafter=oracle(), draft_policy=Halving())
    harness.add("r", [1, 2], max_tokens=30, seed=0)
    harness.step()
    assert (harness.stats.num_trimmed_draft_tokens, harness.stats.num_shadow_drafts) == (2, 0)
    harness.step()
    assert (harness.stats.num_trimmed_draft_tokens, harness.stats.num_shadow_drafts) == (6, 1)
    harness.run()
    verified = harness.stats.spec.num_draft_tokens
    drafted = sum(budgets["r"] for budgets in harness.runner.budgets)
    assert verified + harness.stats.num_trimmed_draft_tokens == drafted
    harness.assert_clean()


def test_a_drafter_without_an_answer_has_nothing_trimmed() -> None:
    harness = Harness(num_speculative_tokens=4, draft_policy=Halving())
    harness.add("r", [1, 2], max_tokens=9, seed=0)
    harness.run()
    assert (harness.stats.num_trimmed_draft_tokens, harness.stats.num_shadow_drafts) == (0, 0)

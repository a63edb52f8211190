"""What the engine counts: drafts, accepted and emitted tokens, seconds. Plain numbers; exporters read them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import zip_longest


@dataclass(slots=True, kw_only=True)
class SpecDecodeStats:
    """Draft and acceptance counts, of one request or of an engine.

    One *request-step* is one request in one forward of the target. Tokens behind the one that ended a request are in
    no count of accepted or emitted tokens.

    Attributes:
        num_drafts: request-steps in which at least one draft was verified.
        num_draft_tokens: drafts that were verified.
        num_accepted_tokens: drafts that became output.
        num_draft_tokens_per_pos: entry `i`: request-steps whose draft was longer than `i`.
        num_accepted_tokens_per_pos: entry `i`: request-steps in which draft `i` became output.
        num_emitted_tokens: all output tokens, with and without drafts; equals the usage that is reported to users.
        num_verified_tokens: output tokens of the request-steps that `num_drafts` counts, bonus and recovered included.
    """

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_draft_tokens_per_pos: list[int] = field(default_factory=list)
    num_accepted_tokens_per_pos: list[int] = field(default_factory=list)
    num_emitted_tokens: int = 0
    num_verified_tokens: int = 0

    def observe(self, *, num_draft_tokens: int, num_accepted_tokens: int, num_emitted_tokens: int) -> None:
        """Count one request-step that emitted tokens."""
        self.num_emitted_tokens += num_emitted_tokens
        if not num_draft_tokens:
            return
        self.num_drafts += 1
        self.num_draft_tokens += num_draft_tokens
        self.num_accepted_tokens += num_accepted_tokens
        self.num_verified_tokens += num_emitted_tokens
        missing = num_draft_tokens - len(self.num_draft_tokens_per_pos)
        if missing > 0:
            self.num_draft_tokens_per_pos.extend([0] * missing)
            self.num_accepted_tokens_per_pos.extend([0] * missing)
        for position in range(num_draft_tokens):
            self.num_draft_tokens_per_pos[position] += 1
        for position in range(num_accepted_tokens):
            self.num_accepted_tokens_per_pos[position] += 1

    def since(self, earlier: SpecDecodeStats) -> SpecDecodeStats:
        """Return the counts minus those of an earlier copy of the same object."""
        return SpecDecodeStats(
            num_drafts=self.num_drafts - earlier.num_drafts,
            num_draft_tokens=self.num_draft_tokens - earlier.num_draft_tokens,
            num_accepted_tokens=self.num_accepted_tokens - earlier.num_accepted_tokens,
            num_draft_tokens_per_pos=_minus(self.num_draft_tokens_per_pos, earlier.num_draft_tokens_per_pos),
            num_accepted_tokens_per_pos=_minus(
                self.num_accepted_tokens_per_pos, earlier.num_accepted_tokens_per_pos
            ),
            num_emitted_tokens=self.num_emitted_tokens - earlier.num_emitted_tokens,
            num_verified_tokens=self.num_verified_tokens - earlier.num_verified_tokens,
        )

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted drafts / verified drafts; None before the first draft."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else None

    @property
    def acceptance_rate_per_pos(self) -> list[float]:
        """Per draft position: accepted / drafts that were long enough to have that position; 0 if none was.

        Dividing by `num_drafts` instead would under-report late positions whenever drafts differ in length.
        """
        return [
            accepted / drafted if drafted else 0.0
            for accepted, drafted in zip(
                self.num_accepted_tokens_per_pos, self.num_draft_tokens_per_pos, strict=True
            )
        ]

    @property
    def mean_acceptance_length(self) -> float | None:
        """Tokens per verification step, bonus included: `num_verified_tokens / num_drafts`; None before the first."""
        return self.num_verified_tokens / self.num_drafts if self.num_drafts else None


@dataclass(slots=True, kw_only=True)
class EngineStats:
    """Everything one engine counts over its life.

    Attributes:
        spec: drafts and tokens of all requests, pooled.
        num_prompt_tokens: tokens of the prompts that entered the batch, each request once.
        num_cached_tokens: prompt tokens found in the prefix cache when their request first entered the batch.
        num_finished: requests by finish reason ("stop", "length", "abort", "error").
        num_skipped_drafts: request-steps whose draft budget was cut to zero, by the limit that cut it.
        num_trimmed_draft_tokens: tokens that were drafted, and that the draft policy did not have verified.
        num_shadow_drafts: request-steps in which that was the whole draft.
        num_plugin_errors: times a plugin broke its contract or raised.
        num_steps: forwards of the target.
        verify_seconds, draft_seconds, other_seconds: spent in the runner's steps (laying out, forward, verification),
            in the proposer, and in the engine around them.
        model_seconds: the part of `verify_seconds` that was spent inside the target.
        num_running, num_waiting: requests right now.
    """

    spec: SpecDecodeStats = field(default_factory=SpecDecodeStats)
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    num_finished: Counter[str] = field(default_factory=Counter)
    num_skipped_drafts: Counter[str] = field(default_factory=Counter)
    num_trimmed_draft_tokens: int = 0
    num_shadow_drafts: int = 0
    num_plugin_errors: int = 0
    num_steps: int = 0
    model_seconds: float = 0.0
    verify_seconds: float = 0.0
    draft_seconds: float = 0.0
    other_seconds: float = 0.0
    num_running: int = 0
    num_waiting: int = 0

    def since(self, earlier: EngineStats) -> EngineStats:
        """Return the counts minus those of an earlier copy of the same object; requests are those of right now."""
        return EngineStats(
            spec=self.spec.since(earlier.spec),
            num_prompt_tokens=self.num_prompt_tokens - earlier.num_prompt_tokens,
            num_cached_tokens=self.num_cached_tokens - earlier.num_cached_tokens,
            num_preemptions=self.num_preemptions - earlier.num_preemptions,
            num_finished=self.num_finished - earlier.num_finished,
            num_skipped_drafts=self.num_skipped_drafts - earlier.num_skipped_drafts,
            num_trimmed_draft_tokens=self.num_trimmed_draft_tokens - earlier.num_trimmed_draft_tokens,
            num_shadow_drafts=self.num_shadow_drafts - earlier.num_shadow_drafts,
            num_plugin_errors=self.num_plugin_errors - earlier.num_plugin_errors,
            num_steps=self.num_steps - earlier.num_steps,
            model_seconds=self.model_seconds - earlier.model_seconds,
            verify_seconds=self.verify_seconds - earlier.verify_seconds,
            draft_seconds=self.draft_seconds - earlier.draft_seconds,
            other_seconds=self.other_seconds - earlier.other_seconds,
            num_running=self.num_running,
            num_waiting=self.num_waiting,
        )


def _minus(later: list[int], earlier: list[int]) -> list[int]:
    return [count - before for count, before in zip_longest(later, earlier, fillvalue=0)]

"""The plain data that crosses between the engine and the runner. No torch, no behaviour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..api import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRequestData:
    """A request that enters the batch: for the first time, or again after a preemption.

    Attributes:
        token_ids: prompt, and the output so far if it was preempted.
        block_ids: its KV blocks, in position order.
        state_index: its row of state slots, in `[0, max_num_seqs)`.
        num_computed_tokens: tokens found in the prefix cache.
        stop_token_ids: tokens that end it (EOS included unless ignored); `min_tokens` forbids them for a while.
    """

    request_id: str
    token_ids: Sequence[int]
    num_prompt_tokens: int
    sampling_params: SamplingParams
    seed: int
    stop_token_ids: frozenset[int]
    block_ids: Sequence[int]
    state_index: int
    num_computed_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedRequestData:
    """A request that the runner already holds.

    Attributes:
        new_block_ids: blocks appended to its table since the last step.
    """

    request_id: str
    new_block_ids: Sequence[int]
    num_computed_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerOutput:
    """One step's plan.

    Attributes:
        num_scheduled_tokens: rows per request, drafts included, in batch order.
        scheduled_spec_decode_tokens: drafts to verify, for the requests that have any; they are the last rows.
        finished_req_ids, preempted_req_ids: requests that left the batch since the last plan.
    """

    scheduled_new_reqs: Sequence[NewRequestData]
    scheduled_cached_reqs: Sequence[CachedRequestData]
    num_scheduled_tokens: Mapping[str, int]
    scheduled_spec_decode_tokens: Mapping[str, Sequence[int]]
    finished_req_ids: frozenset[str] = frozenset()
    preempted_req_ids: frozenset[str] = frozenset()

    @property
    def total_num_scheduled_tokens(self) -> int:
        """Rows of the step's forward."""
        return sum(self.num_scheduled_tokens.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRunnerOutput:
    """What the step's forward decided.

    Attributes:
        sampled_token_ids: tokens to commit per scheduled request, in order: accepted drafts, then one recovered or
            bonus token. A request is absent while its prompt is unfinished.
        errors: requests that cannot go on, and why; the others are not concerned.
        model_seconds: spent inside the target; laying out the step and deciding its tokens do not count.
    """

    sampled_token_ids: Mapping[str, Sequence[int]]
    errors: Mapping[str, str] = field(default_factory=dict)
    model_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftTokenIds:
    """What the proposer guessed for the next step, validated.

    Attributes:
        draft_token_ids: per request; a request that is absent has no drafts.
        confidence: per request an estimate for each of its drafts, if the proposer gives them.
        num_errors: calls in which the proposer broke its contract or raised (policy `skip`).
    """

    draft_token_ids: Mapping[str, Sequence[int]] = field(default_factory=dict)
    confidence: Mapping[str, Sequence[float]] = field(default_factory=dict)
    num_errors: int = 0

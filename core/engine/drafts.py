"""The drafts of a batch: how many to ask the proposer for, and which of them the next step verifies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ..metrics.stats import EngineStats
from .draft_fixed import FixedDrafts
from .draft_limits import DraftLimits
from .draft_policy import DraftPolicy
from .outputs import DraftTokenIds, SchedulerOutput
from .request import Request


class Drafts:
    """Holds what a request has room for against what the policy thinks of it.

    Args:
        limits: how many drafts there is room for; None: nobody drafts.
        policy: how many of those to ask for and to verify; None: all.
    """

    def __init__(self, limits: DraftLimits | None = None, policy: DraftPolicy | None = None) -> None:
        self.limits = limits or DraftLimits()
        self.policy = policy or FixedDrafts([(1, 1, self.limits.num_speculative_tokens)])

    def budgets(
        self, requests: Sequence[Request], *, max_len: int, block_size: int, num_skipped: Counter[str]
    ) -> dict[str, int]:
        """Return the draft budget of each request, in order; empty if nobody drafts. As `DraftLimits.room`."""
        room = self.limits.room(requests, max_len=max_len, block_size=block_size, num_skipped=num_skipped)
        return self.policy.budgets(room) if room else {}

    def keep(
        self,
        requests: Mapping[str, Request],
        proposed: DraftTokenIds,
        budgets: Mapping[str, int],
        stats: EngineStats,
    ) -> None:
        """Give each request its drafts for the next step, cut to its budget and to what the policy wants verified.

        Args:
            stats: what the policy cuts is counted here.
        """
        drafts = {
            request_id: list(proposed.draft_token_ids.get(request_id, ())[:budget])
            for request_id, budget in budgets.items()
            if budget > 0
        }
        lengths = self.policy.lengths(drafts, proposed.confidence, len(budgets))
        for request_id, token_ids in drafts.items():
            kept = token_ids[: lengths[request_id]]
            requests[request_id].spec_token_ids = kept
            stats.num_trimmed_draft_tokens += len(token_ids) - len(kept)
            stats.num_shadow_drafts += bool(token_ids) and not kept

    def observe_step(self, plan: SchedulerOutput, seconds: float, other_seconds: float) -> None:
        """Tell the policy what the forward over `plan` took, and the engine around it."""
        num_requests = len(plan.num_scheduled_tokens)
        num_rows = plan.total_num_scheduled_tokens
        num_drafts = sum(map(len, plan.scheduled_spec_decode_tokens.values()))
        self.policy.observe_step(
            num_requests, num_rows, seconds, other_seconds, has_prompt=num_rows > num_requests + num_drafts
        )

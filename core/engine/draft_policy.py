"""Who decides how many tokens are drafted for a request and how many of them are verified."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol


class DraftPolicy(Protocol):
    """Decides lengths, within limits that are set elsewhere, and is told what came of them.

    Calls of one step, in order: `observe_tokens` for each request that emitted any, `forget` for each that ended,
    `observe_step`; then, if a request goes on, `budgets`, `observe_proposal` and `lengths`.
    """

    def budgets(self, room: Mapping[str, int]) -> dict[str, int]:
        """Return how many tokens to ask the proposer for.

        Args:
            room: most tokens per request of the batch, 0 included; in batch order, as the result must be.
        """
        ...

    def lengths(
        self,
        drafts: Mapping[str, Sequence[int]],
        confidence: Mapping[str, Sequence[float]],
        num_requests: int,
    ) -> Mapping[str, int]:
        """Return how many of each draft's tokens, from its beginning, the next step shall verify.

        Args:
            drafts: for every request that had a budget; empty where the proposer had nothing.
            confidence: an estimate per drafted token, for the requests for which the proposer gave any.
            num_requests: requests of the batch, with and without a draft.
        """
        ...

    def observe_proposal(self, budgets: Mapping[str, int], seconds: float) -> None:
        """Be told how long the proposer took for these budgets."""
        ...

    def observe_tokens(self, request_id: str, token_ids: Sequence[int]) -> None:
        """Be told what a request emitted in the step."""
        ...

    def observe_step(
        self, num_requests: int, num_rows: int, seconds: float, other_seconds: float, *, has_prompt: bool
    ) -> None:
        """Be told of a forward of the target.

        Args:
            num_requests: in it.
            num_rows: all of them, drafts included.
            seconds: in the forward.
            other_seconds: in the engine around it.
            has_prompt: some rows were not a request's newest token or a draft.
        """
        ...

    def forget(self, request_id: str) -> None:
        """Be told that a request has ended."""
        ...

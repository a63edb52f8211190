"""Draft lengths that depend on nothing that happens."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence


class FixedDrafts:
    """As many drafts as there is room for, up to a number that the batch size decides, and all of them verified.

    Args:
        table: `(first batch size, last batch size, drafts)`, rising, the first from 1. As in vLLM, what lies between
            two ranges or behind the last has the number of the range before it; so a table of one entry is one
            number for all.
    """

    def __init__(self, table: Sequence[tuple[int, int, int]]) -> None:
        self._starts = [start for start, _, _ in table]
        self._numbers = [length for _, _, length in table]

    def budgets(self, room: Mapping[str, int]) -> dict[str, int]:
        """The room, up to the number for this batch."""
        most = self._numbers[max(bisect_right(self._starts, len(room)) - 1, 0)]
        return {request_id: min(limit, most) for request_id, limit in room.items()}

    def lengths(
        self,
        drafts: Mapping[str, Sequence[int]],
        confidence: Mapping[str, Sequence[float]],
        num_requests: int,
    ) -> dict[str, int]:
        """All of each draft."""
        return {request_id: len(token_ids) for request_id, token_ids in drafts.items()}

    def observe_proposal(self, budgets: Mapping[str, int], seconds: float) -> None:
        """Ignored, like every observation."""

    def observe_tokens(self, request_id: str, token_ids: Sequence[int]) -> None:
        """Ignored."""

    def observe_step(
        self, num_requests: int, num_rows: int, seconds: float, other_seconds: float, *, has_prompt: bool
    ) -> None:
        """Ignored."""

    def forget(self, request_id: str) -> None:
        """There is nothing to forget."""

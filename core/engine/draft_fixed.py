"""Draft lengths that depend on nothing that happens."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence


class FixedDrafts:
    """As many drafts as there is room for, up to a fixed number, and all of them verified.

    Args:
        num_speculative_tokens: most tokens per request and step.
    """

    def __init__(self, num_speculative_tokens: int) -> None:
        self._num_speculative_tokens = num_speculative_tokens

    def budgets(self, room: Mapping[str, int]) -> dict[str, int]:
        """The room, up to the number for this batch."""
        most = self._most(len(room))
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

    def _most(self, batch_size: int) -> int:
        return self._num_speculative_tokens


class DraftsPerBatchSize(FixedDrafts):
    """A number of drafts by how many requests are in the batch.

    Args:
        table: `(first batch size, last batch size, drafts)`, rising, the first from 1. As in vLLM, what lies between
            two ranges or behind the last has the number of the range before it.
    """

    def __init__(self, table: Sequence[tuple[int, int, int]]) -> None:
        super().__init__(max(length for _, _, length in table))
        self._starts = [start for start, _, _ in table]
        self._numbers = [length for _, _, length in table]

    def _most(self, batch_size: int) -> int:
        return self._numbers[max(bisect_right(self._starts, batch_size) - 1, 0)]

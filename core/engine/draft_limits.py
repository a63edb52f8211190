"""How many drafts a request has room for. Applied before the proposer is asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ..api import ProposerCapabilities
from .request import Request

NO_PROPOSER = ProposerCapabilities()


class DraftLimits:
    """What the request and the proposer have room for.

    Args:
        num_speculative_tokens: most drafts per request and step; 0: nobody drafts.
        capabilities: of the proposer.

    Attributes:
        num_speculative_tokens: as given.
        num_lookahead_tokens: tokens beyond the scheduled ones for which the scheduler tries to reserve blocks.
    """

    def __init__(
        self, num_speculative_tokens: int = 0, capabilities: ProposerCapabilities = NO_PROPOSER
    ) -> None:
        self.num_lookahead_tokens = num_speculative_tokens if capabilities.own_kv else 0
        self.num_speculative_tokens = num_speculative_tokens
        self._capabilities = capabilities

    def room(
        self, requests: Iterable[Request], *, max_len: int, block_size: int, num_skipped: Counter[str]
    ) -> dict[str, int]:
        """Return the most drafts every request may get, in order; empty if nobody drafts.

        Args:
            requests: scheduled in the last step and still running.
            max_len: most tokens a request may have.
            num_skipped: counted up for each request without room, by the limit that left none: "max_tokens",
                "max_model_len", "max_positions" or "kv_blocks".
        """
        if self.num_speculative_tokens == 0:
            return {}
        return {
            request.request_id: self._room(request, max_len, block_size, num_skipped) for request in requests
        }

    def _room(self, request: Request, max_len: int, block_size: int, num_skipped: Counter[str]) -> int:
        if request.num_computed_tokens < request.num_tokens - 1:
            return 0  # its prompt is not finished: nothing to continue yet
        capabilities = self._capabilities
        most = self.num_speculative_tokens
        if capabilities.max_draft_tokens is not None:
            most = min(most, capabilities.max_draft_tokens)
        # A step emits one token more than the drafts it accepts.
        limits = {
            "max_tokens": request.max_tokens - request.num_output_tokens - 1,
            "max_model_len": max_len - request.num_tokens - 1,
        }
        if capabilities.max_positions is not None:
            limits["max_positions"] = capabilities.max_positions - request.num_tokens
        if capabilities.own_kv:
            # The forward that gives draft k writes the drafter's KV at position num_tokens + k - 2.
            limits["kv_blocks"] = len(request.block_ids) * block_size - request.num_tokens + 1
        for limit, room in limits.items():
            if room <= 0:
                num_skipped[limit] += 1
                return 0
            most = min(most, room)
        return most

"""Proposers that know the continuation, and plant errors in it where a test wants them."""

from __future__ import annotations

from collections import defaultdict

from pydantic import BaseModel, ConfigDict, Field

from ...api import DraftRequest, DraftTokens, ProposeContext, TargetModel
from ...hookspecs import hookimpl


class OracleProposer:
    """Drafts the known continuation: any accept pattern can be driven exactly."""

    outrider_api = 1

    class Options(BaseModel):
        """What the oracle knows.

        Attributes:
            truth: whole token sequences, prompt and continuation. A request is served from the first one that
                starts with all its tokens; one that matches none, or has reached its end, goes undrafted.
            wrong_at: absolute positions at which a wrong token is drafted instead.
        """

        model_config = ConfigDict(extra="forbid")

        truth: list[list[int]]
        wrong_at: frozenset[int] = frozenset()

    def __init__(self, options: Options) -> None:
        self._options = options
        self._vocab_size = 0

    @hookimpl
    def load_model(self, target: TargetModel) -> None:
        """Remember the vocabulary size, for tokens that are wrong but valid."""
        self._vocab_size = target.vocab_size

    @hookimpl
    def propose(self, context: ProposeContext) -> DraftTokens:
        """Draft as much as the budget allows."""
        return DraftTokens(token_ids=[self.draft(r, r.draft_budget) for r in context.requests])

    def draft(self, request: DraftRequest, num_tokens: int) -> list[int]:
        """Return up to `num_tokens` tokens that follow the request's newest token."""
        known = request.token_ids.tolist()
        for truth in self._options.truth:
            if truth[: len(known)] == known:
                return [
                    (truth[p] + 1) % self._vocab_size if p in self._options.wrong_at else truth[p]
                    for p in range(len(known), min(len(known) + num_tokens, len(truth)))
                ]
        return []


class ScheduleProposer(OracleProposer):
    """An oracle that drafts a prescribed number of tokens at each step of a request."""

    class Options(OracleProposer.Options):
        """The oracle's, and when it drafts how much.

        Attributes:
            schedule: number of tokens at the first, second, ... call that includes a request, over and over.
        """

        schedule: list[int] = Field(min_length=1)

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._schedule = options.schedule
        self._num_calls: dict[str, int] = defaultdict(int)

    @hookimpl
    def propose(self, context: ProposeContext) -> DraftTokens:
        """Draft what the schedule says, at most the budget."""
        return DraftTokens(token_ids=[self._scheduled(request) for request in context.requests])

    @hookimpl
    def request_finished(self, request_id: str) -> None:
        """Forget how far its schedule is."""
        self._num_calls.pop(request_id, None)

    def _scheduled(self, request: DraftRequest) -> list[int]:
        wanted = self._schedule[self._num_calls[request.request_id] % len(self._schedule)]
        self._num_calls[request.request_id] += 1
        return self.draft(request, min(wanted, request.draft_budget))

"""A proposer that breaks the contract in every way we know."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, field_validator

from ...api import DraftRequest, DraftTokens, ProposeContext, ProposerCapabilities, TargetModel
from ...hookspecs import hookimpl

BAD_SEQUENCES: dict[str, Callable[[DraftRequest, int], Any]] = {
    "over_budget": lambda request, vocab: [0] * (request.draft_budget + 1),
    "far_over_budget": lambda request, vocab: [0] * 10_000,
    "minus_one": lambda request, vocab: [-1],
    "minus_one_padding": lambda request, vocab: [*[0] * (request.draft_budget - 1), -1],
    "id_too_large": lambda request, vocab: [vocab],
    "huge_id": lambda request, vocab: [2**70],
    "id_beyond_int32": lambda request, vocab: [2**32],
    "unsigned_id": lambda request, vocab: np.array([2**64 - 1], np.uint64),
    "none_for_request": lambda request, vocab: None,
    "number": lambda request, vocab: 3,
    "floats": lambda request, vocab: [1.0],
    "nan": lambda request, vocab: [float("nan")],
    "bools": lambda request, vocab: [True],
    "strings": lambda request, vocab: ["1"],
    "text": lambda request, vocab: "1",
    "bytes": lambda request, vocab: b"\x01",
    "none_inside": lambda request, vocab: [None],
    "nested": lambda request, vocab: [[1]],
    "ragged": lambda request, vocab: [1, [1]],
    "two_dimensional": lambda request, vocab: np.ones((1, 1), np.int64),
    "dict": lambda request, vocab: {0: 1},
    "set": lambda request, vocab: {1},
    "endless": lambda request, vocab: itertools.repeat(1),
}
"""One request's drafts, from the request and the vocabulary size."""

HARMLESS_SEQUENCES: dict[str, Callable[[DraftRequest, int], Any]] = {
    "duplicates": lambda request, vocab: [1] * request.draft_budget,
    "numpy_integers": lambda request, vocab: [np.int64(1)] * request.draft_budget,
    "numpy_array": lambda request, vocab: np.ones(request.draft_budget, np.uint8),
    "tuple": lambda request, vocab: (1,) * request.draft_budget,
    "empty_array": lambda request, vocab: np.zeros(0),
}


def _raise(context: ProposeContext, vocab: int) -> Any:
    raise RuntimeError("hostile on purpose")


def _write_token_ids(context: ProposeContext, vocab: int) -> Any:
    for request in context.requests:
        request.token_ids[:] = 0  # refused by numpy: the view is read-only
    return _empty(context)


def _remove_requests(context: ProposeContext, vocab: int) -> Any:
    requests: Any = context.requests
    requests.clear()
    return _empty(context)


def _with_probs(rows: Callable[[int, int], Any]) -> Callable[[ProposeContext, int], Any]:
    """Fill the budgets with token 1 and attach `rows(num_tokens, vocab)` to each request."""

    def answer(context: ProposeContext, vocab: int) -> Any:
        budgets = [r.draft_budget for r in context.requests]
        return DraftTokens(token_ids=[[1] * n for n in budgets], probs=[rows(n, vocab) for n in budgets])

    return answer


def _any_drafts(token_ids: Any) -> DraftTokens:
    return DraftTokens(token_ids=token_ids)


def _empty(context: ProposeContext) -> DraftTokens:
    return DraftTokens(token_ids=[[] for _ in context.requests])


BAD_ANSWERS: dict[str, Callable[[ProposeContext, int], Any]] = {
    "raises": _raise,
    "none": lambda context, vocab: None,
    "bare_list": lambda context, vocab: [[1] for _ in context.requests],
    "batch_too_short": lambda context, vocab: DraftTokens(token_ids=[[1]] * (len(context.requests) - 1)),
    "batch_too_long": lambda context, vocab: DraftTokens(token_ids=[[1]] * (len(context.requests) + 1)),
    "no_token_ids": lambda context, vocab: _any_drafts(None),
    "endless_batch": lambda context, vocab: _any_drafts(itertools.repeat([1])),
    "undeclared_parents": lambda context, vocab: DraftTokens(
        token_ids=[[1]] * len(context.requests), parents=[[-1]] * len(context.requests)
    ),
    "undeclared_confidence": lambda context, vocab: DraftTokens(
        token_ids=[[1]] * len(context.requests), confidence=[[0.5]] * len(context.requests)
    ),
    "writes_token_ids": _write_token_ids,
    "removes_requests": _remove_requests,
}
"""The answer as a whole."""


BAD_PROBS: dict[str, Callable[[ProposeContext, int], Any]] = {
    "probs_missing": lambda context, vocab: DraftTokens(token_ids=[[1]] * len(context.requests)),
    "probs_too_narrow": _with_probs(lambda n, vocab: torch.full((n, vocab - 1), 1 / (vocab - 1))),
    "probs_three_dimensional": _with_probs(lambda n, vocab: torch.full((n, vocab, 1), 1 / vocab)),
    "probs_one_row_short": _with_probs(lambda n, vocab: torch.full((n - 1, vocab), 1 / vocab)),
    "probs_without_mass": _with_probs(lambda n, vocab: torch.zeros(n, vocab)),
    "probs_negative": _with_probs(
        lambda n, vocab: torch.eye(vocab)[[1] * n] * 3 - torch.eye(vocab)[[2] * n] * 2
    ),
    "probs_of_another_token": _with_probs(lambda n, vocab: torch.eye(vocab)[[2] * n]),
    "probs_nan": _with_probs(lambda n, vocab: torch.full((n, vocab), float("nan"))),
    "probs_as_lists": _with_probs(lambda n, vocab: [[1 / vocab] * vocab] * n),
    "probs_for_some": lambda context, vocab: DraftTokens(
        token_ids=[[1]] * len(context.requests),
        probs=[torch.full((1, vocab), 1 / vocab)] * (len(context.requests) - 1),
    ),
}
"""Answers of a proposer that declared `ProposerCapabilities.probs`."""

HOSTILE_MODES = (*BAD_SEQUENCES, *BAD_ANSWERS, *BAD_PROBS, "life_cycle_raises")
HARMLESS_MODES = tuple(HARMLESS_SEQUENCES)


class HostileProposer:
    """Answers every call in one bad way (`HOSTILE_MODES`), or in an odd but valid one (`HARMLESS_MODES`).

    A fault in one request's drafts is only in those of the first request of the batch; the others go
    undrafted.
    """

    outrider_api = 1

    class Options(BaseModel):
        """Attributes: mode: what it does wrong."""

        model_config = ConfigDict(extra="forbid")

        mode: str

        @field_validator("mode")
        @classmethod
        def _known(cls, mode: str) -> str:
            if mode not in HOSTILE_MODES and mode not in HARMLESS_MODES:
                raise ValueError(f"unknown mode; choose from {', '.join((*HOSTILE_MODES, *HARMLESS_MODES))}")
            return mode

    def __init__(self, options: Options) -> None:
        self._mode = options.mode
        self._vocab_size = 0
        self.num_calls = 0

    @hookimpl
    def capabilities(self) -> ProposerCapabilities:
        """Promise probabilities where the point is to break that promise."""
        return ProposerCapabilities(probs=self._mode in BAD_PROBS)

    @hookimpl
    def load_model(self, target: TargetModel) -> None:
        """Remember the vocabulary size."""
        self._vocab_size = target.vocab_size

    @hookimpl
    def propose(self, context: ProposeContext) -> DraftTokens:
        """Misbehave."""
        self.num_calls += 1
        whole = BAD_ANSWERS.get(self._mode) or BAD_PROBS.get(self._mode)
        if whole is not None:
            answer: DraftTokens = whole(context, self._vocab_size)
            return answer
        sequence = BAD_SEQUENCES.get(self._mode) or HARMLESS_SEQUENCES.get(self._mode)
        if sequence is None:
            return _empty(context)
        first, *others = context.requests
        return DraftTokens(token_ids=[sequence(first, self._vocab_size), *([] for _ in others)])

    @hookimpl
    def request_added(self) -> None:
        """Raise, in mode `life_cycle_raises`."""
        self._raise_in_life_cycle()

    @hookimpl
    def tokens_committed(self) -> None:
        """Raise, in mode `life_cycle_raises`."""
        self._raise_in_life_cycle()

    @hookimpl
    def request_preempted(self) -> None:
        """Raise, in mode `life_cycle_raises`."""
        self._raise_in_life_cycle()

    @hookimpl
    def request_finished(self) -> None:
        """Raise, in mode `life_cycle_raises`."""
        self._raise_in_life_cycle()

    def _raise_in_life_cycle(self) -> None:
        if self._mode == "life_cycle_raises":
            raise RuntimeError("hostile on purpose")

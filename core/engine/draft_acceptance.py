"""How likely drafts are to be accepted, learnt from every draft, whether the target verified it or not.

A draft that was never verified can still be compared with what the target emits in the steps after it. For greedy
decoding, for `coupled` verification, and for drafts that were not sampled, that comparison *is* acceptance, so even
drafts that nobody paid for teach something.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

_NUM_CONFIDENCES = 12
_STREAKS = (
    0,
    1,
    2,
    2,
    3,
    3,
    3,
    3,
    4,
    4,
    4,
    4,
    4,
    4,
    4,
    4,
)  # class of 0, 1, 2, ... tokens; longer ones: the last
_NUM_STREAKS = 6
_PRIOR_RATE, _PRIOR_WEIGHT = 0.4, 2.0
_PARENT_WEIGHT = 6.0  # observations of its own that count as much as what the estimate above says
_KEEP = 0.996  # of a count at each observation: half is forgotten after 170
_REQUEST_WEIGHT = 5.0
_REQUEST_KEEP = 0.97  # one request changes faster than all of them together: half is forgotten after 23


class _Rate:
    """A share of successes that forgets exponentially, drawn toward the estimate above it while it knows little."""

    __slots__ = ("num_successes", "num_trials", "parent")

    def __init__(self, parent: _Rate | None) -> None:
        self.parent = parent
        self.num_trials = 0.0
        self.num_successes = 0.0

    def estimate(self) -> float:
        if self.parent is None:
            return (self.num_successes + _PRIOR_WEIGHT * _PRIOR_RATE) / (self.num_trials + _PRIOR_WEIGHT)
        return (self.num_successes + _PARENT_WEIGHT * self.parent.estimate()) / (
            self.num_trials + _PARENT_WEIGHT
        )

    def observe(self, success: bool) -> None:
        self.num_trials = self.num_trials * _KEEP + 1
        self.num_successes = self.num_successes * _KEEP + success
        if self.parent is not None:
            self.parent.observe(success)


@dataclass(slots=True)
class _Draft:
    """A draft whose tokens still wait to be compared; the first `position` of them were right."""

    token_ids: Sequence[int]
    rates: Sequence[_Rate]
    estimates: Sequence[float]
    position: int = 0


@dataclass(slots=True)
class _Record:
    """What is known of one request.

    Attributes:
        streak: of its newest tokens so many in a row were in the newest draft that reached them.
        drafts: open ones, oldest first.
        num_trials, num_successes, num_expected: of its drafts, lately.
    """

    streak: int = 0
    drafts: list[_Draft] = field(default_factory=list)
    num_trials: float = 0.0
    num_successes: float = 0.0
    num_expected: float = 0.0

    def odds_ratio(self) -> float:
        """How much better (above 1) or worse its drafts do than the pooled estimates said."""
        right, expected = self.num_successes, self.num_expected
        wrong, feared = self.num_trials - right, self.num_trials - expected
        return ((right + _REQUEST_WEIGHT) * (feared + _REQUEST_WEIGHT)) / (
            (expected + _REQUEST_WEIGHT) * (wrong + _REQUEST_WEIGHT)
        )


class Acceptance:
    """Estimates for every draft position, given those before it are accepted.

    Pooled rates by position, by the proposer's confidence where it gives one, and by how well the request has been
    predicted just before; each drawn toward the coarser one above it. On top of it, an odds ratio per request.

    Args:
        max_length: most tokens in a draft.
    """

    def __init__(self, max_length: int) -> None:
        self._max_length = max_length
        self._records: dict[str, _Record] = {}
        self._rates: list[list[list[_Rate]]] = []
        for _ in range(max_length):
            whole = _Rate(None)
            by_confidence = [_Rate(whole) for _ in range(_NUM_CONFIDENCES)]
            self._rates.append([[_Rate(rate) for _ in range(_NUM_STREAKS)] for rate in by_confidence])
        self._without_confidence = _NUM_CONFIDENCES - 1

    def expect(self, request_id: str, length: int) -> list[float]:
        """Estimates for a draft of `length` tokens that has not been made yet."""
        record = self._records.get(request_id) or _Record()
        return self._estimates(record, self._rates_of(record, length, None))

    def add_draft(
        self, request_id: str, token_ids: Sequence[int], confidence: Sequence[float] | None
    ) -> list[float]:
        """Remember what was drafted behind the request's newest token and return the estimates for it.

        An empty draft says that the proposer was asked and had nothing.
        """
        record = self._records.setdefault(request_id, _Record())
        if not token_ids:
            record.streak = 0
            return []
        rates = self._rates_of(record, len(token_ids), confidence)
        estimates = self._estimates(record, rates)
        record.drafts.append(_Draft(token_ids, rates, estimates))
        return estimates

    def add_tokens(self, request_id: str, token_ids: Sequence[int]) -> None:
        """Compare the open drafts of a request with the tokens it emitted."""
        record = self._records.get(request_id)
        if record is None:
            return
        for token in token_ids:
            if not record.drafts:
                break
            record.streak = record.streak + 1 if _next(record.drafts[-1]) == token else 0
            newest = record.drafts[-1]
            record.drafts = [
                draft for draft in record.drafts if _compare(record, draft, token, draft is newest)
            ]

    def forget(self, request_id: str) -> None:
        """The request has ended."""
        self._records.pop(request_id, None)

    def _rates_of(self, record: _Record, length: int, confidence: Sequence[float] | None) -> list[_Rate]:
        streak = _STREAKS[record.streak] if record.streak < len(_STREAKS) else _NUM_STREAKS - 1
        if confidence is None:
            return [rates[self._without_confidence][streak] for rates in self._rates[:length]]
        return [
            rates[int(value * (self._without_confidence - 0.001))][streak]
            for rates, value in zip(self._rates, confidence, strict=False)
        ]

    @staticmethod
    def _estimates(record: _Record, rates: Sequence[_Rate]) -> list[float]:
        ratio = record.odds_ratio()
        estimates = []
        for rate in rates:
            likely = rate.estimate()
            estimates.append(likely * ratio / (likely * ratio + 1 - likely))
        return estimates


def _next(draft: _Draft) -> int:
    return draft.token_ids[draft.position]


def _compare(record: _Record, draft: _Draft, token: int, newest: bool) -> bool:
    """Count one token of a draft as right or wrong; return whether there are more to compare."""
    position = draft.position
    success = draft.token_ids[position] == token
    draft.rates[position].observe(success)
    if newest:  # one comparison per token: older drafts mostly fail together
        record.num_trials = record.num_trials * _REQUEST_KEEP + 1
        record.num_successes = record.num_successes * _REQUEST_KEEP + success
        record.num_expected = record.num_expected * _REQUEST_KEEP + draft.estimates[position]
    draft.position += 1
    return success and draft.position < len(draft.token_ids)

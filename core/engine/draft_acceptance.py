"""How likely drafts are to be accepted, learnt from every draft, whether the target verified it or not.

A draft that was never verified can still be compared with what the target emits in the steps after it. For greedy
decoding, for `coupled` verification, and for drafts that were not sampled, that comparison *is* acceptance, so even
drafts that nobody paid for teach something.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

_NUM_CONFIDENCES = 12
_WITHOUT_CONFIDENCE = _NUM_CONFIDENCES - 1
_NUM_STREAKS = 6  # classes: of no token, 1, 2 to 3, 4 to 7, 8 to 15, more
_PRIOR_RATE, _PRIOR_ANSWERS, _PRIOR_WEIGHT = 0.4, 0.9, 2.0
_PARENT_WEIGHT = 6.0  # observations of its own that count as much as what the estimate above says
_KEEP = 0.996  # of a count at each observation: half is forgotten after 170
_REQUEST_WEIGHT = 10.0
_REQUEST_KEEP = 0.98  # one request changes faster than all of them together: half is forgotten after 34
_HOPELESS = 0.02  # positions that are reached less often than this are left out of an estimate


class _Rate:
    """A share of successes that forgets exponentially, drawn toward a prior while it knows little.

    Args:
        parent: pools this rate with its like: sees every observation, and is the prior.
        prior: of a rate without a parent: another rate, or a number.
    """

    __slots__ = ("num_successes", "num_trials", "parent", "prior")

    def __init__(self, parent: _Rate | None = None, prior: _Rate | float = _PRIOR_RATE) -> None:
        self.parent = parent
        self.prior = prior
        self.num_trials = 0.0
        self.num_successes = 0.0

    def estimate(self) -> float:
        if self.parent is not None:
            weight, prior = _PARENT_WEIGHT, self.parent.estimate()
        else:
            weight = _PRIOR_WEIGHT
            prior = self.prior if isinstance(self.prior, float) else self.prior.estimate()
        return (self.num_successes + weight * prior) / (self.num_trials + weight)

    def observe(self, success: bool) -> None:
        self.num_trials = self.num_trials * _KEEP + 1
        self.num_successes = self.num_successes * _KEEP + success
        if self.parent is not None:
            self.parent.observe(success)


@dataclass(slots=True)
class _Draft:
    """A draft whose tokens still wait to be compared; the first `position` of them were right.

    Attributes:
        streak: class of the request's streak when it was made.
    """

    token_ids: Sequence[int]
    confidence: Sequence[float] | None
    streak: int
    position: int = 0


@dataclass(slots=True)
class _Merit:
    """How much better or worse than the pooled estimates a request's newest drafts were, lately."""

    num_trials: float = 0.0
    num_successes: float = 0.0
    num_expected: float = 0.0

    def odds_ratio(self) -> float:
        """Above 1: better."""
        right, expected = self.num_successes, self.num_expected
        wrong, feared = self.num_trials - right, self.num_trials - expected
        return ((right + _REQUEST_WEIGHT) * (feared + _REQUEST_WEIGHT)) / (
            (expected + _REQUEST_WEIGHT) * (wrong + _REQUEST_WEIGHT)
        )

    def count(self, success: bool, expected: float) -> None:
        """Add a token that was expected to be right with this probability, and forget a little of those before it."""
        self.num_trials = self.num_trials * _REQUEST_KEEP + 1
        self.num_successes = self.num_successes * _REQUEST_KEEP + success
        self.num_expected = self.num_expected * _REQUEST_KEEP + expected


@dataclass(slots=True)
class _Record:
    """What is known of one request.

    Attributes:
        streak: of its newest tokens so many in a row were in the newest draft that reached them.
        drafts: open ones, oldest first.
        at_first: merit of drafts made while there was no streak; a single mistake must not make a good request look
            like those that mostly fail.
        in_streak: merit of the others.
    """

    streak: int = 0
    drafts: list[_Draft] = field(default_factory=list)
    at_first: _Merit = field(default_factory=_Merit)
    in_streak: _Merit = field(default_factory=_Merit)

    def merit(self, streak: int) -> _Merit:
        """The one that a draft made in this class of streak has to do with."""
        return self.in_streak if streak else self.at_first


class Acceptance:
    """Estimates for every draft position.

    Pooled rates by position, by the proposer's confidence where it gives one, and by how well the request has been
    predicted just before; each drawn toward the coarser one above it. On top of them an odds ratio per request.

    Args:
        max_length: most tokens in a draft.

    Attributes:
        num_lessons: drafts and tokens seen so far: while it stays the same, so do all estimates.
    """

    def __init__(self, max_length: int) -> None:
        self.num_lessons = 0
        self._records: dict[str, _Record] = {}
        self._rates: list[list[list[_Rate]]] = []
        whole = _Rate()
        for position in range(max_length):
            whole = _Rate(prior=whole) if position else whole
            by_confidence = [_Rate(whole) for _ in range(_NUM_CONFIDENCES)]
            self._rates.append([[_Rate(rate) for _ in range(_NUM_STREAKS)] for rate in by_confidence])
        answers = _Rate(prior=_PRIOR_ANSWERS)
        self._answers = [_Rate(answers) for _ in range(_NUM_STREAKS)]

    def expect(self, request_id: str, length: int, *, is_drafted: bool = False) -> list[float]:
        """The probability that tokens are accepted up to each position, if the proposer is asked for `length` of them.

        The list ends where there is next to no hope.

        Args:
            is_drafted: it has been asked; else it may turn out to have nothing.
        """
        record = self._records.get(request_id) or _Record()
        reached = 1.0 if is_drafted else self._answers[_streak_class(record.streak)].estimate()
        return self._survival(record, length, None, reached)

    def add_draft(
        self, request_id: str, token_ids: Sequence[int], confidence: Sequence[float] | None
    ) -> list[float]:
        """Remember what was drafted behind the request's newest token; return what `expect` does, for this draft.

        An empty draft says that the proposer was asked and had nothing.
        """
        self.num_lessons += 1
        record = self._records.setdefault(request_id, _Record())
        streak = _streak_class(record.streak)
        self._answers[streak].observe(bool(token_ids))
        if not token_ids:
            record.streak = 0
            return []
        record.drafts.append(_Draft(token_ids, confidence, streak))
        return self._survival(record, len(token_ids), confidence)

    def add_tokens(self, request_id: str, token_ids: Sequence[int]) -> None:
        """Compare the open drafts of a request with the tokens it emitted."""
        record = self._records.get(request_id)
        if record is None:
            return
        for token in token_ids:
            if not record.drafts:
                return
            self.num_lessons += 1
            # One comparison per token counts for the request: older drafts mostly fail together.
            newest = record.drafts[-1]
            rate = self._rate(newest.position, newest.confidence, newest.streak)
            success = newest.token_ids[newest.position] == token
            record.merit(newest.streak).count(success, rate.estimate())
            record.streak = record.streak + 1 if success else 0
            record.drafts = [draft for draft in record.drafts if self._compare(draft, token)]

    def forget(self, request_id: str) -> None:
        """The request has ended."""
        self._records.pop(request_id, None)

    def _compare(self, draft: _Draft, token: int) -> bool:
        """Count one token of a draft as right or wrong; return whether there are more to compare."""
        position = draft.position
        success = draft.token_ids[position] == token
        self._rate(position, draft.confidence, draft.streak).observe(success)
        draft.position += 1
        return success and draft.position < len(draft.token_ids)

    def _survival(
        self, record: _Record, length: int, confidence: Sequence[float] | None, reached: float = 1.0
    ) -> list[float]:
        streak = _streak_class(record.streak)
        ratio = record.merit(streak).odds_ratio()
        survival: list[float] = []
        for position in range(length):
            likely = self._rate(position, confidence, streak).estimate()
            reached *= likely * ratio / (likely * ratio + 1 - likely)
            if reached < _HOPELESS:
                break
            survival.append(reached)
        return survival

    def _rate(self, position: int, confidence: Sequence[float] | None, streak: int) -> _Rate:
        value = _WITHOUT_CONFIDENCE if confidence is None else _confidence_class(confidence[position])
        return self._rates[position][value][streak]


def _streak_class(streak: int) -> int:
    return min(streak.bit_length(), _NUM_STREAKS - 1)


def _confidence_class(confidence: float) -> int:
    return min(int(confidence * _WITHOUT_CONFIDENCE), _WITHOUT_CONFIDENCE - 1)

"""A world in which a draft policy can be timed without a model: costs and chances are known, the clock is a sum."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from outrider.engine.draft_policy import DraftPolicy

RIGHT, WRONG = 1, 0
"""The target always emits `RIGHT`."""


@dataclass
class World:
    """Requests, a target and a proposer.

    Attributes:
        chances: per request the chance that a drafted token is right, given those before it are.
        verify: seconds of a forward by its number of rows.
        draft: seconds of a call of the proposer by the longest budget.
        other: seconds of the engine in each step.
        answers: how often the proposer has anything at all.
        confidence: what the proposer says of a token that is right, or wrong; None: nothing.
        num_tokens: after so many a request ends, and no other takes its place.
        noise: spread of the logarithm of times, as they are shown to the policy; one step in a hundred takes five
            times as long.
        num_verified: drafts that were verified, per step.
        seconds: that have gone by.
    """

    chances: Sequence[float]
    verify: Callable[[int], float]
    draft: Callable[[int], float] = lambda length: 1e-5
    other: float = 1e-4
    max_length: int = 8
    answers: float = 1.0
    confidence: Callable[[bool], float] | None = None
    num_tokens: float = math.inf
    noise: float = 0.0
    seed: int = 0
    num_asked: int = 0
    num_verified: list[int] = field(default_factory=list)
    seconds: float = 0.0

    def run(self, policy: DraftPolicy, num_steps: int) -> float:
        """Return the expected tokens per second, by the true times; stop early if all requests have ended."""
        rng = random.Random(self.seed)
        chances = {f"r{i}": chance for i, chance in enumerate(self.chances)}
        missing = dict.fromkeys(chances, self.num_tokens)
        drafts: dict[str, list[int]] = {}
        num_tokens, begin = 0.0, self.seconds
        for _ in range(num_steps):
            num_requests = len(chances)
            num_rows = num_requests + sum(map(len, drafts.values()))
            for request_id, chance in chances.items():
                draft = drafts.get(request_id, [])
                num_right = draft.index(WRONG) if WRONG in draft else len(draft)
                policy.observe_tokens(request_id, [RIGHT] * (num_right + 1))
                # Of drafts that were cut by what is known of their tokens, chance says nothing.
                num_tokens += (
                    num_right + 1 if self.confidence else sum(chance**j for j in range(len(draft) + 1))
                )
                missing[request_id] -= num_right + 1
            for request_id in [name for name in chances if missing[name] <= 0]:
                policy.forget(request_id)
                del chances[request_id]
            spent = self.verify(num_rows)
            self.seconds += spent + self.other
            policy.observe_step(num_requests, num_rows, self._shown(spent, rng), self.other, has_prompt=False)
            if not chances:
                break
            budgets = policy.budgets(dict.fromkeys(chances, self.max_length))
            assert list(budgets) == list(chances)
            assert all(0 <= budget <= self.max_length for budget in budgets.values())
            if any(budgets.values()):
                spent = self.draft(max(budgets.values()))
                self.seconds += spent
                self.num_asked += 1
                policy.observe_proposal(budgets, self._shown(spent, rng))
            made = {
                request_id: [
                    RIGHT if rng.random() < chance else WRONG
                    for _ in range(budgets[request_id] if rng.random() < self.answers else 0)
                ]
                for request_id, chance in chances.items()
                if budgets[request_id]
            }
            sure = {}
            if self.confidence is not None:
                sure = {
                    name: [self.confidence(t == RIGHT) for t in draft]
                    for name, draft in made.items()
                    if draft
                }
            lengths = policy.lengths(made, sure, len(chances))
            drafts = {request_id: draft[: lengths[request_id]] for request_id, draft in made.items()}
            self.num_verified.append(sum(map(len, drafts.values())))
        return num_tokens / (self.seconds - begin)

    def expect(self, length: int) -> float:
        """Tokens per second if every request always gets `length` drafts."""
        tokens = sum(sum(chance**j for j in range(length + 1)) for chance in self.chances)
        seconds = self.verify(len(self.chances) * (1 + length)) + self.other
        return tokens / (seconds + (self.draft(length) if length else 0.0))

    def _shown(self, seconds: float, rng: random.Random) -> float:
        if self.noise == 0:
            return seconds
        return seconds * rng.lognormvariate(0, self.noise) * (5 if rng.random() < 0.01 else 1)


def skinny(first: float, slope: float, free_rows: int = 1) -> Callable[[int], float]:
    """Seconds `first` up to `free_rows` rows, and for each row beyond them `slope` times as much again."""
    return lambda num_rows: first * (1 + slope * max(0, num_rows - free_rows))

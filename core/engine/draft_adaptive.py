"""Drafts as long as pays, by what steps cost here and now and by how drafts have fared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .draft_acceptance import Acceptance
from .draft_cost import DraftCost, VerifyCost

_LEARNING_SHARE = 0.005  # of the time, for drafts that are not expected to pay,
_SAVED_SHARE = 0.05  # and this share of the time that drafting saves
_FIRST_LEARNING_STEPS = 5  # steps' worth of that time to begin with
_MOST_DEBT_STEPS = 100  # and no more is owed if a lesson took longer than expected
_MARGIN = 1.05  # what a draft must be worth of the time it costs
# Where a request ends early and no other takes its place, the batch takes as long as its slowest, and a step that was
# made longer for one has cost all of them.
_MARGIN_TOGETHER = 1.25
_KEEP_STEP = 0.97
_RECONSIDER_STEPS = 16  # what steps cost changes slowly


class AdaptiveDrafts:
    """Chooses the lengths that make most tokens per second, none included.

    Another row for a draft is worth its expected tokens, and costs time in which the engine would otherwise make
    tokens at the rate it does lately, plain decoding's at least. A step verifies the set of drafts with the largest
    surplus of the one over the other.

    A proposer that is cheap beside a step is always asked for all there is room for, and the drafts are cut when they
    are known. A dear one is asked for what is expected to pay. If that is nothing, it is still asked now and then, for
    half a percent of the time and a little of what drafting has saved lately: often enough to notice when drafting
    would pay again. What is not verified is still compared with what the target emits, and so teaches as much as what
    is.

    Args:
        max_length: most tokens to draft for one request.
        verify_cost: of the target, measured at start-up.
        always_asked: the proposer runs in every step whether or not there is a budget, to keep its own cache.
        sampled_drafts: tokens are accepted by comparing the proposer's probability of them with the target's.
            Then the number of drafts to verify must not depend on what they are, or the output's distribution would;
            so the proposer's confidence is not used. And whether the target emits the same token is no measure of
            acceptance, so only verified drafts teach.
    """

    def __init__(
        self,
        max_length: int,
        verify_cost: VerifyCost,
        *,
        always_asked: bool = False,
        sampled_drafts: bool = False,
    ) -> None:
        self._max_length = max_length
        self._verify_cost = verify_cost
        self._draft_cost = DraftCost()
        self._acceptance = Acceptance(max_length)
        self._always_asked = always_asked
        self._sampled_drafts = sampled_drafts
        self._other_seconds = 0.0
        self._num_steps = 0
        self._num_emitted = 0
        self._draft_seconds = 0.0
        self._learning_seconds = 0.0
        self._is_learning = False
        self._num_short_lessons = 1
        self._hopeless: tuple[object, ...] = ()  # a state in which nothing was expected to pay
        # Lately: seconds that plain decoding would have taken for the tokens that were emitted, and that were taken.
        self._plain_seconds = self._taken_seconds = 0.0

    def budgets(self, room: Mapping[str, int]) -> dict[str, int]:
        """Ask for everything if time to learn is left for it, else for what is expected to pay."""
        longest = min(max(room.values(), default=0), self._max_length)
        self._is_learning = False
        if longest == 0:
            return dict.fromkeys(room, 0)
        # As much time for lessons of one token as for those of all, which cost more.
        if self._afford(longest, len(room)):
            one, all_of_them = self._extra_draft_seconds(1), self._extra_draft_seconds(longest)
            self._num_short_lessons = min(int(all_of_them / one) if one > 0 else 1, longest)
            return {request_id: min(most, self._max_length) for request_id, most in room.items()}
        chosen = self._worth_asking(room)
        if self._num_short_lessons > 0 and not any(chosen.values()) and self._afford(1, len(room)):
            self._num_short_lessons -= 1
            chosen = {request_id: 1 for request_id, most in room.items() if most > 0}
        return {**dict.fromkeys(room, 0), **chosen}

    def lengths(
        self,
        drafts: Mapping[str, Sequence[int]],
        confidence: Mapping[str, Sequence[float]],
        num_requests: int,
    ) -> dict[str, int]:
        """Cut drafts to what is expected to pay now that they are known."""
        if self._sampled_drafts:
            return self._lengths_of_sampled(drafts, num_requests)
        expected = {
            request_id: self._acceptance.add_draft(request_id, token_ids, confidence.get(request_id))
            for request_id, token_ids in drafts.items()
        }
        return self._choose(expected, num_requests)

    def observe_proposal(self, budgets: Mapping[str, int], seconds: float) -> None:
        """Learn what the proposer takes."""
        longest = max(budgets.values(), default=0)
        if longest or self._always_asked:
            if self._is_learning and self._draft_cost.is_settled and not self._always_asked:
                # The lesson's real price: a share of calls may be dearer than any estimate says.
                debt = self._learning_seconds - max(0.0, seconds - self._draft_cost.seconds(longest))
                self._learning_seconds = max(debt, -_MOST_DEBT_STEPS * self._verify_cost.seconds(1))
            self._draft_cost.observe(longest, seconds)
            self._draft_seconds = self._draft_cost.seconds(longest)

    def observe_tokens(self, request_id: str, token_ids: Sequence[int]) -> None:
        """Learn which of a request's drafts were right."""
        self._num_emitted += len(token_ids)
        self._acceptance.add_tokens(request_id, token_ids)

    def observe_step(
        self, num_requests: int, num_rows: int, seconds: float, other_seconds: float, *, has_prompt: bool
    ) -> None:
        """Learn what a step takes, unless rows of a prompt were in it, which decide no token."""
        num_emitted, self._num_emitted = self._num_emitted, 0
        draft_seconds, self._draft_seconds = self._draft_seconds, 0.0
        if has_prompt:
            return
        self._verify_cost.observe(num_rows, seconds)
        if self._num_steps == 0:
            self._other_seconds = other_seconds
        else:
            self._other_seconds += 0.1 * (min(other_seconds, 3 * self._other_seconds) - self._other_seconds)
        plain = self._verify_cost.seconds(num_requests) + self._other_seconds
        taken = self._verify_cost.seconds(num_rows) + self._other_seconds + draft_seconds
        self._plain_seconds = self._plain_seconds * _KEEP_STEP + num_emitted / num_requests * plain
        self._taken_seconds = self._taken_seconds * _KEEP_STEP + taken
        if self._num_steps == 0:
            self._learning_seconds += _FIRST_LEARNING_STEPS * plain
        most = _FIRST_LEARNING_STEPS * max(plain, draft_seconds)
        saved = max(0.0, self._plain_seconds - self._taken_seconds)
        share = _LEARNING_SHARE + (_SAVED_SHARE * saved / self._plain_seconds if saved else 0.0)
        self._learning_seconds = min(self._learning_seconds + share * taken, most)
        self._num_steps += 1

    def forget(self, request_id: str) -> None:
        """The request has ended."""
        self._acceptance.forget(request_id)

    def _worth_asking(self, room: Mapping[str, int]) -> dict[str, int]:
        """The lengths that are expected to pay; empty if none is, and nothing has been learnt since that was found."""
        state = self._acceptance.num_lessons, self._num_steps // _RECONSIDER_STEPS, *room
        if state == self._hopeless:
            return {}
        expected = {
            request_id: self._acceptance.expect(request_id, min(most, self._max_length))
            for request_id, most in room.items()
            if most > 0
        }
        chosen = self._choose(expected, len(room), with_drafting=True)
        if not any(chosen.values()):
            self._hopeless = state
        return chosen

    def _afford(self, length: int, num_requests: int) -> bool:
        """Spend what it takes to learn from drafts of this length, if there is so much."""
        seconds = self._extra_draft_seconds(length)
        if self._sampled_drafts:  # one of them will have to be verified
            plain = self._verify_cost.seconds(num_requests)
            seconds += max(0.0, self._verify_cost.seconds(num_requests + 1) - plain)
        if seconds > self._learning_seconds:
            return False
        self._learning_seconds -= seconds
        self._is_learning = True
        return True

    def _lengths_of_sampled(self, drafts: Mapping[str, Sequence[int]], num_requests: int) -> dict[str, int]:
        expected = {
            request_id: self._acceptance.expect(request_id, len(token_ids), is_drafted=True)
            for request_id, token_ids in drafts.items()
        }
        chosen = self._choose(expected, num_requests)
        drafted = [request_id for request_id, token_ids in drafts.items() if token_ids]
        if self._is_learning and drafted and not any(chosen.values()):
            chosen[max(drafted, key=lambda request_id: expected[request_id][:1])] = 1
        for request_id, token_ids in drafts.items():
            if chosen[request_id] or not token_ids:
                self._acceptance.add_draft(request_id, token_ids[: chosen[request_id]], None)
        return chosen

    def _choose(
        self, expected: Mapping[str, Sequence[float]], num_requests: int, with_drafting: bool = False
    ) -> dict[str, int]:
        """Return a length for each request.

        Args:
            expected: per request the probability that its draft is accepted up to each position; falling.
            with_drafting: the proposer's time is still to be spent.
        """
        lengths = dict.fromkeys(expected, 0)
        # The likeliest first: each request's positions then come in order.
        ranked = sorted(
            (
                (-likely, position, request_id)
                for request_id, survival in expected.items()
                for position, likely in enumerate(survival)
            ),
        )
        if not ranked:
            return lengths
        plain_seconds = self._verify_cost.seconds(num_requests)
        margin = _MARGIN if num_requests == 1 else _MARGIN_TOGETHER
        price = margin * self._tokens_per_second(num_requests, plain_seconds)
        best_surplus, num_chosen, longest, tokens = 0.0, 0, 0, 0.0
        for index, (unlikely, position, _) in enumerate(ranked, 1):
            tokens -= unlikely
            seconds = self._verify_cost.seconds(num_requests + index) - plain_seconds
            if with_drafting:
                longest = max(longest, position + 1)
                seconds += self._extra_draft_seconds(longest)
            surplus = tokens - price * seconds
            if surplus > best_surplus:
                best_surplus, num_chosen = surplus, index
        for _, _, request_id in ranked[:num_chosen]:
            lengths[request_id] += 1
        return lengths

    def _tokens_per_second(self, num_requests: int, plain_seconds: float) -> float:
        """What time is worth: the rate lately, but no less than that of plain decoding."""
        plain = num_requests / (plain_seconds + self._other_seconds)
        if self._plain_seconds <= self._taken_seconds:
            return plain
        return plain * self._plain_seconds / self._taken_seconds

    def _extra_draft_seconds(self, length: int) -> float:
        """What a call of the proposer adds to a step."""
        return self._draft_cost.seconds(length) - (self._draft_cost.seconds(0) if self._always_asked else 0.0)

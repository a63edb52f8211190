"""A runner without tensors: a deterministic model, honest verification, and a KV cache that tells on the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from outrider.api import ProposerCapabilities
from outrider.engine.outputs import DraftTokenIds, ModelRunnerOutput, NewRequestData, SchedulerOutput

VOCAB_SIZE = 64
NextToken = Callable[[Sequence[int], int], int]
Drafter = Callable[[Sequence[int], int, int], list[int]]


def mix(history: Sequence[int], seed: int) -> int:
    """The default model: the next token depends on every earlier one, on their order, and on the seed."""
    state = seed % 1_000_003
    for token in history:
        state = (state * 31 + token + 7) % 1_000_003
    return (state >> 3) % VOCAB_SIZE


def no_drafts(history: Sequence[int], seed: int, budget: int) -> list[int]:
    """The default drafter."""
    return []


def choose(
    next_token: NextToken, history: list[int], seed: int, num_output_left: int, stop: frozenset[int]
) -> int:
    """The model's next token; no stop token while `num_output_left` other tokens must come first."""
    token = next_token(history, seed)
    while num_output_left > 0 and token in stop:
        token = (token + 1) % VOCAB_SIZE
    return token


@dataclass
class Held:
    """A request as the runner knows it."""

    new: NewRequestData
    token_ids: list[int]
    block_ids: list[int]
    start: int = 0
    num_computed_tokens: int = 0


@dataclass
class FakeRunner:
    """Checks every plan against what it knows, and computes it.

    Attributes:
        next_token: `(history, seed) -> token`.
        drafter: `(history, seed, budget) -> drafts`.
        kv: what the target stored at each slot: the whole prefix up to the token there.
        draft_kv: what a drafter with `own_kv` stored there: the same, and the token that follows if it also needs the
            target's hidden states.
        fail_at: number of the plan at which the forward raises.
    """

    num_blocks: int
    block_size: int
    max_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    num_speculative_tokens: int = 0
    capabilities: ProposerCapabilities = field(default_factory=ProposerCapabilities)
    next_token: NextToken = mix
    drafter: Drafter = no_drafts
    fail_at: int | None = None
    held: dict[str, Held] = field(default_factory=dict)
    kv: dict[int, tuple[int, ...]] = field(default_factory=dict)
    draft_kv: dict[int, tuple[int, ...]] = field(default_factory=dict)
    plans: list[SchedulerOutput] = field(default_factory=list)
    budgets: list[dict[str, int]] = field(default_factory=list)

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        """Compute the plan; AssertionError if it breaks a promise or if the cache does not hold what it should."""
        self._receive(plan)
        if self.fail_at == len(self.plans):
            raise RuntimeError("the forward failed")
        written: dict[int, str] = {}
        sampled: dict[str, list[int]] = {}
        for request_id, num_rows in plan.num_scheduled_tokens.items():
            request = self.held[request_id]
            drafts = list(plan.scheduled_spec_decode_tokens.get(request_id, ()))
            tokens = request.token_ids + drafts
            end = request.start + num_rows
            assert 0 <= request.start < len(request.token_ids)
            assert request.start < end <= len(tokens)
            assert end <= self.max_len
            assert not drafts or end == len(tokens)
            for position in range(request.start):
                assert self.kv.get(self._slot(request, position)) == tuple(tokens[: position + 1])
            for position in range(request.start, end):
                slot = self._slot(request, position)
                assert written.setdefault(slot, request_id) == request_id
                assert not self._is_shared(slot // self.block_size, request_id)
                self.kv[slot] = tuple(tokens[: position + 1])
            sampled[request_id] = [] if end < len(request.token_ids) else self._verify(request, drafts)
            request.num_computed_tokens = end - len(drafts) + max(0, len(sampled[request_id]) - 1)
            request.token_ids += sampled[request_id]
        return ModelRunnerOutput(sampled_token_ids=sampled, model_seconds=0.5)

    def take_draft_token_ids(self, draft_budgets: Mapping[str, int]) -> DraftTokenIds:
        """Draft; AssertionError if a budget leaves no room, or if a drafter's own cache misses what it should hold."""
        assert [r for r in self.plans[-1].num_scheduled_tokens if r in draft_budgets] == list(draft_budgets)
        self.budgets.append(dict(draft_budgets))
        drafts: dict[str, list[int]] = {}
        for request_id, budget in draft_budgets.items():
            request = self.held[request_id]
            num_tokens = len(request.token_ids)
            assert 0 <= budget <= self.num_speculative_tokens
            assert budget == 0 or request.num_computed_tokens == num_tokens - 1
            assert budget == 0 or num_tokens + budget < self.max_len
            num_output_tokens = num_tokens - request.new.num_prompt_tokens
            assert budget == 0 or num_output_tokens + budget < request.new.sampling_params.max_tokens
            drafts[request_id] = self.drafter(request.token_ids, request.new.seed, budget) if budget else []
            if self.capabilities.own_kv:
                self._draft_with_own_kv(request, drafts[request_id], budget)
        return DraftTokenIds(draft_token_ids=drafts)

    def _receive(self, plan: SchedulerOutput) -> None:
        self.plans.append(plan)
        for request_id in plan.finished_req_ids | plan.preempted_req_ids:
            del self.held[request_id]
        for new in plan.scheduled_new_reqs:
            assert new.request_id not in self.held
            self.held[new.request_id] = Held(
                new, list(new.token_ids), list(new.block_ids), new.num_computed_tokens
            )
        for cached in plan.scheduled_cached_reqs:
            self.held[cached.request_id].block_ids += cached.new_block_ids
            self.held[cached.request_id].start = cached.num_computed_tokens
        in_order = [r.request_id for r in [*plan.scheduled_cached_reqs, *plan.scheduled_new_reqs]]
        assert list(plan.num_scheduled_tokens) == in_order
        assert 0 < plan.total_num_scheduled_tokens <= self.max_num_batched_tokens
        assert len(self.held) <= self.max_num_seqs
        state_indices = [request.new.state_index for request in self.held.values()]
        assert len(set(state_indices)) == len(state_indices)
        assert all(0 <= index < self.max_num_seqs for index in state_indices)
        for request in self.held.values():
            assert len(set(request.block_ids)) == len(request.block_ids)
            assert all(0 <= block_id < self.num_blocks for block_id in request.block_ids)
            assert len(request.block_ids) <= -(-self.max_len // self.block_size)

    def _verify(self, request: Held, drafts: list[int]) -> list[int]:
        params, stop = request.new.sampling_params, request.new.stop_token_ids
        history = list(request.token_ids)
        result: list[int] = []
        for draft in [*drafts, None]:
            num_output_left = params.min_tokens - (len(history) - request.new.num_prompt_tokens)
            token = choose(self.next_token, history, request.new.seed, num_output_left, stop)
            result.append(token)
            history.append(token)
            if token != draft:
                break
        return result

    def _draft_with_own_kv(self, request: Held, drafts: list[int], budget: int) -> None:
        tokens = request.token_ids + drafts
        reach = 2 if self._drafts_from_hidden_states() else 1
        for position in range(request.start):
            assert self.draft_kv.get(self._slot(request, position)) == tuple(tokens[: position + reach])
        # The rows of the step, and if it drafts, the newest token and all drafts but the last.
        end = len(request.token_ids) + budget - 1 if budget else request.num_computed_tokens
        for position in range(request.start, end):
            self.draft_kv[self._slot(request, position)] = tuple(tokens[: position + reach])

    def _drafts_from_hidden_states(self) -> bool:
        return self.capabilities.hidden_states or bool(self.capabilities.aux_hidden_layers)

    def _slot(self, request: Held, position: int) -> int:
        return request.block_ids[position // self.block_size] * self.block_size + position % self.block_size

    def _is_shared(self, block_id: int, request_id: str) -> bool:
        return any(block_id in other.block_ids for name, other in self.held.items() if name != request_id)


def oracle(next_token: NextToken = mix, wrong_at: Sequence[int] = ()) -> Drafter:
    """A drafter that drafts the truth, but for mistakes at these absolute positions."""

    def draft(history: Sequence[int], seed: int, budget: int) -> list[int]:
        tokens = list(history)
        for _ in range(budget):
            token = next_token(tokens, seed)
            tokens.append((token + 1) % VOCAB_SIZE if len(tokens) in wrong_at else token)
        return tokens[len(history) :]

    return draft

"""A runner without tensors: a deterministic model, honest verification, and a KV cache that tells on the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from outrider.engine.outputs import DraftTokenIds, ModelRunnerOutput, NewRequestData, SchedulerOutput

VOCAB_SIZE = 64
NextToken = Callable[[Sequence[int], int], int]
Drafter = Callable[[Sequence[int], int], list[int]]


def mix(history: Sequence[int], seed: int) -> int:
    """The default model: the next token depends on every earlier one, on their order, and on the seed."""
    state = seed % 1_000_003
    for token in history:
        state = (state * 31 + token + 7) % 1_000_003
    return (state >> 3) % VOCAB_SIZE


def no_drafts(history: Sequence[int], budget: int) -> list[int]:
    return []


@dataclass
class Held:
    """A request as the runner knows it."""

    new: NewRequestData
    token_ids: list[int]
    block_ids: list[int]


@dataclass
class FakeRunner:
    """Checks every plan against what it knows, and computes it.

    Attributes:
        next_token: `(history, seed) -> token`; called again without stop tokens while `min_tokens` forbids them.
        drafter: `(history, budget) -> drafts`.
        own_kv: the drafter keeps an entry per token in the same blocks.
        kv: what is stored at each slot: the whole prefix up to the token there.
    """

    num_blocks: int
    block_size: int
    max_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    num_speculative_tokens: int = 0
    next_token: NextToken = mix
    drafter: Drafter = no_drafts
    own_kv: bool = False
    held: dict[str, Held] = field(default_factory=dict)
    kv: dict[int, tuple[int, ...]] = field(default_factory=dict)
    plans: list[SchedulerOutput] = field(default_factory=list)
    budgets: list[dict[str, int]] = field(default_factory=list)
    last_scheduled: list[str] = field(default_factory=list)
    fail_at: int | None = None

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        self._receive(plan)
        if self.fail_at == len(self.plans):
            raise RuntimeError("the forward failed")
        written: dict[int, str] = {}
        sampled: dict[str, list[int]] = {}
        starts = {new.request_id: new.num_computed_tokens for new in plan.scheduled_new_reqs}
        starts |= {cached.request_id: cached.num_computed_tokens for cached in plan.scheduled_cached_reqs}
        for request_id, num_rows in plan.num_scheduled_tokens.items():
            request, start = self.held[request_id], starts[request_id]
            drafts = list(plan.scheduled_spec_decode_tokens.get(request_id, ()))
            tokens = request.token_ids + drafts
            assert 0 <= start < len(request.token_ids)
            assert 1 <= num_rows <= len(tokens) - start
            assert not drafts or start + num_rows == len(tokens)
            assert start + num_rows <= self.max_len
            for position in range(start):
                assert self.kv.get(self._slot(request, position)) == tuple(tokens[: position + 1])
            for position in range(start, start + num_rows):
                slot = self._slot(request, position)
                assert written.setdefault(slot, request_id) == request_id
                assert not self._is_shared(slot // self.block_size, request_id)
                self.kv[slot] = tuple(tokens[: position + 1])
            if start + num_rows < len(request.token_ids):
                sampled[request_id] = []
                continue
            sampled[request_id] = self._verify(request, drafts)
            request.token_ids += sampled[request_id]
        return ModelRunnerOutput(sampled_token_ids=sampled)

    def take_draft_token_ids(self, draft_budgets: Mapping[str, int]) -> DraftTokenIds:
        assert [r for r in self.last_scheduled if r in draft_budgets] == list(draft_budgets)
        self.budgets.append(dict(draft_budgets))
        drafts: dict[str, list[int]] = {}
        for request_id, budget in draft_budgets.items():
            request = self.held[request_id]
            num_tokens = len(request.token_ids)
            assert 0 <= budget <= self.num_speculative_tokens
            assert budget == 0 or num_tokens + budget < self.max_len
            if self.own_kv and budget:
                self._slot(request, num_tokens + budget - 2)  # the last position the drafter writes
            if budget:
                drafts[request_id] = self.drafter(request.token_ids, budget)
        return DraftTokenIds(draft_token_ids=drafts)

    def _receive(self, plan: SchedulerOutput) -> None:
        self.plans.append(plan)
        for request_id in plan.finished_req_ids | plan.preempted_req_ids:
            del self.held[request_id]
        for new in plan.scheduled_new_reqs:
            assert new.request_id not in self.held
            assert new.num_computed_tokens % self.block_size == 0
            self.held[new.request_id] = Held(new, list(new.token_ids), list(new.block_ids))
        for cached in plan.scheduled_cached_reqs:
            self.held[cached.request_id].block_ids += cached.new_block_ids
        order = [r.request_id for r in [*plan.scheduled_cached_reqs, *plan.scheduled_new_reqs]]
        assert list(plan.num_scheduled_tokens) == order
        assert 0 < plan.total_num_scheduled_tokens <= self.max_num_batched_tokens
        assert len(self.held) <= self.max_num_seqs
        state_indices = [request.new.state_index for request in self.held.values()]
        assert len(set(state_indices)) == len(state_indices)
        assert all(0 <= index < self.max_num_seqs for index in state_indices)
        for request in self.held.values():
            assert len(set(request.block_ids)) == len(request.block_ids)
            assert all(0 <= block_id < self.num_blocks for block_id in request.block_ids)
        self.last_scheduled = order

    def _verify(self, request: Held, drafts: list[int]) -> list[int]:
        history = list(request.token_ids)
        result: list[int] = []
        for draft in [*drafts, None]:
            token = choose(self.next_token, history, request.new)
            result.append(token)
            history.append(token)
            if token != draft:
                break
        return result

    def _slot(self, request: Held, position: int) -> int:
        return request.block_ids[position // self.block_size] * self.block_size + position % self.block_size

    def _is_shared(self, block_id: int, request_id: str) -> bool:
        return any(block_id in other.block_ids for name, other in self.held.items() if name != request_id)


def choose(next_token: NextToken, history: list[int], request: NewRequestData) -> int:
    """The model's next token, without stop tokens as long as `min_tokens` forbids them."""
    token = next_token(history, request.seed)
    if len(history) - request.num_prompt_tokens < request.sampling_params.min_tokens:
        while token in request.stop_token_ids:
            token = (token + 1) % VOCAB_SIZE
    return token

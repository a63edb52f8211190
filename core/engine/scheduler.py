"""Which tokens of which requests the next forward computes.

There is no prefill and no decode: every request has tokens (prompt, output, drafts) and a count of those that are
computed, and a step moves the second toward the first.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence

from ..api import ConfigError
from ..metrics.stats import SpecDecodeStats
from .commit import commit
from .drafts import Drafts
from .kv_cache import KVCacheManager
from .outputs import CachedRequestData, ModelRunnerOutput, NewRequestData, SchedulerOutput
from .request import FinishReason, Request, RequestStatus


class Scheduler:
    """Plans steps and applies their results.

    Running requests come first, in the order of their admission; then waiting ones, first come first served. When
    blocks run out, drafts are given up first, then the request that was admitted last.

    Args:
        max_num_seqs: most requests in the batch.
        max_num_batched_tokens: most tokens of a step.
        enable_chunked_prefill: whether a prompt may be computed over several steps.
        max_model_len: most tokens of a request, prompt and output.
        drafts: how many each request gets; None: nobody drafts.

    Attributes:
        max_len: most tokens a request can really have: the smaller of `max_model_len` and the capacity of the KV cache.
        requests: every unfinished request by id.

    Raises:
        ConfigError: without chunked prefill a prompt could be longer than a step.
    """

    def __init__(
        self,
        kv_cache: KVCacheManager,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        enable_chunked_prefill: bool = True,
        drafts: Drafts | None = None,
    ) -> None:
        self.kv_cache = kv_cache
        self.drafts = drafts or Drafts()
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.enable_chunked_prefill = enable_chunked_prefill
        self.max_model_len = max_model_len
        self.max_len = min(max_model_len, kv_cache.capacity)
        if not enable_chunked_prefill and max_num_batched_tokens < self.max_len:
            raise ConfigError(
                f"max_num_batched_tokens={max_num_batched_tokens} is below the longest possible prompt "
                f"({self.max_len}); raise it, lower max_model_len, or set enable_chunked_prefill=True"
            )
        self.requests: dict[str, Request] = {}
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self._free_state_indices = list(range(max_num_seqs - 1, -1, -1))
        self._finished_req_ids: set[str] = set()
        self._drafting: list[Request] = []

    def add_request(self, request: Request) -> None:
        """Put an admissible request at the end of the queue."""
        self.requests[request.request_id] = request
        self.waiting.append(request)

    def finish_request(self, request: Request, reason: FinishReason) -> None:
        """End an unfinished request from outside; its blocks are free at once."""
        if request.status is RequestStatus.RUNNING:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        request.finish(reason)
        self._retire(request)

    def schedule(self) -> SchedulerOutput:
        """Plan one step. Without any token to compute, the plan is empty and must not be executed."""
        for request in self.running:
            # Only now, because a drafter writes its own KV of a step's rows after the step.
            self.kv_cache.cache_full_blocks(request, request.num_computed_tokens)
        num_scheduled: dict[str, int] = {}
        drafts: dict[str, list[int]] = {}
        preempted: set[str] = set()
        cached_reqs = list(self._schedule_running(num_scheduled, drafts, preempted))
        # A request that just lost its blocks must not take them back from those it lost them to.
        new_reqs = [] if preempted else list(self._schedule_waiting(num_scheduled))
        for request in self.running:
            request.spec_token_ids = []  # drafts live for one step, scheduled or not
        finished: frozenset[str] = frozenset()
        if num_scheduled:
            finished, self._finished_req_ids = frozenset(self._finished_req_ids), set()
        return SchedulerOutput(
            scheduled_new_reqs=new_reqs,
            scheduled_cached_reqs=cached_reqs,
            num_scheduled_tokens=num_scheduled,
            scheduled_spec_decode_tokens=drafts,
            finished_req_ids=finished,
            preempted_req_ids=frozenset(preempted),
        )

    def update_from_output(
        self, plan: SchedulerOutput, result: ModelRunnerOutput, stats: SpecDecodeStats
    ) -> list[tuple[Request, int]]:
        """Commit the step's tokens, roll rejected drafts back, end what has ended.

        Args:
            stats: drafts and tokens are counted here.

        Returns:
            `(request, number of tokens committed)` of every request that advanced or failed, in batch order.
        """
        advanced: list[tuple[Request, int]] = []
        self._drafting = []
        for request_id, num_rows in plan.num_scheduled_tokens.items():
            request = self.requests[request_id]
            if request_id in result.errors:
                # Its rows do not count as computed: nobody shall find what they left in the cache.
                request.error = result.errors[request_id]
                request.finish(FinishReason.ERROR)
                advanced.append((request, 0))
            else:
                num_drafts = len(plan.scheduled_spec_decode_tokens.get(request_id, ()))
                sampled = result.sampled_token_ids.get(request_id, ())
                request.num_computed_tokens += num_rows
                if sampled:
                    request.num_computed_tokens -= num_drafts - (len(sampled) - 1)
                    num_committed = commit(request, sampled, num_drafts, self.max_len, stats)
                    self.drafts.policy.observe_tokens(request_id, request.token_ids[-num_committed:])
                    advanced.append((request, num_committed))
            if request.is_finished:
                self.running.remove(request)
                self._retire(request)
            else:
                self._drafting.append(request)
        return advanced

    def draft_budgets(self, num_skipped: Counter[str]) -> dict[str, int]:
        """Return the draft budget of every request of the last step that is still running, in batch order.

        Args:
            num_skipped: requests that get no draft are counted here, by reason.
        """
        drafting = [request for request in self._drafting if request.status is RequestStatus.RUNNING]
        self._drafting = []
        return self.drafts.budgets(
            drafting,
            max_len=self.max_len,
            block_size=self.kv_cache.block_size,
            num_skipped=num_skipped,
        )

    def _schedule_running(
        self, num_scheduled: dict[str, int], drafts: dict[str, list[int]], preempted: set[str]
    ) -> Iterator[CachedRequestData]:
        budget = self.max_num_batched_tokens
        # What the requests need to go on at all must not be taken by the drafts of those before them.
        num_reserved_blocks = sum(map(self._num_missing_blocks, self.running))
        index = 0
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            index += 1
            num_blocks = len(request.block_ids)
            num_rows = min(request.num_tokens_with_spec - request.num_computed_tokens, budget)
            num_spare_rows = budget - (len(self.running) - index)
            num_rows = min(num_rows, max(request.num_tokens - request.num_computed_tokens, num_spare_rows))
            num_reserved_blocks -= self._num_missing_blocks(request)
            num_rows = self._allocate_or_preempt(request, num_rows, num_reserved_blocks, preempted)
            if num_rows == 0:
                break  # it preempted itself, so it was the last
            num_drafts = request.num_computed_tokens + num_rows - request.num_tokens
            if num_drafts > 0:
                drafts[request.request_id] = request.spec_token_ids[:num_drafts]
            num_scheduled[request.request_id] = num_rows
            budget -= num_rows
            yield CachedRequestData(
                request_id=request.request_id,
                new_block_ids=request.block_ids[num_blocks:],
                num_computed_tokens=request.num_computed_tokens,
            )

    def _allocate_or_preempt(
        self, request: Request, num_rows: int, num_reserved_blocks: int, preempted: set[str]
    ) -> int:
        """Return the rows there is room for: `num_rows`, or without drafts, or 0 if it was preempted itself."""
        if self._allocate(request, num_rows, num_reserved_blocks=num_reserved_blocks):
            return num_rows
        num_rows = min(num_rows, request.num_tokens - request.num_computed_tokens)
        while not self.kv_cache.allocate(request, request.num_computed_tokens + num_rows):
            victim = self.running.pop()
            self._preempt(victim)
            preempted.add(victim.request_id)
            if victim is request:
                return 0
        return num_rows

    def _schedule_waiting(self, num_scheduled: dict[str, int]) -> Iterator[NewRequestData]:
        budget = self.max_num_batched_tokens - sum(num_scheduled.values())
        while self.waiting and len(self.running) < self.max_num_seqs and budget > 0:
            request = self.waiting[0]
            cached_block_ids = self.kv_cache.find_cached_prefix(request)
            num_cached = len(cached_block_ids) * self.kv_cache.block_size
            num_rows = request.num_tokens - num_cached
            if num_rows > budget:
                if not self.enable_chunked_prefill:
                    break
                num_rows = budget
            request.num_computed_tokens = num_cached
            if not self._allocate(request, num_rows, cached_block_ids) and not self.kv_cache.allocate(
                request, num_cached + num_rows, cached_block_ids
            ):
                break
            self.waiting.popleft()
            if request.status is RequestStatus.WAITING:
                request.num_cached_tokens = num_cached
            request.status = RequestStatus.RUNNING
            request.state_index = self._free_state_indices.pop()
            self.running.append(request)
            num_scheduled[request.request_id] = num_rows
            budget -= num_rows
            yield NewRequestData(
                request_id=request.request_id,
                token_ids=list(request.token_ids),
                num_prompt_tokens=request.num_prompt_tokens,
                sampling_params=request.sampling_params,
                seed=request.seed,
                stop_token_ids=request.stop_token_ids,
                block_ids=list(request.block_ids),
                state_index=request.state_index,
                num_computed_tokens=num_cached,
            )

    def _allocate(
        self,
        request: Request,
        num_rows: int,
        cached_block_ids: Sequence[int] = (),
        num_reserved_blocks: int = 0,
    ) -> bool:
        """Make room for the rows and for what a drafter writes beyond them, and leave some blocks to others."""
        num_tokens = request.num_computed_tokens + num_rows + self.drafts.limits.num_lookahead_tokens
        return self.kv_cache.allocate(
            request, min(num_tokens, self.max_len), cached_block_ids, num_reserved_blocks=num_reserved_blocks
        )

    def _num_missing_blocks(self, request: Request) -> int:
        return self.kv_cache.num_missing_blocks(request, request.num_tokens)

    def _preempt(self, request: Request) -> None:
        request.status = RequestStatus.PREEMPTED
        request.spec_token_ids = []
        self._release(request)
        self.waiting.appendleft(request)

    def _retire(self, request: Request) -> None:
        if self.drafts.limits.num_lookahead_tokens == 0:
            # Otherwise a drafter's own KV may end where the last step began: it never sees that step's rows.
            self.kv_cache.cache_full_blocks(request, request.num_computed_tokens)
        if request.state_index >= 0:  # the runner holds it
            self._finished_req_ids.add(request.request_id)
        self._release(request)
        self.drafts.policy.forget(request.request_id)
        del self.requests[request.request_id]

    def _release(self, request: Request) -> None:
        request.num_computed_tokens = 0
        self.kv_cache.free(request)
        if request.state_index >= 0:
            self._free_state_indices.append(request.state_index)
            request.state_index = -1

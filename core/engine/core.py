"""The engine: admits requests, runs steps, tells plugins and callers what happened. Knows nothing of tensors."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from ..api import ProposerError, RequestError, SamplingParams
from ..metrics.stats import EngineStats
from .admission import check_request
from .detokenizer import CachedTokenizer, Detokenizer, Tokenizer
from .outputs import DraftTokenIds, ModelRunnerOutput, SchedulerOutput
from .request import FinishReason, Request
from .request_output import RequestOutput
from .scheduler import Scheduler


class RunnerProtocol(Protocol):
    """What computes a plan. The engine calls `execute`, then at most once `take_draft_token_ids`, and so on."""

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        """Run one forward over the plan's rows and choose the next tokens.

        Requests in `finished_req_ids` and `preempted_req_ids` leave before those of `scheduled_new_reqs` enter: an id
        may be in both. An id may also be unknown, if the forward that should have brought it failed.
        """
        ...

    def take_draft_token_ids(self, draft_budgets: Mapping[str, int]) -> DraftTokenIds:
        """Draft for the requests of the last plan that are still running; 0 is a budget, too."""
        ...


class LifecycleListener(Protocol):
    """Who wants to know about the life of requests: the plugins. The listener handles its own errors."""

    def request_added(self, request_id: str, token_ids: list[int], sampling_params: SamplingParams) -> None:
        """It entered the batch: for the first time, or again after a preemption."""
        ...

    def tokens_committed(self, request_id: str, token_ids: Sequence[int]) -> None:
        """These tokens were appended to its output."""
        ...

    def request_preempted(self, request_id: str) -> None:
        """It lost its place and its blocks."""
        ...

    def request_finished(self, request_id: str) -> None:
        """It ended; once for every request that was ever added."""
        ...


class EngineCore:
    """One engine.

    Args:
        scheduler: with its KV cache and draft policy.
        plugins: told of each request's life.
        stats: counted up in place.
        vocab_size: token ids of prompts are in `[0, vocab_size)`.
        tokenizer: turns output into text; without one, texts are empty and stop strings are refused.
        seed: of the generator that draws the seeds of requests that come without one.
        clock: seconds that only go up.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: RunnerProtocol,
        plugins: LifecycleListener,
        stats: EngineStats,
        *,
        vocab_size: int,
        tokenizer: Tokenizer | None = None,
        seed: int = 0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self.stats = stats
        self._plugins = plugins
        self._vocab_size = vocab_size
        self._tokenizer = None if tokenizer is None else CachedTokenizer(tokenizer)
        self._seeds = random.Random(seed)
        self._clock = clock

    def add_request(self, request: Request) -> None:
        """Admit a request to the queue.

        Raises:
            RequestError: it is invalid; nothing has changed for anyone.
        """
        if request.request_id in self.scheduler.requests:
            raise RequestError(
                f"request {request.request_id!r}: an unfinished request has this id; use another, or wait for it"
            )
        check_request(
            request,
            vocab_size=self._vocab_size,
            max_model_len=self.scheduler.max_model_len,
            kv_capacity=self.scheduler.kv_cache.capacity,
            has_tokenizer=self._tokenizer is not None,
        )
        params = request.sampling_params
        if params.seed is None:
            request.seed = self._seeds.getrandbits(64)
        if self._tokenizer is not None:
            request.detokenizer = Detokenizer(
                self._tokenizer,
                skip_special_tokens=params.skip_special_tokens,
                stop=params.stop,
                include_stop_str=params.include_stop_str_in_output,
            )
        self.scheduler.add_request(request)
        self._count_requests()

    def abort_request(self, request_id: str) -> RequestOutput | None:
        """End a request and return what it has so far; None if there is no such unfinished request."""
        request = self.scheduler.requests.get(request_id)
        if request is None:
            return None
        self.scheduler.finish_request(request, FinishReason.ABORT)
        return self._finished_from_outside(request)

    def has_unfinished_requests(self) -> bool:
        """Whether another step would do anything."""
        return bool(self.scheduler.requests)

    def step(self) -> list[RequestOutput]:
        """Plan, run and commit one step.

        Returns:
            One output per request that got tokens or cannot go on, in batch order.

        Raises:
            Exception: whatever the runner raised. The requests of the failed step have then ended with reason "error".
        """
        begin = self._clock()
        plan = self.scheduler.schedule()
        if not plan.num_scheduled_tokens:
            return []
        self._tell_schedule(plan)
        before = self._clock()
        try:
            result = self.runner.execute(plan)
        except Exception as error:
            self._fail_step(plan, error)
            raise
        after = self._clock()
        outputs = [
            self._advanced(request, num_new_tokens)
            for request, num_new_tokens in self.scheduler.update_from_output(plan, result, self.stats.spec)
        ]
        self._count_requests()
        self.stats.num_steps += 1
        self.stats.model_seconds += result.model_seconds
        verify_seconds, other_seconds = after - before, before - begin + self._clock() - after
        self.stats.verify_seconds += verify_seconds
        self.stats.other_seconds += other_seconds
        self.scheduler.drafts.observe_step(plan, verify_seconds, other_seconds)
        return outputs

    def post_step(self) -> None:
        """Ask the proposer for the drafts of the next step.

        Raises:
            ProposerError: the proposer failed and the policy is to raise. The requests go on undrafted.
        """
        begin = self._clock()
        budgets = self.scheduler.draft_budgets(self.stats.num_skipped_drafts)
        if not budgets:
            return
        before = self._clock()
        try:
            drafts = self.runner.take_draft_token_ids(budgets)
        except ProposerError:
            self.stats.num_plugin_errors += 1
            raise
        after = self._clock()
        self.scheduler.drafts.policy.observe_proposal(budgets, after - before)
        self.scheduler.drafts.keep(self.scheduler.requests, drafts, budgets, self.stats)
        self.stats.num_plugin_errors += drafts.num_errors
        self.stats.draft_seconds += after - before
        self.stats.other_seconds += before - begin + self._clock() - after

    def _tell_schedule(self, plan: SchedulerOutput) -> None:
        for request_id in sorted(plan.preempted_req_ids):
            self.stats.num_preemptions += 1
            self._plugins.request_preempted(request_id)
        for new in plan.scheduled_new_reqs:
            request = self.scheduler.requests[new.request_id]
            if not request.was_added:
                request.was_added = True
                self.stats.num_prompt_tokens += request.num_prompt_tokens
                self.stats.num_cached_tokens += request.num_cached_tokens
            self._plugins.request_added(new.request_id, list(new.token_ids), new.sampling_params)

    def _advanced(self, request: Request, num_new_tokens: int) -> RequestOutput:
        output = RequestOutput.of(request, num_new_tokens)
        self._plugins.tokens_committed(request.request_id, output.outputs[0].new_token_ids)
        if request.is_finished:
            self._tell_finished(request)
        return output

    def _finished_from_outside(self, request: Request) -> RequestOutput:
        self._tell_finished(request)
        self._count_requests()
        return RequestOutput.of(request, 0)

    def _tell_finished(self, request: Request) -> None:
        assert request.finish_reason is not None
        self.stats.num_finished[request.finish_reason.value] += 1
        if request.was_added:
            self._plugins.request_finished(request.request_id)

    def _fail_step(self, plan: SchedulerOutput, error: Exception) -> None:
        # Whether their KV was written is unknown, so none of them can go on.
        for request_id in plan.num_scheduled_tokens:
            request = self.scheduler.requests[request_id]
            request.error = str(error)
            self.scheduler.finish_request(request, FinishReason.ERROR)
            self._finished_from_outside(request)

    def _count_requests(self) -> None:
        self.stats.num_running = len(self.scheduler.running)
        self.stats.num_waiting = len(self.scheduler.waiting)

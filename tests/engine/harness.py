"""An engine around the fake runner, what its plugins were told, and the sequential truth to compare with."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from outrider.api import ProposerCapabilities, SamplingParams
from outrider.engine.core import EngineCore
from outrider.engine.draft_limits import DraftLimits
from outrider.engine.draft_policy import DraftPolicy
from outrider.engine.drafts import Drafts
from outrider.engine.kv_cache import KVCacheManager
from outrider.engine.request import Request
from outrider.engine.request_output import RequestOutput
from outrider.engine.scheduler import Scheduler
from outrider.metrics.stats import EngineStats

from .fake_runner import VOCAB_SIZE, Drafter, FakeRunner, NextToken, choose, mix, no_drafts

TEXTS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-"


class LetterTokenizer:
    """One letter per token; token 63 is special."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        """Return the letters."""
        return "".join(TEXTS[token] for token in token_ids if not (skip_special_tokens and token == 63))


class Events:
    """A life-cycle listener that writes everything down."""

    def __init__(self) -> None:
        self.log: list[tuple[str, str, Any]] = []

    def request_added(self, request_id: str, token_ids: list[int], sampling_params: SamplingParams) -> None:
        self.log.append(("added", request_id, token_ids))

    def tokens_committed(self, request_id: str, token_ids: list[int]) -> None:
        self.log.append(("committed", request_id, token_ids))

    def request_preempted(self, request_id: str) -> None:
        self.log.append(("preempted", request_id, None))

    def request_finished(self, request_id: str) -> None:
        self.log.append(("finished", request_id, None))

    def names(self, request_id: str) -> list[str]:
        """Names of the events of one request, without `committed`."""
        return [name for name, other, _ in self.log if other == request_id and name != "committed"]

    def committed(self, request_id: str) -> list[int]:
        """All tokens that were committed to one request."""
        return [
            token
            for name, other, tokens in self.log
            if name == "committed" and other == request_id
            for token in tokens
        ]


class Harness:
    """Builds an engine and runs requests through it."""

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        block_size: int = 4,
        max_model_len: int = 64,
        max_num_seqs: int = 8,
        max_num_batched_tokens: int = 64,
        enable_chunked_prefill: bool = True,
        enable_prefix_caching: bool = True,
        num_speculative_tokens: int = 0,
        capabilities: ProposerCapabilities | None = None,
        draft_policy: DraftPolicy | None = None,
        next_token: NextToken = mix,
        drafter: Drafter = no_drafts,
        tokenizer: Any = None,
        seed: int = 0,
        clock: Callable[[], float] | None = None,
    ) -> None:
        capabilities = capabilities or ProposerCapabilities()
        from_hidden_states = capabilities.hidden_states or bool(capabilities.aux_hidden_layers)
        self.kv_cache = KVCacheManager(
            num_blocks,
            block_size,
            enable_prefix_caching=enable_prefix_caching,
            recompute_last_cached_block=capabilities.own_kv and from_hidden_states,
        )
        self.scheduler = Scheduler(
            self.kv_cache,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=max_model_len,
            enable_chunked_prefill=enable_chunked_prefill,
            drafts=Drafts(DraftLimits(num_speculative_tokens, capabilities), draft_policy),
        )
        self.runner = FakeRunner(
            num_blocks,
            block_size,
            self.scheduler.max_len,
            max_num_seqs,
            max_num_batched_tokens,
            num_speculative_tokens,
            capabilities,
            next_token,
            drafter,
        )
        self.events = Events()
        self.stats = EngineStats()
        self.engine = EngineCore(
            self.scheduler,
            self.runner,
            self.events,
            self.stats,
            vocab_size=VOCAB_SIZE,
            tokenizer=tokenizer,
            seed=seed,
            **({} if clock is None else {"clock": clock}),
        )
        self.outputs: dict[str, RequestOutput] = {}
        self.streamed_text: dict[str, str] = defaultdict(str)
        self.streamed_tokens: dict[str, list[int]] = {}

    def add(self, request_id: str, prompt: Sequence[int], eos: Sequence[int] = (), **params: Any) -> None:
        """Admit a request."""
        self.engine.add_request(Request(request_id, prompt, SamplingParams(**params), eos_token_ids=eos))
        self.streamed_tokens[request_id] = []

    def abort(self, request_id: str) -> None:
        """Abort a request if it is not finished."""
        output = self.engine.abort_request(request_id)
        if output is not None:
            self._take(output)

    def step(self, abort_before_drafting: Sequence[str] = ()) -> list[RequestOutput]:
        """One step and what belongs behind it."""
        outputs = self.engine.step()
        for output in outputs:
            self._take(output)
        for request_id in abort_before_drafting:
            self.abort(request_id)
        self.engine.post_step()
        return outputs

    def run(self, max_steps: int = 2000) -> dict[str, RequestOutput]:
        """Step until nothing is left."""
        for _ in range(max_steps):
            if not self.engine.has_unfinished_requests():
                return self.outputs
            self.step()
        raise AssertionError("the engine does not come to an end")

    def _take(self, output: RequestOutput) -> None:
        completion = output.outputs[0]
        self.outputs[output.request_id] = output
        self.streamed_text[output.request_id] += completion.new_text
        self.streamed_tokens[output.request_id] += completion.new_token_ids
        assert self.streamed_tokens[output.request_id] == completion.token_ids

    def assert_clean(self) -> None:
        """Nothing leaked, everybody was told, and all counts agree."""
        assert not self.engine.has_unfinished_requests()
        assert self.kv_cache.num_free_blocks == self.kv_cache.pool.num_blocks
        assert sorted(self.scheduler._free_state_indices) == list(range(self.scheduler.max_num_seqs))
        for request_id, output in self.outputs.items():
            names = self.events.names(request_id)
            assert names.count("finished") == min(1, names.count("added"))
            assert not names or names[-1] == "finished"
            assert names.count("added") - names.count("preempted") in (0, 1)
            assert self.events.committed(request_id) == output.outputs[0].token_ids
            assert len(output.outputs[0].token_origins) == len(output.outputs[0].token_ids)
        usage = sum(len(output.outputs[0].token_ids) for output in self.outputs.values())
        assert self.stats.spec.num_emitted_tokens == usage
        assert self.stats.num_finished.total() == len(self.outputs)
        assert self.stats.num_running == self.stats.num_waiting == 0
        for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_emitted_tokens"):
            per_request = sum(getattr(output.metrics, name) for output in self.outputs.values())
            assert getattr(self.stats.spec, name) == per_request


@dataclass
class Truth:
    """What plain decoding, one token at a time, gives."""

    token_ids: list[int]
    finish_reason: str
    stop_reason: int | str | None
    text: str


def plain(
    prompt: Sequence[int],
    params: SamplingParams,
    seed: int,
    *,
    max_len: int,
    eos: Sequence[int] = (),
    next_token: NextToken = mix,
) -> Truth:
    """Generate sequentially, written without a look at the engine."""
    decode = LetterTokenizer().decode
    skip = params.skip_special_tokens
    eos = [] if params.ignore_eos else list(eos)
    stop_ids = frozenset([*eos, *params.stop_token_ids])
    output: list[int] = []
    while True:
        token = choose(next_token, [*prompt, *output], seed, params.min_tokens - len(output), stop_ids)
        before = decode(output, skip_special_tokens=skip)
        output.append(token)
        text = decode(output, skip_special_tokens=skip)
        if token in stop_ids:
            kept = text if params.include_stop_str_in_output else before
            return Truth(output, "stop", None if token in eos else token, kept)
        if len(output) > params.min_tokens:
            for end in range(len(before) + 1, len(text) + 1):
                ending = [stop for stop in params.stop if text[:end].endswith(stop)]
                if ending:
                    stop = max(ending, key=len)
                    kept = text[:end] if params.include_stop_str_in_output else text[: end - len(stop)]
                    return Truth(output, "stop", stop, kept)
        if len(output) == params.max_tokens or len(prompt) + len(output) == max_len:
            return Truth(output, "length", None, text)

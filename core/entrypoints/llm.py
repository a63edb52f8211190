"""The offline front door: load a model once, then generate."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from types import TracebackType
from typing import Any, Self

from tqdm import tqdm

from ..api import ConfigError, RequestError, SamplingParams
from ..config import EngineConfig
from ..engine.request import Request
from ..engine.request_output import RequestOutput
from ..metrics.stats import EngineStats
from .engine_factory import Engine, build_engine
from .prompts import Message, TokenizedPrompt, has_chat_template, tokenize_conversation, tokenize_prompt

logger = logging.getLogger(__name__)

Prompt = str | Mapping[str, Any]
"""A text, `{"prompt": text}`, or `{"prompt_token_ids": [ids]}`."""


class LLM:
    """A model, with the drafter and the attention backends that the configuration names. Shaped like vLLM's class.

    A request that is invalid (an empty prompt, one that is too long, ...) comes back with the finish reason "error" and
    the reason in `RequestOutput.error`; the others go on. An exception in mid-generation, `KeyboardInterrupt` included,
    ends the requests that were running; the object stays usable.

    Args:
        model: local folder, hub id, path of a GGUF file, or `smollm2`.
        speculative_config: who drafts, in vLLM's flat form: `{"method": "<name>", "num_speculative_tokens": 4}`.
            None: plain decoding.
        settings: the flat names of `EngineConfig`: `max_model_len`, `max_num_seqs`, `max_num_batched_tokens`,
            `enable_chunked_prefill`, `block_size`, `num_kv_blocks`, `enable_prefix_caching`, `seed`, `dtype`, `device`,
            `tokenizer`, `trust_remote_code`, `attention_backend`, `extensions`, ...

    Raises:
        ConfigError: a name is unknown or a value wrong.
        ModelError: the model cannot be loaded.
        PluginError: a plugin is missing, broken, or cannot work with this model.
    """

    def __init__(
        self, model: str, *, speculative_config: Mapping[str, Any] | None = None, **settings: Any
    ) -> None:
        self._start(EngineConfig.from_flat(model=model, speculative_config=speculative_config, **settings))

    @classmethod
    def from_config(cls, config: EngineConfig) -> Self:
        """Build from a configuration object, for instance `EngineConfig.from_file(path)`."""
        llm = cls.__new__(cls)
        llm._start(config)
        return llm

    def _start(self, config: EngineConfig) -> None:
        self.config = config
        self._engine: Engine | None = build_engine(config)
        self._ids = count()
        # Outputs that were made while another caller's loop ran the step wait here for their own.
        self._mailboxes: dict[str, deque[RequestOutput]] = {}

    @property
    def engine(self) -> Engine:
        """What does the work.

        Raises:
            RuntimeError: the object was shut down.
        """
        if self._engine is None:
            raise RuntimeError("this LLM was shut down; build another one")
        return self._engine

    @property
    def stats(self) -> EngineStats:
        """What the engine has counted since it was built."""
        return self.engine.core.stats

    @property
    def max_model_len(self) -> int:
        """Most tokens of prompt and output together."""
        return self.engine.loaded.max_model_len

    def get_tokenizer(self) -> Any:
        """The transformers tokenizer, or None if the model has none."""
        return self.engine.loaded.tokenizer

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Complete every prompt, all of them in one batch.

        Args:
            prompts: one or several.
            sampling_params: for all prompts, or one per prompt; None: `SamplingParams()`.
            use_tqdm: show a progress bar over the finished requests.

        Returns:
            One output per prompt, in their order.
        """
        batch: list[Any] = [prompts] if isinstance(prompts, str | Mapping) else list(prompts)
        return self._run(batch, self._tokenize, sampling_params, use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Answer one conversation, or several in one batch; see `generate`.

        Raises:
            ConfigError: the tokenizer has no chat template.
        """
        if not has_chat_template(self.get_tokenizer()):
            raise ConfigError(
                f"model {self.config.model.model!r} has no chat template; use generate() with a text, or name a "
                "tokenizer that has one with LLM(tokenizer=...)"
            )
        one = all(isinstance(message, Mapping) for message in messages)
        return self._run([messages] if one else list(messages), self._render, sampling_params, use_tqdm)

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None
    ) -> Iterator[RequestOutput]:
        """Yield the request's output as it grows; the last one is `finished`.

        `outputs[0].new_text` and `.new_token_ids` are what the previous output did not have. Leaving the loop early
        ends the request. Several streams, and `generate`, may be under way at once.
        """
        request_id = str(next(self._ids))
        try:
            refused = self._submit(request_id, prompt, self._tokenize, sampling_params or SamplingParams())
            if refused is not None:
                yield refused
                return
            mailbox = self._mailboxes[request_id]
            while True:
                while not mailbox:
                    self._step()
                output = mailbox.popleft()
                yield output
                if output.finished:
                    return
        finally:
            self._abort([request_id])

    def shutdown(self) -> None:
        """End what is running and let go of the model's memory. The object cannot be used afterwards."""
        if self._engine is not None:
            self._abort(list(self._mailboxes))
            self._engine = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def _run(
        self,
        prompts: list[Any],
        tokenize: Callable[[Any], TokenizedPrompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        use_tqdm: bool,
    ) -> list[RequestOutput]:
        params = _one_per_prompt(sampling_params, len(prompts))
        request_ids = [str(next(self._ids)) for _ in prompts]
        finished: dict[str, RequestOutput] = {}
        with tqdm(total=len(prompts), unit="request", disable=not use_tqdm) as progress:
            try:
                for request_id, prompt, one in zip(request_ids, prompts, params, strict=True):
                    refused = self._submit(request_id, prompt, tokenize, one)
                    if refused is not None:
                        logger.warning("%s", refused.error)
                        finished[request_id] = refused
                        progress.update()
                waiting = [request_id for request_id in request_ids if request_id not in finished]
                while waiting:
                    self._step()
                    for request_id in waiting:
                        self._collect(request_id, finished)
                    progress.update(sum(request_id in finished for request_id in waiting))
                    waiting = [request_id for request_id in waiting if request_id not in finished]
            finally:
                self._abort(request_ids)
        return [finished[request_id] for request_id in request_ids]

    def _collect(self, request_id: str, finished: dict[str, RequestOutput]) -> None:
        mailbox = self._mailboxes[request_id]
        while mailbox:
            output = mailbox.popleft()
            if output.finished:
                finished[request_id] = output

    def _submit(
        self,
        request_id: str,
        prompt: Any,
        tokenize: Callable[[Any], TokenizedPrompt],
        sampling_params: SamplingParams,
    ) -> RequestOutput | None:
        """Hand a request to the engine. Return its output if it is refused, else None."""
        tokenized = TokenizedPrompt(prompt if isinstance(prompt, str) else None, [])
        try:
            tokenized = tokenize(prompt)
            self.engine.core.add_request(
                Request(
                    request_id,
                    tokenized.token_ids,
                    sampling_params,
                    prompt=tokenized.text,
                    eos_token_ids=self.engine.loaded.eos_token_ids,
                )
            )
        except RequestError as error:
            return RequestOutput.refused(
                request_id, str(error), prompt=tokenized.text, prompt_token_ids=tokenized.token_ids
            )
        self._mailboxes[request_id] = deque()
        return None

    def _step(self) -> None:
        core = self.engine.core
        if not core.has_unfinished_requests():
            raise RuntimeError("an output is waited for, but no request is unfinished")
        try:
            outputs = core.step()
            core.post_step()
        except BaseException as error:
            # Somewhere between two steps: how far any request is computed can no longer be trusted.
            for request_id, mailbox in self._mailboxes.items():
                core.abort_request(request_id)
                mailbox.append(RequestOutput.refused(request_id, f"a step failed: {error!r}"))
            raise
        for output in outputs:
            self._mailboxes[output.request_id].append(output)
        self.engine.log_line.poll()

    def _abort(self, request_ids: Sequence[str]) -> None:
        """Forget requests, wherever they stand."""
        for request_id in request_ids:
            self._mailboxes.pop(request_id, None)
            if self._engine is not None:
                self._engine.core.abort_request(request_id)

    def _tokenize(self, prompt: Any) -> TokenizedPrompt:
        return tokenize_prompt(prompt, self.get_tokenizer())

    def _render(self, messages: Any) -> TokenizedPrompt:
        return tokenize_conversation(messages, self.get_tokenizer())


def _one_per_prompt(
    given: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int
) -> list[SamplingParams]:
    if given is None or isinstance(given, SamplingParams):
        return [given or SamplingParams()] * num_prompts
    if len(given) != num_prompts:
        raise ConfigError(
            f"{len(given)} sampling params for {num_prompts} prompts; give one for all, or one per prompt"
        )
    return list(given)

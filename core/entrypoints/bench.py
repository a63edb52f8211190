"""`outrider bench`: the same prompts through several ways of decoding, turn by turn."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

from ..api import ConfigError, SamplingParams
from ..config import EngineConfig, SpeculativeConfig
from ..engine.request_output import RequestOutput
from ..metrics.stats import EngineStats
from .flags import parse_option
from .llm import LLM, Prompt
from .prompt_files import FilePrompt
from .prompts import has_chat_template, user_turn

PLAIN = "plain"
"""The method that drafts nothing; every other one is compared with it."""

_NUM_WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Method:
    """One way of decoding.

    Attributes:
        label: as the user wrote it.
        speculative: None: plain decoding.
    """

    label: str
    speculative: SpeculativeConfig | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRun:
    """One batch of prompts through one method, once.

    Attributes:
        batch: index of the batch.
        prompts, outputs: in the same order; prompts of one category.
        seconds: from asking to the last token of the last request.
    """

    method: str
    repeat: int
    batch: int
    prompts: Sequence[FilePrompt]
    outputs: Sequence[RequestOutput]
    seconds: float

    @property
    def category(self) -> str:
        """The category of its prompts."""
        return self.prompts[0].category


@dataclass(frozen=True, slots=True)
class BenchResult:
    """Everything that was measured.

    Attributes:
        runs: in the order in which they ran.
        stats: per method what its engine counted in those runs.
    """

    methods: Sequence[Method]
    runs: Sequence[BatchRun]
    stats: Mapping[str, EngineStats]


def parse_methods(text: str, num_speculative_tokens: int | None = None) -> list[Method]:
    """Read `plain,<name>,<name>:key=value:key=value`; a name may be a path such as `./file.py:Class`, a value a
    JSON list or object.

    Args:
        num_speculative_tokens: for the methods that do not set it themselves; None: the default.

    Raises:
        ConfigError: nothing is named, something is named twice, plain has options, or an option is wrong.
    """
    methods = [
        _parse_method(item.strip(), num_speculative_tokens) for item in _split(text, ",") if item.strip()
    ]
    labels = [method.label for method in methods]
    if not labels or len(set(labels)) < len(labels):
        raise ConfigError(f"--methods {text!r}: name at least one method, and each only once")
    return methods


def _parse_method(label: str, num_speculative_tokens: int | None) -> Method:
    parts = _split(label, ":")
    options = dict(parse_option(part) for part in parts if "=" in part)
    name = ":".join(part for part in parts if "=" not in part)
    if name == PLAIN:
        if options:
            raise ConfigError(f"method {label!r}: plain decoding has no options")
        return Method(label, None)
    if num_speculative_tokens is not None:
        options.setdefault("num_speculative_tokens", num_speculative_tokens)
    return Method(label, SpeculativeConfig(**{"method": name, **options}))


def _split(text: str, separator: str) -> list[str]:
    """Split where no bracket is open."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "[{") - (character in "]}")
        if character == separator and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


class Benchmark:
    """Methods and prompts, ready to run.

    All methods are loaded at once and take turns, batch by batch, so that whatever else the machine does meets all of
    them alike. A batch has prompts of one category; a category with fewer prompts than a batch repeats them, so that
    every category is measured at that size. The prefix cache is off: a repetition shall do the same work again.

    Args:
        sampling_params: of every request, but for the seed: that is one more for each next request of a batch.
    """

    def __init__(
        self,
        config: EngineConfig,
        methods: Sequence[Method],
        prompts: Sequence[FilePrompt],
        sampling_params: SamplingParams,
        *,
        batch_size: int,
        repeats: int,
        console: Console,
    ) -> None:
        self._config = config
        self._methods = methods
        self._batches = _batches(prompts, batch_size)
        self._sampling_params = sampling_params
        self._repeats = repeats
        self._console = console

    def run(self) -> BenchResult:
        """Load, warm up, measure."""
        with ExitStack() as stack:
            llms = {method.label: stack.enter_context(self._load(method)) for method in self._methods}
            return self._measure(llms)

    def _load(self, method: Method) -> LLM:
        with self._console.status(f"loading {self._config.model.model} for {method.label} ..."):
            cache = self._config.cache.model_copy(update={"enable_prefix_caching": False})
            return LLM.from_config(
                self._config.model_copy(update={"speculative": method.speculative, "cache": cache})
            )

    def _measure(self, llms: Mapping[str, LLM]) -> BenchResult:
        labels = list(llms)
        runs = []
        with Progress(
            *Progress.get_default_columns()[:2],
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=self._console,
        ) as progress:
            task = progress.add_task("warming up", total=self._repeats * len(self._batches) * len(labels))
            for llm in llms.values():
                self._warm_up(llm)
            before = {label: copy.deepcopy(llm.stats) for label, llm in llms.items()}
            for repeat in range(self._repeats):
                for index, batch in enumerate(self._batches):
                    # Nobody is always the one who runs first.
                    first = (index + repeat) % len(labels)
                    for label in labels[first:] + labels[:first]:
                        progress.update(task, description=label)
                        outputs, seconds = self._run_batch(llms[label], batch)
                        runs.append(
                            BatchRun(
                                method=label,
                                repeat=repeat,
                                batch=index,
                                prompts=batch,
                                outputs=outputs,
                                seconds=seconds,
                            )
                        )
                        progress.advance(task)
        stats = {label: llm.stats.since(before[label]) for label, llm in llms.items()}
        return BenchResult(self._methods, runs, stats)

    def _warm_up(self, llm: LLM) -> None:
        num_tokens = min(_NUM_WARM_UP_TOKENS, self._sampling_params.max_tokens)
        few = [one.model_copy(update={"max_tokens": num_tokens}) for one in self._params(self._batches[0])]
        llm.generate(_prompts(llm, self._batches[0]), few, use_tqdm=False)

    def _run_batch(self, llm: LLM, batch: Sequence[FilePrompt]) -> tuple[list[RequestOutput], float]:
        prompts, params = _prompts(llm, batch), self._params(batch)
        start = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        return outputs, time.perf_counter() - start

    def _params(self, batch: Sequence[FilePrompt]) -> list[SamplingParams]:
        first = self._sampling_params.seed or 0
        return [
            self._sampling_params.model_copy(update={"seed": (first + i) % 2**64}) for i in range(len(batch))
        ]


def _batches(prompts: Sequence[FilePrompt], batch_size: int) -> list[list[FilePrompt]]:
    categories: dict[str, list[FilePrompt]] = {}
    for prompt in prompts:
        categories.setdefault(prompt.category, []).append(prompt)
    batches = []
    for same in categories.values():
        if len(same) < batch_size:
            same = list(islice(cycle(same), batch_size))
        batches += [same[start : start + batch_size] for start in range(0, len(same), batch_size)]
    return batches


def _prompts(llm: LLM, batch: Sequence[FilePrompt]) -> list[Prompt]:
    tokenizer: Any = llm.get_tokenizer()
    if not has_chat_template(tokenizer):
        return [prompt.text for prompt in batch]
    return [user_turn(prompt.text, tokenizer) for prompt in batch]

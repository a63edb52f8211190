"""`outrider generate`: stream the answers to some prompts, and show what drafting did for them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from ..api import ConfigError, SamplingParams
from ..config import EngineConfig, SpeculativeConfig
from ..engine.request_output import RequestOutput
from ..metrics.stats import SpecDecodeStats
from .compare import describe_difference
from .llm import LLM, Prompt
from .painting import TokenPainter, legend
from .prompts import has_chat_template, user_turn


@dataclass(frozen=True, slots=True)
class Answer:
    """One finished request and the seconds from asking to its last token."""

    output: RequestOutput
    seconds: float


class GenerateCommand:
    """The command, once its flags are read.

    Args:
        chat: send each prompt through the chat template; None: if the tokenizer has one.
        show_drafts: paint each token by where it came from.
        compare: decode plainly too, and say whether the tokens are the same.
        out: for the text, and what was asked about it.
        err: for everything else.
    """

    def __init__(
        self,
        config: EngineConfig,
        prompts: Sequence[str],
        sampling_params: SamplingParams,
        *,
        chat: bool | None,
        show_drafts: bool,
        compare: bool,
        out: Console,
        err: Console,
    ) -> None:
        if compare and config.speculative is None:
            raise ConfigError("nothing to compare plain decoding with; name a proposer with --method")
        self._config = config
        self._prompts = prompts
        self._sampling_params = sampling_params
        self._chat = chat
        self._show_drafts = show_drafts
        self._compare = compare
        self._out = out
        self._err = err
        self._origins: Counter[str] = Counter()

    def run(self) -> int:
        """Generate and print.

        Returns:
            Exit status: 2 if a prompt was refused, 1 if the comparison found a difference, else 0.
        """
        with self._load(self._config) as llm:
            answers = [self._answer(llm, prompt) for prompt in self._prompts]
            if self._show_drafts:
                self._out.print(legend(self._origins))
            if llm.stats.spec.num_emitted_tokens:
                self._err.print(stats_line(sum(answer.seconds for answer in answers), llm.stats.spec))
        status = 2 if any(answer.output.error for answer in answers) else 0
        if self._compare:
            status = max(status, self._compare_with_plain(answers))
        return status

    def _load(self, config: EngineConfig) -> LLM:
        drafter = f" with {method_name(config.speculative)}" if config.speculative else ""
        with self._err.status(f"loading {config.model.model}{drafter} ..."):
            return LLM.from_config(config)

    def _answer(self, llm: LLM, text: str) -> Answer:
        if len(self._prompts) > 1:
            self._out.print(Text(f"> {text.splitlines()[0]}", "bold"))
        painter = TokenPainter(llm.get_tokenizer()) if self._show_drafts else None
        start = time.perf_counter()
        for output in llm.stream(self._prompt(llm, text), self._sampling_params):
            completion = output.outputs[0]
            piece = painter.paint(completion) if painter else Text(completion.new_text)
            if piece:
                self._out.print(piece, end="")
        answer = Answer(output, time.perf_counter() - start)
        if output.error is not None:
            self._err.print(Text(f"error: {output.error}", "red"))
        else:
            self._out.print()
        if painter:
            self._origins.update(painter.counts)
        return answer

    def _prompt(self, llm: LLM, text: str) -> Prompt:
        tokenizer = llm.get_tokenizer()
        available = has_chat_template(tokenizer)
        if self._chat and not available:
            raise ConfigError(f"model {self._config.model.model!r} has no chat template; leave out --chat")
        if self._chat is False or not available:
            return text
        return user_turn(text, tokenizer)

    def _compare_with_plain(self, answers: Sequence[Answer]) -> int:
        assert self._config.speculative is not None
        name = method_name(self._config.speculative)
        num_different = num_tokens = 0
        plain_seconds = 0.0
        valid = [answer for answer in answers if answer.output.error is None]
        with self._load(self._config.model_copy(update={"speculative": None})) as llm:
            for answer in valid:
                output = answer.output
                params = self._sampling_params.model_copy(update={"seed": output.seed})
                start = time.perf_counter()
                [plain] = llm.generate({"prompt_token_ids": output.prompt_token_ids}, params, use_tqdm=False)
                plain_seconds += time.perf_counter() - start
                num_tokens += len(plain.outputs[0].token_ids)
                difference = describe_difference(name, output, plain, llm.get_tokenizer())
                if difference:
                    num_different += 1
                    self._out.print(Text(f"DIFFERENT from plain decoding, {difference}", "bold red"))
        if not num_different and valid:
            self._out.print(Text(f"identical to plain decoding, all {num_tokens} tokens", "bold green"))
        our_speed = _speed(
            sum(len(answer.output.outputs[0].token_ids) for answer in valid),
            sum(answer.seconds for answer in valid),
        )
        plain_speed = _speed(num_tokens, plain_seconds)
        ratio = f", {our_speed / plain_speed:.2f} times as fast" if plain_speed else ""
        self._out.print(f"plain {plain_speed:.1f} tokens/s, {name} {our_speed:.1f} tokens/s{ratio}")
        return int(num_different > 0)


def method_name(config: SpeculativeConfig) -> str:
    """What to call a drafter: its method as given, or the model that it is inferred from."""
    if isinstance(config.method, type):
        return config.method.__name__
    return config.method or str(config.model)


def stats_line(seconds: float, stats: SpecDecodeStats) -> str:
    """Tokens, speed, mean acceptance length, and the acceptance at each draft position."""
    tokens = stats.num_emitted_tokens
    parts = [f"{tokens} tokens in {seconds:.2f} s", f"{_speed(tokens, seconds):.1f} tokens/s"]
    if stats.mean_acceptance_length is not None:
        parts.append(f"mean acceptance length {stats.mean_acceptance_length:.2f}")
        parts.append("accepted per position " + per_position(stats.acceptance_rate_per_pos))
    return ", ".join(parts)


def per_position(rates: Sequence[float]) -> str:
    """Acceptance rates in a row, for people."""
    return " ".join(f"{rate:.2f}" for rate in rates)


def _speed(num_tokens: int, seconds: float) -> float:
    return num_tokens / seconds if seconds > 0 else 0.0

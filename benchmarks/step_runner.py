"""Steps of a given shape, through the runner of an engine or through transformers, for `step_cost.py`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from outrider import LLM, SamplingParams
from outrider.engine.outputs import CachedRequestData, NewRequestData, SchedulerOutput
from outrider.models.progress import quiet

BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Case:
    """One shape of a step.

    Attributes:
        num_rows: of each request: a prompt, or one token and the drafts behind it.
        context: tokens of each request at the end of the step, its own rows included.
    """

    num_rows: int
    context: int
    num_reqs: int = 1

    @property
    def is_prompt(self) -> bool:
        """Whether the rows are a prompt, of which only the last row gets logits."""
        return self.num_rows == self.context

    @property
    def blocks_per_request(self) -> int:
        """KV blocks of each request."""
        return -(-self.context // BLOCK_SIZE)


@dataclass(frozen=True, slots=True)
class Sample:
    """Seconds of one step, and those of them inside the model."""

    seconds: float
    model_seconds: float


class Runner:
    """The runner of an engine, driven without its scheduler."""

    def __init__(self, llm: LLM, temperature: float) -> None:
        core: Any = llm.engine.core
        self._runner = core.runner
        self._params = SamplingParams(temperature=temperature)
        self._tokens = np.random.default_rng(0).integers(0, llm.engine.loaded.vocab_size, llm.max_model_len)
        self._held: frozenset[str] = frozenset()
        for layer in llm.engine.caches.values():
            for cache in layer.values():
                cache.uniform_(-1, 1)  # fresh memory may hold NaN

    def measure(self, case: Case) -> Sample:
        """One step of this shape; requests that were there before leave."""
        if case.is_prompt:
            return self._execute(self._enter(case, case.num_rows, case.num_rows))
        # One token of the request comes first, so that the step finds it in the batch as any later step does.
        num_tokens = case.context - case.num_rows + 1
        self._execute(self._enter(case, num_tokens - 1, 1))
        drafts = self._tokens[1 : case.num_rows].tolist()
        ids = sorted(self._held)
        return self._execute(
            SchedulerOutput(
                scheduled_new_reqs=[],
                scheduled_cached_reqs=[
                    CachedRequestData(request_id=i, new_block_ids=[], num_computed_tokens=num_tokens - 1)
                    for i in ids
                ],
                num_scheduled_tokens=dict.fromkeys(ids, case.num_rows),
                scheduled_spec_decode_tokens=dict.fromkeys(ids, drafts) if drafts else {},
            )
        )

    def _enter(self, case: Case, num_tokens: int, num_rows: int) -> SchedulerOutput:
        """Let the requests in with `num_tokens` tokens, of which the last `num_rows` are to be computed."""
        blocks = case.blocks_per_request
        new = [
            NewRequestData(
                request_id=f"{i:03}",
                token_ids=self._tokens[:num_tokens],  # type: ignore[arg-type]
                num_prompt_tokens=num_tokens,
                sampling_params=self._params,
                seed=i,
                stop_token_ids=frozenset(),
                block_ids=range(i * blocks, (i + 1) * blocks),
                state_index=i,
                num_computed_tokens=num_tokens - num_rows,
            )
            for i in range(case.num_reqs)
        ]
        finished, self._held = self._held, frozenset(one.request_id for one in new)
        return SchedulerOutput(
            scheduled_new_reqs=new,
            scheduled_cached_reqs=[],
            num_scheduled_tokens={one.request_id: num_rows for one in new},
            scheduled_spec_decode_tokens={},
            finished_req_ids=finished,
        )

    def _execute(self, plan: SchedulerOutput) -> Sample:
        start = time.perf_counter()
        result = self._runner.execute(plan)
        seconds = time.perf_counter() - start
        if result.errors:
            raise RuntimeError(f"a step failed: {result.errors}")
        return Sample(seconds, result.model_seconds)


class Transformers:
    """transformers' forward over a prompt, keys and values kept, logits for the last row."""

    def __init__(self, location: str, dtype: str, vocab_size: int) -> None:
        with quiet():
            model: Any = AutoModelForCausalLM.from_pretrained(location, dtype=getattr(torch, dtype))
        self._model = model.eval()
        self._vocab_size = vocab_size

    def measure(self, case: Case) -> Sample:
        """One forward over the prompt."""
        ids = torch.from_numpy(np.random.default_rng(0).integers(0, self._vocab_size, (1, case.num_rows)))
        start = time.perf_counter()
        with torch.inference_mode():
            self._model(ids, use_cache=True, logits_to_keep=1)
        seconds = time.perf_counter() - start
        return Sample(seconds, seconds)

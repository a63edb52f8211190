"""A small engine under test: built with small blocks, driven by hand where a test wants to look between steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ..api import SamplingParams
from ..engine.core import EngineCore
from ..engine.request_output import RequestOutput
from ..entrypoints.llm import LLM
from ..plugins import PluginManager
from .poison import poison
from .spy import Spy
from .torch_attention import TorchAttentionBackend

Prompts = Sequence[Sequence[int]]
"""Prompts as token ids."""


class Harness:
    """An `LLM` with a `Spy` in it.

    Args:
        model: folder of the target.
        proposer: class or name; None: plain decoding.
        num_speculative_tokens: for the proposer: always drafted, so that a test knows what happens.
        options: the proposer's own, and further keys of `speculative_config`, such as `adaptive`.
        settings: of `LLM`, over these defaults: blocks of 4 tokens, 64 of them, 8 requests, the oracle's attention.

    Attributes:
        llm, core, plugins, spy: the engine and what it saw.
        caches: cache tensors by layer name.
        proposer: the plugin instance, or None.
    """

    def __init__(
        self,
        model: str | Path,
        proposer: type | str | None = None,
        *,
        num_speculative_tokens: int = 4,
        options: Mapping[str, Any] = {},
        **settings: Any,
    ) -> None:
        speculative = {
            "method": proposer,
            "num_speculative_tokens": num_speculative_tokens,
            "adaptive": False,
            **options,
        }
        defaults = {
            "block_size": 4,
            "num_kv_blocks": 64,
            "max_num_seqs": 8,
            "attention_backend": TorchAttentionBackend,
            "extensions": [Spy],
        }
        self.llm = LLM(
            str(model), speculative_config=None if proposer is None else speculative, **defaults | settings
        )
        engine: Any = self.llm._engine
        self.core: EngineCore = engine.core
        self.plugins: PluginManager = engine.plugins
        self.caches: Mapping[str, Mapping[str, torch.Tensor]] = engine.caches
        self.spy: Spy = engine.plugins.extensions[0].plugin
        self.spy.forwards.clear()  # those of the warm-up, which is no request's
        self.proposer: Any = engine.plugins.proposer.plugin if engine.plugins.proposer else None

    def generate(
        self,
        prompts: Prompts,
        sampling_params: SamplingParams | Sequence[SamplingParams],
        between_steps: Callable[[EngineCore], object] | None = None,
    ) -> list[RequestOutput]:
        """Complete the prompts in one batch; `between_steps` is called before each step."""
        step, num_idle_steps = self.core.step, 0

        def observed() -> list[RequestOutput]:
            nonlocal num_idle_steps
            if between_steps is not None:
                between_steps(self.core)
            num_forwards = self.core.stats.num_steps
            outputs = step()
            num_idle_steps = 0 if self.core.stats.num_steps > num_forwards else num_idle_steps + 1
            assert num_idle_steps < 3, "the engine stands still: requests wait, and nothing is scheduled"
            return outputs

        self.core.step = observed  # type: ignore[method-assign]
        try:
            return self.llm.generate(
                [{"prompt_token_ids": list(prompt)} for prompt in prompts], sampling_params, use_tqdm=False
            )
        finally:
            self.core.step = step  # type: ignore[method-assign]

    def tokens(
        self,
        prompts: Prompts,
        sampling_params: SamplingParams | Sequence[SamplingParams],
        between_steps: Callable[[EngineCore], object] | None = None,
    ) -> list[list[int]]:
        """The output tokens of `generate`."""
        outputs = self.generate(prompts, sampling_params, between_steps)
        return [output.outputs[0].token_ids for output in outputs]

    def poison(self, core: EngineCore) -> None:
        """Fill with NaN what nobody may read; made for `between_steps`."""
        poison(core, self.caches)

    @property
    def num_free_blocks(self) -> int:
        """KV blocks without a user."""
        return self.core.scheduler.kv_cache.num_free_blocks

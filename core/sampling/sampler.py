"""Sample one token per row of logits.

The token is `argmax(logit / temperature + Gumbel noise)` over the tokens that survive, in this order, the processors,
min_p, top-k and top-p. The noise depends on (seed, position, token id) alone, so the same row gives the same token
whoever asks: plain decoding, verification, or a drafter. Temperature 0 is argmax, the lowest id among equals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..api import SamplingParams
from ..kernels.cpu.sampling import NO_TOKEN, ROW, sample_rows
from .processors import PROCESSORS, LogitsProcessor

__all__ = ["NO_TOKEN", "SamplingRows", "prepare_logits", "sample"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRows:
    """How each of `R` rows of logits is sampled. Rows of one request differ in position and history.

    Attributes:
        temperature: `[R]`, 0 is greedy.
        top_k: `[R]`, all unless above 0.
        top_p, min_p: `[R]`.
        seed: `[R]` the request's seed.
        position: `[R]` absolute position of the token to be sampled: a row whose input token is at `p` samples `p + 1`.
        num_output_tokens: `[R]` output tokens before that position, drafts included.
        params: `[R]` sampling parameters of the row's request, for the processors.
        stop_token_ids: `[R]` tokens that would end the row's request.
        history: given a row, all tokens before its position (int32): prompt, output and the drafts before it. Called
            only for rows whose processors ask.
    """

    temperature: npt.NDArray[np.floating[Any]]
    top_k: npt.NDArray[np.integer[Any]]
    top_p: npt.NDArray[np.floating[Any]]
    min_p: npt.NDArray[np.floating[Any]]
    seed: npt.NDArray[np.uint64]
    position: npt.NDArray[np.integer[Any]]
    num_output_tokens: npt.NDArray[np.integer[Any]]
    params: Sequence[SamplingParams]
    stop_token_ids: Sequence[frozenset[int]]
    history: Callable[[int], npt.NDArray[np.int32]]

    @classmethod
    def from_params(
        cls,
        params: Sequence[SamplingParams],
        seeds: Sequence[int],
        positions: Sequence[int],
        *,
        num_output_tokens: Sequence[int] | None = None,
        stop_token_ids: Sequence[frozenset[int]] | None = None,
        history: Callable[[int], npt.NDArray[np.int32]] | None = None,
    ) -> SamplingRows:
        """Build rows from one entry of everything per row; what is left out is empty."""
        size = len(params)
        return cls(
            temperature=np.array([p.temperature for p in params], np.float64),
            top_k=np.array([p.top_k for p in params], np.int64),
            top_p=np.array([p.top_p for p in params], np.float64),
            min_p=np.array([p.min_p for p in params], np.float64),
            seed=np.array(seeds, np.uint64),
            position=np.array(positions, np.int64),
            num_output_tokens=np.array([0] * size if num_output_tokens is None else num_output_tokens),
            params=params,
            stop_token_ids=[frozenset()] * size if stop_token_ids is None else stop_token_ids,
            history=_no_history if history is None else history,
        )

    def __len__(self) -> int:
        return len(self.temperature)

    def pack(self) -> npt.NDArray[np.void]:
        """The numbers that the kernels need, `[R]` of `kernels.cpu.sampling.ROW`."""
        packed = np.empty(len(self), ROW)
        for name in ROW.fields or ():
            packed[name] = getattr(self, name)
        return packed


def _no_history(row: int) -> npt.NDArray[np.int32]:
    return np.empty(0, np.int32)


def sample(
    logits: torch.Tensor, rows: SamplingRows, processors: Sequence[LogitsProcessor] = PROCESSORS
) -> torch.Tensor:
    """Return the token of every row, `[R]` int64 on the CPU.

    A row with a NaN, or with every token at -inf, yields `NO_TOKEN` (-1): the model, or what it was asked, is broken
    for that request, and no id would be right. +inf counts as the largest float32.

    Args:
        logits: `[R, V]`, any device and float type; brought to the CPU as float32. Not changed.

    Raises:
        ValueError: the shapes disagree.
    """
    values = prepare_logits(logits, rows, processors)
    tokens = sample_rows(values, values.view(np.int32), rows.pack(), np.arange(len(values)))
    return torch.from_numpy(tokens)


def prepare_logits(
    logits: torch.Tensor, rows: SamplingRows, processors: Sequence[LogitsProcessor]
) -> npt.NDArray[np.float32]:
    """Return `[R, V]` float32 with the processors applied, copied only if one of them applies.

    Raises:
        ValueError: `logits` is not `[len(rows), V]` with `V` of at least 1.
    """
    if logits.ndim != 2 or logits.shape[0] != len(rows) or logits.shape[1] == 0:
        raise ValueError(
            f"logits must be [{len(rows)}, V], one row per sampling row, not {list(logits.shape)}"
        )
    values: npt.NDArray[np.float32] = logits.detach().to("cpu", torch.float32).contiguous().numpy()
    owned = False
    for processor in processors:
        indices = processor.applies(rows)
        if len(indices):
            values = values if owned else values.copy()
            owned = True
            processor.apply(values, rows, indices)
    return values

"""Sample one token per row of logits.

The token is `argmax(logit / temperature + Gumbel noise)` over the tokens that survive, in this order, the processors,
min_p, top-k and top-p. The noise depends on (seed, position, token id) alone, so the same row gives the same token
whoever asks: plain decoding, verification, or a drafter. Temperature 0 is argmax, the lowest id among equals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ..api import SamplingParams
from ..kernels.cpu.sampling import NO_TOKEN, REQUEST, sample_rows
from .processors import PROCESSORS, LogitsProcessor

_MOST = np.iinfo(np.int64).max

__all__ = ["NO_TOKEN", "SamplingRows", "prepare_logits", "sample"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRows:
    """How each of `R` rows of logits is sampled. Rows of one request differ in position and history.

    The functions are called only for rows whose processors ask.

    Attributes:
        requests: of `kernels.cpu.sampling.REQUEST`.
        request_of_row: `[R]` index of each row's request.
        min_lengths: of each request, the tokens, prompt included, that come before any of its stop tokens.
        positions: `[R]` absolute position of the token to be sampled: a row whose input token is at `p` samples
            `p + 1`.
        params: given a row, the sampling parameters of its request.
        stop_token_ids: given a row, the tokens that would end its request.
        history: given a row, all tokens before its position (int32): prompt, output and the drafts before it.
    """

    requests: npt.NDArray[np.void]
    min_lengths: npt.NDArray[np.int64]
    request_of_row: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int64]
    params: Callable[[int], SamplingParams]
    stop_token_ids: Callable[[int], frozenset[int]]
    history: Callable[[int], npt.NDArray[np.int32]]

    @classmethod
    def from_params(
        cls,
        params: Sequence[SamplingParams],
        seeds: Sequence[int],
        positions: Sequence[int],
        *,
        num_prompt_tokens: int = 0,
        stop_token_ids: frozenset[int] = frozenset(),
        history: Callable[[int], npt.NDArray[np.int32]] | None = None,
    ) -> SamplingRows:
        """Build rows from one entry of parameters, seed and position per row; the rest is the same for all."""
        return cls(
            requests=np.array([request_numbers(*each) for each in zip(params, seeds, strict=True)], REQUEST),
            min_lengths=np.array(
                [min_length(one, num_prompt_tokens, stop_token_ids) for one in params], np.int64
            ),
            request_of_row=np.arange(len(params), dtype=np.int32),
            positions=np.array(positions, np.int64),
            params=params.__getitem__,
            stop_token_ids=lambda row: stop_token_ids,
            history=_no_history if history is None else history,
        )

    def __len__(self) -> int:
        return len(self.positions)


def request_numbers(params: SamplingParams, seed: int) -> tuple[float, ...]:
    """What all rows of a request are sampled with, in the order of `REQUEST`."""
    return params.temperature, min(max(params.top_k, 0), _MOST), params.top_p, params.min_p, seed


def min_length(params: SamplingParams, num_prompt_tokens: int, stop_token_ids: frozenset[int]) -> int:
    """Tokens, prompt included, that come before any of the request's stop tokens; 0 if nothing is to be forbidden."""
    if not params.min_tokens or not stop_token_ids:
        return 0
    return min(num_prompt_tokens + params.min_tokens, _MOST)


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
    tokens = sample_rows(values, rows.requests, rows.request_of_row, rows.positions, np.arange(len(values)))
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
    values: npt.NDArray[np.float32] = np.ascontiguousarray(logits.float().numpy(force=True))
    owned = False
    for processor in processors:
        indices = processor.applies(rows)
        if len(indices):
            values = values if owned else values.copy()
            owned = True
            processor.apply(values, rows, indices)
    return values

"""Check that verification keeps the target's distribution, at the four-token vector on which known mistakes show.

For a proposer with `probs`: draw `NUM_DRAWS` drafts with it, hand them and its probabilities to `verify_drafts`, and
`assert_distribution` fails unless each draft really came from the distribution it was reported with.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..api import SamplingParams
from ..sampling.rejection_sampler import Rule, verify
from ..sampling.sampler import SamplingRows

TARGET_PROBS = (0.5, 0.3, 0.15, 0.05)
DRAFT_PROBS = (0.1, 0.2, 0.3, 0.4)
ACCEPTANCE = 0.5
"""Sum over tokens of min(TARGET_PROBS, DRAFT_PROBS): how often rejection accepts a draft from DRAFT_PROBS."""

NUM_DRAWS = 20_000

_NORMAL_QUANTILE = 3.719  # 1 - 1e-4


def chi_square(counts: Sequence[int] | npt.NDArray[np.int64], probs: Sequence[float]) -> float:
    """Pearson's statistic of `counts` against `probs`; infinite if an impossible token was counted."""
    observed, expected = np.asarray(counts, np.float64), np.asarray(probs, np.float64) * np.sum(counts)
    if observed[expected == 0.0].any():
        return math.inf
    possible = expected > 0.0
    return float(((observed - expected)[possible] ** 2 / expected[possible]).sum())


def critical_value(degrees: int) -> float:
    """What chi-square exceeds with probability 1e-4, by the approximation of Wilson and Hilferty (1931)."""
    if degrees == 0:
        return 0.0
    spread = 2.0 / (9.0 * degrees)
    return float(degrees * (1.0 - spread + _NORMAL_QUANTILE * math.sqrt(spread)) ** 3)


def assert_distribution(tokens: Sequence[int] | npt.NDArray[np.int64], probs: Sequence[float]) -> None:
    """Fail unless `tokens` look drawn from `probs`; one correct sample in 10,000 fails.

    Raises:
        AssertionError: names frequencies, expectation and statistic.
    """
    counts = np.bincount(np.asarray(tokens, np.int64), minlength=len(probs))
    if len(counts) > len(probs):
        raise AssertionError(f"token {len(counts) - 1} is outside the vocabulary of {len(probs)}")
    statistic, limit = chi_square(counts, probs), critical_value(sum(p > 0.0 for p in probs) - 1)
    if statistic > limit:
        raise AssertionError(
            f"chi-square {statistic:.1f} exceeds {limit:.1f}: frequencies {(counts / counts.sum()).round(4).tolist()}, "
            f"expected {[round(float(p), 4) for p in probs]}"
        )


def draw(probs: Sequence[float], size: int = NUM_DRAWS, seed: int = 1) -> npt.NDArray[np.int64]:
    """`size` tokens from `probs`, by inversion, with a random stream that the engine does not use."""
    uniforms = np.random.default_rng(seed).random(size)
    return np.searchsorted(np.cumsum(probs)[:-1], uniforms, side="right").astype(np.int64)


def verify_drafts(
    drafts: Sequence[int] | npt.NDArray[np.int64],
    draft_probs: torch.Tensor | npt.NDArray[np.floating[Any]] | None,
    rule: Rule,
    target_probs: Sequence[float] = TARGET_PROBS,
    params: SamplingParams | None = None,
    position: int = 7,
) -> npt.NDArray[np.int64]:
    """Verify one draft in each of `N` requests, seeded `0 .. N - 1`; return the first token that each emits, `[N]`.

    Args:
        draft_probs: `[N, V]`, or `[V]` for all drafts alike, or None for one-hot.
        params: default: temperature 1.
    """
    size, vocab_size = len(drafts), len(target_probs)
    # Of the two rows of a request only the first matters here.
    logits = torch.log(torch.tensor(target_probs, dtype=torch.float64)).float().repeat(2 * size, 1)
    rows = SamplingRows.from_params(
        [params or SamplingParams()] * (2 * size),
        np.repeat(np.arange(size), 2).tolist(),
        [position, position + 1] * size,
    )
    flat = np.asarray(drafts).tolist()
    probs = None if draft_probs is None else torch.as_tensor(draft_probs).expand(size, vocab_size)
    return np.array([tokens[0] for tokens in verify(logits, rows, [[draft] for draft in flat], probs, rule)])

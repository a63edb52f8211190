"""Choose one token per row of logits: the target's own sample, and the verdict on a draft.

Both are pure functions of (row, sampling parameters, seed, position, and for a verdict the draft and its distribution).
Rows run in parallel and share nothing, so neither the batch nor the number of threads shows in a result.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit, prange

from .philox import fill_complements, gumbel_from_word, gumbel_of, noise_words, select_word, uniform_at
from .survivors import find_peak, find_survivors, finite_logit, log_weights, lowest_logit

NO_TOKEN = -1
"""What a row yields from which nothing can be sampled: a logit is NaN, or every token is masked."""

# Independent noise for each purpose; sharing one between two of them would bias what is sampled. Positions are
# absolute, 0 being the first prompt token, and the noise at a position chooses the token there. Its resolution is
# 2**-32: a token less probable than that is as good as masked.
TOKEN_STREAM = 0  # Gumbel: a token from the target, or from a drafter that samples with the engine's noise
ACCEPT_STREAM = 1  # uniform: whether a draft is accepted (`rejection`)
RECOVERED_STREAM = 2  # Gumbel: the token in place of a rejected draft (`rejection`)

REQUEST = np.dtype(
    [
        ("temperature", np.float64),
        ("top_k", np.int64),
        ("top_p", np.float64),
        ("min_p", np.float64),
        ("seed", np.uint64),
    ]
)
"""What all rows of a request are sampled with. Temperature 0 is greedy; `top_k` keeps all unless above 0."""

_TWO = np.uint64(2)
_TOP_BYTE = np.uint64(24)
_TOKEN = np.uint64(TOKEN_STREAM)
_ACCEPT = np.uint64(ACCEPT_STREAM)
_RECOVERED = np.uint64(RECOVERED_STREAM)


def _bound_noise() -> npt.NDArray[np.float64]:
    highest_word = (np.arange(256, dtype=np.uint64) << _TOP_BYTE) | np.uint64(0xFFFFFF)
    # The slack covers a logarithm that is not monotone in its last bit.
    return -np.log(-np.log((highest_word.astype(np.float64) + 0.5) * 2.0**-32)) + 1e-9


_NOISE_BOUND = _bound_noise()
"""Upper bound of the Gumbel noise of all words with a given top byte: spares nearly every logarithm."""

_WINDOW = 256
"""Tokens that are looked at together; a multiple of 4."""

# A float32's bit pattern read as an integer is nearly linear in its logarithm: `bits(exp(x)) <= slope * x + offset`,
# since the chord of a convex function lies above it.
_SLOPE = np.float32(2**23 / math.log(2))
_OFFSET = np.float32((127 + 32) * 2**23 + 2**10)
"""For `exp(x) * 2**32`, with a slack of 1e-4 that covers all rounding."""
_LOWEST, _HIGHEST, _ZERO = np.float32(-80.0), np.float32(40.0), np.float32(0.0)
_FLOAT32_MAX = np.float32(np.finfo(np.float32).max)


@njit(cache=True)
def _race(
    scores: npt.NDArray[np.float64],
    ids: npt.NDArray[np.int32],
    first: np.intp | int,
    seed: np.uint64,
    stream: np.uint64,
    position: np.uint64,
) -> int:
    """Gumbel-max: the id with the highest log weight + noise, the lower id among equals.

    Args:
        scores: log weight per entry of `ids`.
        first: index into `ids` of a likely winner. It is tried first, so that most others can be ruled out by a bound;
            it has no influence on the result.
    """
    block, words = np.uint64(0), noise_words(seed, stream, position, np.uint64(0))
    best, best_sum = -1, -np.inf
    for step in range(-1, len(ids)):
        i = first if step < 0 else step
        if scores[i] + _NOISE_BOUND[255] < best_sum:
            continue
        token = np.uint64(ids[i])
        if token >> _TWO != block:
            block = token >> _TWO
            words = noise_words(seed, stream, position, block)
        word = select_word(words, token)
        if scores[i] + _NOISE_BOUND[word >> _TOP_BYTE] < best_sum:
            continue
        total = scores[i] + gumbel_from_word(word)
        if total > best_sum or (total == best_sum and ids[i] < best):
            best, best_sum = ids[i], total
    return best


@njit(cache=True)
def _race_all(
    logits: npt.NDArray[np.float32],
    peak_id: int,
    peak: float,
    lowest: float,
    temperature: float,
    seed: np.uint64,
    stream: np.uint64,
    position: np.uint64,
) -> int:
    """`_race` of all tokens whose logit is at least `lowest`, with `(logit - peak) / temperature` as scores.

    Nearly all tokens are ruled out by a test that works on vectors. Noise is `-log(-log(u))`, and `-log(u) >= 1 - u`:
    so a token that wins has `1 - u <= exp(score - best_sum)`. Either side is taken as a float32's bit pattern.
    """
    best, best_sum = peak_id, gumbel_of(seed, stream, position, peak_id)
    scale = np.float32(min(1.0 / temperature, float(_FLOAT32_MAX)))
    odds, limits = np.empty(_WINDOW, np.float32), np.empty(_WINDOW, np.int32)
    odds_bits = odds.view(np.int32)
    for begin in range(0, len(logits), _WINDOW):
        fill_complements(seed, stream, position, np.uint64(begin) >> _TWO, odds)
        window = logits[begin : begin + _WINDOW]
        shift, hits = np.float32(-best_sum), 0
        for i in range(len(window)):
            # Finite, whatever the logit is: at an extreme temperature the scale may be 0.
            below_peak = min(max(window[i] - np.float32(peak), -_FLOAT32_MAX), _ZERO)
            score = min(max(below_peak * scale + shift, _LOWEST), _HIGHEST)
            limits[i] = np.int32(score * _SLOPE + _OFFSET)
            hits += odds_bits[i] <= limits[i]
        if hits == 0:
            continue
        for i in range(len(window)):
            if odds_bits[i] <= limits[i] and window[i] >= lowest:
                noise = gumbel_of(seed, stream, position, begin + i)
                total = (finite_logit(window[i]) - peak) / temperature + noise
                if total > best_sum or (total == best_sum and begin + i < best):
                    best, best_sum = begin + i, total
    return best


@njit(cache=True)
def _sample_row(
    logits: npt.NDArray[np.float32],
    bits: npt.NDArray[np.int32],
    request: Any,
    position: np.uint64,
) -> int:
    peak_id = find_peak(bits)
    if peak_id < 0 or request.temperature == 0.0:
        return peak_id
    peak, temperature = finite_logit(logits[peak_id]), request.temperature
    if request.top_k <= 0 and request.top_p >= 1.0:
        lowest = lowest_logit(peak, temperature, request.min_p)
        return _race_all(logits, peak_id, peak, lowest, temperature, request.seed, _TOKEN, position)
    ids = find_survivors(logits, bits, peak, temperature, request.top_k, request.top_p, request.min_p)
    scores = log_weights(logits, ids, peak, temperature)
    return _race(scores, ids, np.searchsorted(ids, peak_id), request.seed, _TOKEN, position)


@njit(cache=True)
def _mass(probs: npt.NDArray[np.float32]) -> float:
    """Sum of a row of a distribution; 0 if it is none."""
    total = 0.0
    for prob in probs:
        if not 0.0 <= prob < np.inf:
            return 0.0
        total += prob
    return total


@njit(cache=True)
def _judge_row(
    logits: npt.NDArray[np.float32],
    bits: npt.NDArray[np.int32],
    request: Any,
    position: np.uint64,
    draft: int,
    draft_probs: npt.NDArray[np.float32],
) -> int:
    """Return `draft` if it is accepted, else the recovered token.

    Args:
        draft_probs: `[V]` distribution that the draft was drawn from, normalised here. What cannot be one (empty,
            zeros, NaN, negative entries, or zero at the draft) is replaced by one-hot, which is right for any draft.
    """
    peak_id = find_peak(bits)
    if peak_id < 0 or request.temperature == 0.0:
        return peak_id
    peak = finite_logit(logits[peak_id])
    ids = find_survivors(logits, bits, peak, request.temperature, request.top_k, request.top_p, request.min_p)
    scores = log_weights(logits, ids, peak, request.temperature)
    probs = np.exp(scores)
    probs /= probs.sum()

    index = np.searchsorted(ids, draft)
    target = probs[index] if index < len(ids) and ids[index] == draft else 0.0
    mass = _mass(draft_probs)
    one_hot = mass == 0.0 or not 0 <= draft < len(draft_probs) or draft_probs[draft] == 0.0
    proposed = 1.0 if one_hot else draft_probs[draft] / mass
    if uniform_at(request.seed, _ACCEPT, position) * proposed <= target:
        return draft

    kept, heaviest = 0, 0
    kept_ids = np.empty(len(ids), np.int32)
    residual = np.empty(len(ids), np.float64)
    for i in range(len(ids)):
        drafted = 0.0
        if not one_hot:
            drafted = draft_probs[ids[i]] / mass
        elif ids[i] == draft:
            drafted = 1.0
        if probs[i] > drafted:
            kept_ids[kept] = ids[i]
            residual[kept] = probs[i] - drafted
            if residual[kept] > residual[heaviest]:
                heaviest = kept
            kept += 1
    if kept > 0:
        return _race(np.log(residual[:kept]), kept_ids[:kept], heaviest, request.seed, _RECOVERED, position)
    # Nowhere p > q: the two are equal up to rounding, and what the draft lost to it belongs to all of p alike.
    return _race(scores, ids, np.searchsorted(ids, peak_id), request.seed, _RECOVERED, position)


@njit(cache=True, parallel=True)
def sample_rows(
    logits: npt.NDArray[np.float32],
    requests: npt.NDArray[np.void],
    request_of_row: npt.NDArray[np.int32],
    positions: npt.NDArray[np.int64],
    indices: npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    """The target's own sample at each row `indices[i]` of `logits`; `NO_TOKEN` where nothing can be sampled.

    Args:
        logits: `[R, V]`.
        requests: of `REQUEST`.
        request_of_row: `[R]` index of each row's request.
        positions: `[R]` absolute position of the token to be sampled.
    """
    bits = logits.view(np.int32)
    tokens = np.empty(len(indices), np.int64)
    if len(indices) == 1:  # nobody to wake
        r = indices[0]
        tokens[0] = _sample_row(logits[r], bits[r], requests[request_of_row[r]], np.uint64(positions[r]))
        return tokens
    for i in prange(len(indices)):
        r = indices[i]
        tokens[i] = _sample_row(logits[r], bits[r], requests[request_of_row[r]], np.uint64(positions[r]))
    return tokens


@njit(cache=True, parallel=True)
def judge_rows(
    logits: npt.NDArray[np.float32],
    requests: npt.NDArray[np.void],
    request_of_row: npt.NDArray[np.int32],
    positions: npt.NDArray[np.int64],
    indices: npt.NDArray[np.int64],
    drafts: npt.NDArray[np.int64],
    draft_probs: npt.NDArray[np.float32],
) -> npt.NDArray[np.int64]:
    """The verdict on `drafts[i]` at row `indices[i]`: the draft itself, the recovered token, or `NO_TOKEN`.

    Args:
        drafts: `[D]`.
        draft_probs: `[D, V]`, or `[D, 0]` for one-hot drafts.
    """
    bits = logits.view(np.int32)
    tokens = np.empty(len(indices), np.int64)
    for i in prange(len(indices)):
        r = indices[i]
        tokens[i] = _judge_row(
            logits[r],
            bits[r],
            requests[request_of_row[r]],
            np.uint64(positions[r]),
            drafts[i],
            draft_probs[i],
        )
    return tokens

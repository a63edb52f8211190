"""Which tokens of a row of logits may be sampled: min_p, top-k and top-p without sorting the vocabulary.

Tokens are ranked by logit, the lower id first among equals. Cuts act in the order temperature, min_p, top-k, top-p,
each on what the one before left (as vLLM); top-k keeps exactly k. All of it is a pure function of one row: sums run in
an order that the row fixes.

A float32 logit is handled through its *key*: its bit pattern read as int32 and made monotone, so that keys order as
the logits do, +0 equals -0, and infinities and NaN are recognised by value.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from numba import njit

_INF_KEY = 0x7F800000
_SIGN = 2**31
_FLOAT32_MAX = float(np.finfo(np.float32).max)

_NEGLIGIBLE = 40.0
"""A token whose weight is below e**-40 of the best one's (4e-18, far below what float32 logits resolve) has none."""

_ROUNDING = 1e-6
"""Relative slack with which a mass reaches top_p or min_p: {0.5, 0.3} reaches 0.8 although float32 logits round."""


@njit(cache=True)
def key_of(bits: np.int32) -> int:
    """Monotone integer of a float32 given by its bit pattern."""
    return int(bits) if bits >= 0 else -_SIGN - int(bits)


@njit(cache=True)
def find_peak(bits: npt.NDArray[np.int32]) -> int:
    """The lowest id with the highest logit; -1 if a logit is NaN or every one is -inf."""
    top, low = -_SIGN, _SIGN
    for token in range(len(bits)):
        key = key_of(bits[token])
        top = max(top, key)
        low = min(low, key)
    if top > _INF_KEY or low < -_INF_KEY or top == -_INF_KEY:
        return -1
    token = 0
    while key_of(bits[token]) != top:
        token += 1
    return token


@njit(cache=True)
def finite_logit(logit: np.float32) -> float:
    """+inf counts as the largest float32, so that differences of logits stay defined."""
    return min(float(logit), _FLOAT32_MAX)


@njit(cache=True)
def keep_prefix(
    keys: npt.NDArray[np.int64],
    weights: npt.NDArray[np.float64],
    limit: float,
    ids: npt.NDArray[np.int32],
) -> int:
    """Keep, at the front of `ids`, the shortest prefix of the ranking whose weight reaches `limit`; return its length.

    Radix selection, 11 + 11 + 10 bits of the key: each level sums the weights per digit, walks down from the top digit
    to the one in which the limit is reached, and descends into it. `ids` stays in ascending order.
    """
    n = len(keys)
    sums = np.empty(2048, np.float64)
    prefix, above = 0, 0.0
    for shift, digit_bits in ((21, 11), (10, 11), (0, 10)):
        sums[:] = 0.0
        for i in range(n):
            shifted = (keys[i] + _SIGN) >> shift
            if shifted >> digit_bits == prefix:
                sums[shifted & ((1 << digit_bits) - 1)] += weights[i]
        # Sums of one level may round to just below what the level above promised: then the lowest digit in use.
        chosen = -1
        chosen_above = above
        for digit in range((1 << digit_bits) - 1, -1, -1):
            if sums[digit] > 0.0:
                chosen, chosen_above = digit, above
                above += sums[digit]
                if above >= limit:
                    break
        prefix = (prefix << digit_bits) | chosen
        above = chosen_above
    threshold = prefix - _SIGN
    kept = 0
    for i in range(n):
        if keys[i] > threshold or (keys[i] == threshold and above < limit):
            if keys[i] == threshold:
                above += weights[i]
            ids[kept] = ids[i]
            kept += 1
    return kept


@njit(cache=True)
def log_weights(
    logits: npt.NDArray[np.float32], ids: npt.NDArray[np.int32], peak: float, temperature: float
) -> npt.NDArray[np.float64]:
    """`(logit - peak) / temperature` of the given ids: log of the softmax, up to its denominator."""
    result = np.empty(len(ids), np.float64)
    for i in range(len(ids)):
        result[i] = (finite_logit(logits[ids[i]]) - peak) / temperature
    return result


@njit(cache=True)
def lowest_logit(peak: float, temperature: float, min_p: float) -> float:
    """The least logit that min_p leaves, and that has any weight at all."""
    floor = -_NEGLIGIBLE
    if min_p > 0.0:
        floor = max(floor, math.log(min_p) - _ROUNDING)
    return max(peak + temperature * floor, -_FLOAT32_MAX)


@njit(cache=True)
def find_survivors(
    logits: npt.NDArray[np.float32],
    bits: npt.NDArray[np.int32],
    peak: float,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
) -> npt.NDArray[np.int32]:
    """Ids that may be sampled, ascending; never empty for a row that has a peak.

    Args:
        logits: `[V]`; `bits` are its bit patterns.
        peak: the row's highest logit, finite.
        temperature: above 0.
    """
    bound = lowest_logit(peak, temperature, min_p)
    ids = np.empty(len(logits), np.int32)
    n = 0
    for token in range(len(logits)):
        ids[n] = token
        n += logits[token] >= bound
    if 0 < top_k < n:
        n = keep_prefix(_keys_of(bits, ids[:n]), np.ones(n), float(top_k), ids)
    if top_p < 1.0:
        weights = np.exp(log_weights(logits, ids[:n], peak, temperature))
        limit = top_p * weights.sum() * (1.0 - _ROUNDING)
        n = keep_prefix(_keys_of(bits, ids[:n]), weights, limit, ids)
    return ids[:n]


@njit(cache=True)
def _keys_of(bits: npt.NDArray[np.int32], ids: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    keys = np.empty(len(ids), np.int64)
    for i in range(len(ids)):
        keys[i] = key_of(bits[ids[i]])
    return keys

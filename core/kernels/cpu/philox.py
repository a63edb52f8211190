"""Counter-based random numbers: Philox4x32-10, and the noise that the sampler makes of it.

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). A word is a pure function of a key and a
counter, so noise needs no state and does not depend on who asks for it, how often, or in what order.

The engine's layout: key = the request's seed; counter = (token id // 4, stream, low and high half of the position);
of the four words that come out, token id % 4 selects one. 32-bit values travel in uint64, because numba turns mixed
signedness into floats.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from numba import njit

Words: TypeAlias = tuple[np.uint64, np.uint64, np.uint64, np.uint64]

_MULTIPLIER_0 = np.uint64(0xD2511F53)
_MULTIPLIER_1 = np.uint64(0xCD9E8D57)
_WEYL_0 = np.uint32(0x9E3779B9)
_WEYL_1 = np.uint32(0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_ONE = np.uint64(1)
_TWO = np.uint64(2)
_WORD_TO_UNIT = 2.0**-32


@njit(cache=True, forceinline=True)
def philox4x32(
    c0: np.uint64, c1: np.uint64, c2: np.uint64, c3: np.uint64, k0: np.uint64, k1: np.uint64
) -> Words:
    """Ten rounds on counter `(c0, c1, c2, c3)` under key `(k0, k1)`; uint64 in and out, each below 2**32."""
    # Inlined, and 32 bits wide between rounds: so LLVM makes a loop over counters one over vectors of them.
    w0, w1, w2, w3, key_0, key_1 = (
        np.uint32(c0),
        np.uint32(c1),
        np.uint32(c2),
        np.uint32(c3),
        np.uint32(k0),
        np.uint32(k1),
    )
    for _ in range(10):
        product_0 = _MULTIPLIER_0 * np.uint64(w0)
        product_1 = _MULTIPLIER_1 * np.uint64(w2)
        w0 = np.uint32(np.uint32(product_1 >> _HALF) ^ w1 ^ key_0)
        w1 = np.uint32(product_1)
        w2 = np.uint32(np.uint32(product_0 >> _HALF) ^ w3 ^ key_1)
        w3 = np.uint32(product_0)
        key_0 = np.uint32(key_0 + _WEYL_0)
        key_1 = np.uint32(key_1 + _WEYL_1)
    return np.uint64(w0), np.uint64(w1), np.uint64(w2), np.uint64(w3)


@njit(cache=True, forceinline=True)
def noise_words(seed: np.uint64, stream: np.uint64, position: np.uint64, block: np.uint64) -> Words:
    """The four words of token ids `4 * block + (0, 1, 2, 3)`."""
    return philox4x32(block, stream, position & _LOW, position >> _HALF, seed & _LOW, seed >> _HALF)


@njit(cache=True)
def fill_complements(
    seed: np.uint64,
    stream: np.uint64,
    position: np.uint64,
    first_block: np.uint64,
    complements: npt.NDArray[np.float32],
) -> None:
    """Write `2**32 - 1 - word`, rounded, of the token ids from `4 * first_block` on; many at a time."""
    for i in range(len(complements) // 4):
        words = noise_words(seed, stream, position, first_block + np.uint64(i))
        for j, word in enumerate(words):
            complements[4 * i + j] = np.float32(np.uint32(~word))


@njit(cache=True)
def select_word(words: Words, token_id: np.uint64) -> np.uint64:
    """The word of `token_id` among the four of its block."""
    if token_id & _TWO:
        return words[3] if token_id & _ONE else words[2]
    return words[1] if token_id & _ONE else words[0]


@njit(cache=True)
def unit_from_word(word: np.uint64) -> float:
    """The centre of one of 2**32 equal cells of (0, 1), exact in float64; never 0 and never 1."""
    return (float(word) + 0.5) * _WORD_TO_UNIT


@njit(cache=True)
def gumbel_from_word(word: np.uint64) -> float:
    """Standard Gumbel noise by inversion; lies within (-3.14, 22.88)."""
    return -math.log(-math.log(unit_from_word(word)))


@njit(cache=True)
def gumbel_of(seed: np.uint64, stream: np.uint64, position: np.uint64, token: int) -> float:
    """Gumbel noise of one token id."""
    token_id = np.uint64(token)
    return gumbel_from_word(select_word(noise_words(seed, stream, position, token_id >> _TWO), token_id))


@njit(cache=True)
def uniform_at(seed: np.uint64, stream: np.uint64, position: np.uint64) -> float:
    """One uniform in (0, 1) per (seed, stream, position)."""
    return unit_from_word(noise_words(seed, stream, position, np.uint64(0))[0])


@njit(cache=True)
def gumbel_row(
    seed: np.uint64, stream: np.uint64, position: np.uint64, vocab_size: int
) -> npt.NDArray[np.float64]:
    """Gumbel noise of token ids `0 .. vocab_size - 1`."""
    noise = np.empty(vocab_size, np.float64)
    for token in range(vocab_size):
        noise[token] = gumbel_of(seed, stream, position, token)
    return noise

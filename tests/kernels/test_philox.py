"""Philox against the published vectors, and the noise against its distributions."""

import numpy as np
import pytest
from scipy import stats

from outrider.kernels.cpu.philox import (
    gumbel_from_word,
    gumbel_row,
    noise_words,
    philox4x32,
    select_word,
    uniform_at,
    unit_from_word,
)

# "philox4x32 10" of the kat_vectors file of Random123: counter, key, result.
KNOWN_ANSWERS = [
    (
        (0, 0, 0, 0),
        (0, 0),
        (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
    ),
    (
        (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF),
        (0xFFFFFFFF, 0xFFFFFFFF),
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def u64(*values):
    return tuple(np.uint64(value) for value in values)


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_philox_gives_the_published_answers(counter, key, expected):
    assert philox4x32(*u64(*counter), *u64(*key)) == expected


def test_counter_and_key_are_laid_out_as_documented():
    seed, stream, position, block = 0x299F31D0A4093822, 0x85A308D3, 0x0370734413198A2E, 0x243F6A88
    assert noise_words(*u64(seed, stream, position, block)) == KNOWN_ANSWERS[2][2]


def test_a_token_takes_its_own_word_of_its_block():
    row = gumbel_row(*u64(5, 0, 9), 10)
    for token in range(10):
        words = noise_words(*u64(5, 0, 9, token // 4))
        assert select_word(words, np.uint64(token)) == words[token % 4]
        assert row[token] == gumbel_from_word(np.uint64(words[token % 4]))


@pytest.mark.parametrize("changed", [0, 1, 2])
@pytest.mark.parametrize("bit", [0, 31, 32, 63])
def test_every_bit_of_seed_and_position_and_each_stream_gives_other_noise(changed, bit):
    base = [5, 0, 9]
    other = list(base)
    other[changed] ^= 1 << (bit if changed != 1 else bit % 32)
    assert not np.any(gumbel_row(*u64(*base), 64) == gumbel_row(*u64(*other), 64))


def test_the_extreme_words_stay_inside_the_open_interval():
    assert 0.0 < unit_from_word(np.uint64(0)) < 2.0**-32
    assert 1.0 - 2.0**-32 < unit_from_word(np.uint64(2**32 - 1)) < 1.0
    assert gumbel_from_word(np.uint64(0)) > -3.14
    assert gumbel_from_word(np.uint64(2**32 - 1)) < 22.88


def test_the_noise_is_standard_gumbel_over_tokens_and_over_positions():
    over_tokens = gumbel_row(*u64(1, 0, 0), 20_000)
    over_positions = [gumbel_row(*u64(1, 0, position), 1)[0] for position in range(20_000)]
    assert stats.kstest(over_tokens, "gumbel_r").pvalue > 1e-4
    assert stats.kstest(over_positions, "gumbel_r").pvalue > 1e-4


def test_the_uniform_is_uniform_over_seeds_and_over_positions():
    over_seeds = [uniform_at(*u64(seed, 1, 3)) for seed in range(20_000)]
    over_positions = [uniform_at(*u64(3, 1, position)) for position in range(20_000)]
    assert stats.kstest(over_seeds, "uniform").pvalue > 1e-4
    assert stats.kstest(over_positions, "uniform").pvalue > 1e-4

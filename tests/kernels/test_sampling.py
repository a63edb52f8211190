"""The race between noisy scores, alone."""

import math

import numpy as np
import pytest

from outrider.kernels.cpu.philox import gumbel_row
from outrider.kernels.cpu.sampling import TOKEN_STREAM, _race, _race_all

SEED, STREAM, POSITION = np.uint64(3), np.uint64(TOKEN_STREAM), np.uint64(9)


@pytest.mark.parametrize("first", [0, 3, 19])
def test_among_equal_sums_the_lowest_id_wins_wherever_the_race_begins(first):
    ids = np.arange(40, 80, 2, dtype=np.int32)
    scores = -gumbel_row(SEED, STREAM, POSITION, 80)[ids]
    assert _race(scores, ids, first, SEED, STREAM, POSITION) == 40


@pytest.mark.parametrize("first", [0, 250, 499])
def test_where_the_race_begins_does_not_show(first):
    ids = np.sort(np.random.default_rng(0).choice(5000, 500, replace=False)).astype(np.int32)
    for seed in range(50):
        scores = np.random.default_rng(seed).normal(0, 2, 500)
        noisy = scores + gumbel_row(np.uint64(seed), STREAM, POSITION, 5000)[ids]
        assert _race(scores, ids, first, np.uint64(seed), STREAM, POSITION) == ids[np.argmax(noisy)]


def winner_of_all(logits, temperature=1.0, lowest=-math.inf, seed=SEED):
    peak_id = int(np.argmax(logits))
    peak = float(min(logits[peak_id], np.finfo(np.float32).max))
    return _race_all(logits, peak_id, peak, lowest, temperature, seed, STREAM, POSITION)


@pytest.mark.parametrize("size", [1, 3, 255, 256, 257, 5000])
@pytest.mark.parametrize("spread", [0.0, 1.0, 8.0, 60.0])
@pytest.mark.parametrize("temperature", [0.05, 0.7, 1.0, 9.0, 1e30])
def test_the_race_of_a_whole_row_is_won_by_the_highest_sum(size, spread, temperature):
    logits = np.random.default_rng(size).normal(0, spread, size).astype(np.float32)
    scores = (logits.astype(np.float64) - float(logits.max())) / temperature
    for seed in range(40):
        noisy = scores + gumbel_row(np.uint64(seed), STREAM, POSITION, size)
        assert winner_of_all(logits, temperature, seed=np.uint64(seed)) == np.argmax(noisy)


def test_a_token_below_the_lowest_logit_never_wins():
    logits = np.random.default_rng(0).normal(0, 1, 700).astype(np.float32)
    scores = np.where(logits >= 0.5, logits.astype(np.float64), -np.inf)
    for seed in range(40):
        noisy = scores + gumbel_row(np.uint64(seed), STREAM, POSITION, 700)
        assert winner_of_all(logits, lowest=0.5, seed=np.uint64(seed)) == np.argmax(noisy)


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1.0, 1e39, 1.7e308])
@pytest.mark.parametrize("top", [5.0, math.inf])
def test_equal_logits_have_equal_chances_at_any_temperature(top, temperature):
    logits = np.full(300, -math.inf, np.float32)
    logits[[7, 120, 299]] = top
    winners = [winner_of_all(logits, temperature, -1e38, np.uint64(seed)) for seed in range(300)]
    assert set(winners) == {7, 120, 299}
    assert min(map(winners.count, (7, 120, 299))) > 60

"""The race between noisy scores, alone."""

import numpy as np
import pytest

from outrider.kernels.cpu.philox import gumbel_row
from outrider.kernels.cpu.sampling import TOKEN_STREAM, _race

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

import numpy as np
import pytest

from outrider.kernels.cpu.philox import uniform_at
from outrider.kernels.cpu.sampling import ACCEPT_STREAM, RECOVERED_STREAM, TOKEN_STREAM

from ..noise import gumbel_noise

STREAMS = [TOKEN_STREAM, ACCEPT_STREAM, RECOVERED_STREAM]


def accept_uniform(seed, position):
    return uniform_at(np.uint64(seed), np.uint64(ACCEPT_STREAM), np.uint64(position))


def test_noise_is_a_pure_function():
    assert np.array_equal(gumbel_noise(42, 7, 50), gumbel_noise(42, 7, 50))
    assert accept_uniform(42, 7) == accept_uniform(42, 7)


def test_noise_of_a_token_does_not_depend_on_the_size_of_the_vocabulary():
    assert np.array_equal(gumbel_noise(1, 2, 64), gumbel_noise(1, 2, 72)[:64])


@pytest.mark.parametrize("seed", [0, 2**64 - 1])
@pytest.mark.parametrize("position", [0, 2**40])
def test_any_seed_and_position_has_noise(seed, position):
    assert np.isfinite(gumbel_noise(seed, position, 9)).all()
    assert 0.0 < accept_uniform(seed, position) < 1.0


def test_streams_are_uncorrelated():
    draws = np.array(
        [gumbel_noise(3, position, 1, stream)[0] for position in range(4000) for stream in STREAMS]
    )
    draws = np.exp(-np.exp(-draws.reshape(-1, len(STREAMS)).T))
    correlation = np.corrcoef(draws)
    assert abs(correlation[~np.eye(len(STREAMS), dtype=bool)]).max() < 4 / np.sqrt(4000)

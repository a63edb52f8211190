"""RMSNorm of rows: the right numbers, and equal bits in any batch and with any number of workers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from outrider.kernels.cpu import norm
from outrider.kernels.cpu.norm import rms_norm
from outrider.kernels.cpu.simd import LANES
from outrider.kernels.cpu.weights import padded

Array = npt.NDArray[np.float32]

WIDTHS = [1, 5, 31, 32, 33, 100, 576]
EPSILON = np.float32(1e-5)


def operands(num_rows: int, width: int) -> tuple[Array, Array]:
    random = np.random.default_rng(width)
    # Magnitudes over six decades, so that any other order of addition shows in the bits.
    x = random.standard_normal((num_rows, width)) * 10.0 ** random.integers(-3, 3, (num_rows, width))
    return x.astype(np.float32), random.standard_normal(width).astype(np.float32)


@pytest.mark.parametrize("epsilon", [0.0, 1e-6, 10.0])
@pytest.mark.parametrize("width", WIDTHS)
def test_numbers_are_as_close_as_float32_allows(width: int, epsilon: float) -> None:
    x, weight = operands(50, width)
    mean = (x.astype(np.float64) ** 2).mean(axis=1, keepdims=True) + float(np.float32(epsilon))
    exact = weight.astype(np.float64) * x / np.sqrt(mean)
    # Chains of K / LANES squares and a tree over the lanes; the root halves what was before it; five operations.
    roundings = (padded(width) / LANES + np.log2(LANES) + 3) / 2 + 5
    assert (
        np.abs(rms_norm(x, weight, np.float32(epsilon)) - exact) <= roundings * 2.0**-24 * np.abs(exact)
    ).all()


@pytest.mark.parametrize("width", WIDTHS)
def test_a_row_has_the_same_bits_in_every_batch(width: int) -> None:
    x, weight = operands(64, width)
    alone = np.concatenate([rms_norm(x[row : row + 1], weight, EPSILON) for row in range(64)])
    for num_rows in range(1, 65):
        assert (rms_norm(x[:num_rows], weight, EPSILON) == alone[:num_rows]).all()
        assert (rms_norm(x[64 - num_rows :], weight, EPSILON) == alone[64 - num_rows :]).all()


def test_a_row_has_the_same_bits_where_threads_share_the_work() -> None:
    x, weight = operands(200, 576)
    assert x.size > norm._PARALLEL_FROM
    together = rms_norm(x, weight, EPSILON)
    for row in range(200):
        assert (rms_norm(x[row : row + 1], weight, EPSILON)[0] == together[row]).all()


@pytest.mark.parametrize("num_rows", [1, 2, 7, 64])
@pytest.mark.parametrize("width", [5, 32, 100])
def test_bits_do_not_depend_on_the_number_of_workers(width: int, num_rows: int) -> None:
    x, weight = operands(num_rows, width)
    expected = rms_norm(x, weight, EPSILON)
    for num_workers in (1, 2, 3, 8, 100):
        out = np.full((num_rows, padded(width)), np.nan, np.float32)
        norm._run(x, weight, EPSILON, out, num_workers)
        assert (out[:, :width] == expected).all()
        assert (out[:, width:] == 0).all()


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_in_its_row(poison: float) -> None:
    x, weight = operands(6, 37)
    clean = rms_norm(x, weight, EPSILON)
    x[2, 36] = poison
    poisoned = rms_norm(x, weight, EPSILON)
    assert np.isnan(poisoned[2, 36])
    assert (np.delete(poisoned, 2, axis=0) == np.delete(clean, 2, axis=0)).all()


def test_a_row_of_zeros_stays_zero() -> None:
    x, weight = operands(3, 40)
    x[1] = 0
    assert (rms_norm(x, weight, EPSILON)[1] == 0).all()


def test_no_rows_give_no_rows() -> None:
    assert rms_norm(np.zeros((0, 8), np.float32), np.ones(8, np.float32), EPSILON).shape == (0, 8)


def test_inputs_are_only_read_and_may_be_strided() -> None:
    x, weight = operands(6, 37)
    expected: Any = rms_norm(x, weight, EPSILON)
    before = x.copy()
    assert (rms_norm(np.asfortranarray(x), weight, EPSILON) == expected).all()
    assert (rms_norm(np.repeat(x, 2, axis=0)[::2], weight, EPSILON) == expected).all()
    assert (x == before).all()
    assert not np.shares_memory(expected, x)

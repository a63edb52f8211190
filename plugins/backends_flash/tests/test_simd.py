"""The arithmetic under the kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import njit
from outrider_flash import simd


@njit
def _map(function: Any, source: Any, target: Any) -> None:
    for i in range(0, source.size, 16):
        simd.store(target.ctypes.data + 4 * i, function(simd.load(source.ctypes.data + 4 * i)))


@njit
def _exp(x: Any) -> Any:
    return simd.exp(x)


@njit
def _tanh(x: Any) -> Any:
    return simd.tanh(x)


def apply(function: Any, numbers: Any) -> Any:
    source = np.resize(np.asarray(numbers, np.float32), -(-len(numbers) // 16) * 16)
    target = np.empty_like(source)
    _map(function, source, target)
    return target[: len(numbers)]


def units_off(function: Any, exact: Any, numbers: Any) -> float:
    truth = exact(numbers.astype(np.float64))
    return float(
        np.max(np.abs(apply(function, numbers) - truth) / np.spacing(np.abs(truth).astype(np.float32)))
    )


def test_exp_is_right_to_the_last_place() -> None:
    numbers = np.concatenate([np.linspace(-86.9, 0, 100_000), -np.logspace(-9, 1, 10_000)]).astype(np.float32)
    assert units_off(_exp, np.exp, numbers) < 1
    assert apply(_exp, [0.0, -0.0]).tolist() == [1.0, 1.0]
    assert apply(_exp, [-88.0, -1e9, -np.inf]).tolist() == [0.0, 0.0, 0.0]
    assert np.isnan(apply(_exp, [np.nan])).all()


def test_tanh_is_right_to_two_units() -> None:
    sizes = np.concatenate([np.linspace(0, 12, 100_000), np.logspace(-30, 0, 10_000)])
    assert units_off(_tanh, np.tanh, np.concatenate([sizes, -sizes]).astype(np.float32)) < 2
    assert apply(_tanh, [np.inf, -np.inf, 50.0, 0.0]).tolist() == [1.0, -1.0, 1.0, 0.0]
    assert np.isnan(apply(_tanh, [np.nan])).all()


@njit
def _transpose(addresses: Any, offset: int, target: Any) -> None:
    simd.load_transposed(addresses.ctypes.data, offset, target.ctypes.data)


def test_transposing_puts_everything_where_it_belongs() -> None:
    rows = np.arange(16 * 40, dtype=np.float32).reshape(16, 40)
    order = np.random.default_rng(0).permutation(16)
    addresses = np.array([rows[row].ctypes.data for row in order], np.int64)
    target = np.empty((16, 16), np.float32)
    _transpose(addresses, 4 * 8, target)
    assert (target == rows[order, 8:24].T).all()


@njit
def _keep(source: Any, first: int, last: int, target: Any) -> None:
    simd.store(target.ctypes.data, simd.keep(simd.load(source.ctypes.data), first, last))


@pytest.mark.parametrize(("first", "last"), [(0, 16), (3, 9), (0, 0), (15, 16), (-100, 2), (5, 1000), (9, 3)])
def test_keep_hides_the_lanes_outside(first: int, last: int) -> None:
    source = np.full(16, np.nan, np.float32)
    source[max(first, 0) : max(last, 0)] = 1.0
    target = np.empty_like(source)
    _keep(source, first, last, target)
    assert target.tolist() == [1.0 if first <= lane < last else -np.inf for lane in range(16)]


@njit
def _fold(source: Any) -> Any:
    return simd.sum_lanes(simd.load(source.ctypes.data)), simd.max_lanes(simd.load(source.ctypes.data))


def test_folding_uses_every_lane_in_a_fixed_tree() -> None:
    for lanes in np.random.default_rng(0).normal(size=(50, 16)).astype(np.float32):
        tree = lanes
        while len(tree) > 1:
            tree = tree[: len(tree) // 2] + tree[len(tree) // 2 :]
        assert _fold(lanes) == (tree[0], lanes.max())

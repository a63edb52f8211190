"""The row-invariant product: equal bits however rows, columns and threads are arranged, and the right numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from outrider.kernels.cpu import linear as linear_module
from outrider.kernels.cpu import product
from outrider.kernels.cpu.linear import linear as packed_linear
from outrider.kernels.cpu.linear import whole_steps
from outrider.kernels.cpu.simd import LANES
from outrider.kernels.cpu.weights import PackedWeight

Array = npt.NDArray[np.float32]

SHAPES = [
    (37, 53),
    (64, 64),
    (577, 31),
    (1, 5),
    (15, 1),
    (16, 3),
    (33, 130),
]  # K, N: with and without remainders


FORMATS = ["float32", "bfloat16", "packed bfloat16", "int8"]


def pack(weight: Array, weights: str) -> PackedWeight:
    """A weight in one of the formats; to bfloat16 it is cut, not rounded."""
    if "bfloat16" in weights:
        bits = (weight.view(np.uint32) >> 16).astype(np.uint16)
        return PackedWeight.pack(bits, compact=weights.startswith("packed"))
    return PackedWeight.pack(weight, quantize=weights == "int8")


def linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    """The product with a float32 weight."""
    return packed_linear(x, PackedWeight.pack(np.ascontiguousarray(weight)), bias)


def operands(num_rows: int, depth: int, num_columns: int) -> tuple[Array, Array, Array]:
    random = np.random.default_rng(depth * 1000 + num_columns)
    # Magnitudes over six decades, so that any other order of addition shows in the bits.
    x = random.standard_normal((num_rows, depth)) * 10.0 ** random.integers(-3, 3, (num_rows, depth))
    weight = random.standard_normal((num_columns, depth))
    return (
        x.astype(np.float32),
        weight.astype(np.float32),
        random.standard_normal(num_columns).astype(np.float32),
    )


@pytest.mark.parametrize("weights", FORMATS)
@pytest.mark.parametrize(("depth", "num_columns"), SHAPES)
def test_a_row_has_the_same_bits_in_every_batch(weights: str, depth: int, num_columns: int) -> None:
    x, matrix, bias = operands(64, depth, num_columns)
    weight = pack(matrix, weights)
    alone = np.concatenate([packed_linear(x[row : row + 1], weight, bias) for row in range(64)])
    for num_rows in range(1, 65):
        assert (packed_linear(x[:num_rows], weight, bias) == alone[:num_rows]).all()
        assert (packed_linear(x[64 - num_rows :], weight, bias) == alone[64 - num_rows :]).all()


@pytest.mark.parametrize("weights", FORMATS)
@pytest.mark.parametrize(("depth", "num_columns"), SHAPES)
def test_a_format_computes_with_the_numbers_that_it_holds(weights: str, depth: int, num_columns: int) -> None:
    x, matrix, bias = operands(9, depth, num_columns)
    weight = pack(matrix, weights)
    exact = x.astype(np.float64) @ weight.rows().astype(np.float64).T + bias
    scale = np.abs(x).astype(np.float64) @ np.abs(weight.rows()).astype(np.float64).T + np.abs(bias)
    assert (np.abs(packed_linear(x, weight, bias) - exact) <= (depth / LANES + 7) * 2.0**-24 * scale).all()


@pytest.mark.parametrize("weights", FORMATS)
@pytest.mark.parametrize("depth", [1037, 1040])
def test_a_row_has_the_same_bits_in_a_batch_of_several_panels(depth: int, weights: str) -> None:
    x, matrix, bias = operands(302, depth, 357)
    weight = pack(matrix, weights)
    assert weight.values.nbytes > 2 * product._PANEL_BYTES
    order = np.random.default_rng(0).permutation(302)
    together = packed_linear(x, weight, bias)
    assert (packed_linear(x[order], weight, bias) == together[order]).all()
    for num_rows in (1, 2, 5, product._UNPACK_FROM - 1, product._UNPACK_FROM):
        for row in range(0, 302 - num_rows, 17):
            rows = slice(row, row + num_rows)
            assert (packed_linear(x[rows], weight, bias) == together[rows]).all()


@pytest.mark.parametrize("weights", FORMATS)
@pytest.mark.parametrize(("depth", "num_columns"), [(64, 64), (1040, 577), (16, 4099)])
@pytest.mark.parametrize("num_rows", [1, 3, 9])
def test_bits_do_not_depend_on_the_division_among_threads(
    num_rows: int, depth: int, num_columns: int, weights: str
) -> None:
    x, matrix, bias = operands(num_rows, depth, num_columns)
    weight = pack(matrix, weights)
    results = []
    for num_workers in (1, 2, 3, 5, 8, 64):
        out = np.full((num_rows, num_columns), np.nan, np.float32)
        arrays = weight.values, weight.scales, weight.exceptions, bias, out
        linear_module._run(whole_steps(x), *arrays, num_workers)
        results.append(out)
    assert all((out == results[0]).all() for out in results)
    assert not np.isnan(results[0]).any()


def test_bits_of_a_column_do_not_depend_on_its_neighbours() -> None:
    x, weight, bias = operands(5, 101, 41)
    together = linear(x, weight, bias)
    for first in range(41):
        assert (linear(x, weight[first:], bias[first:]) == together[:, first:]).all()


@pytest.mark.parametrize("num_rows", [1, 2, 3, 4, 5, 6, 7, 8, 21])
@pytest.mark.parametrize(("depth", "num_columns"), [*SHAPES, (0, 4), (5, 0)])
def test_sums_of_whole_numbers_are_exact(num_rows: int, depth: int, num_columns: int) -> None:
    random = np.random.default_rng(0)
    x = random.integers(-30, 30, (num_rows, depth))
    weight = random.integers(-30, 30, (num_columns, depth))
    bias = random.integers(-30, 30, num_columns)
    exact = x @ weight.T
    floats = [array.astype(np.float32) for array in (x, weight, bias)]
    assert (linear(*floats[:2]) == exact).all()
    assert (linear(*floats) == exact + bias).all()


def test_sums_are_as_close_as_their_length_allows() -> None:
    random = np.random.default_rng(0)
    x, weight = (random.standard_normal((7, 4096)).astype(np.float32) for _ in range(2))
    exact = x.astype(np.float64) @ weight.astype(np.float64).T
    scale = np.abs(x).astype(np.float64) @ np.abs(weight).astype(np.float64).T
    # Each of the LANES chains has K / LANES terms; the tree adds log2(LANES) roundings.
    bound = (4096 / LANES + 4) * 2.0**-24 * scale
    assert (np.abs(linear(x, weight) - exact) <= bound).all()


def test_no_rows_give_no_rows() -> None:
    assert linear(np.zeros((0, 8), np.float32), np.zeros((5, 8), np.float32)).shape == (0, 5)


def test_a_row_of_nan_stays_alone() -> None:
    x, weight, bias = operands(6, 37, 11)
    clean = linear(x, weight, bias)
    x[2] = np.nan
    poisoned = linear(x, weight, bias)
    assert np.isnan(poisoned[2]).all()
    assert (np.delete(poisoned, 2, axis=0) == np.delete(clean, 2, axis=0)).all()


def test_inputs_are_only_read_and_may_be_strided() -> None:
    x, weight, bias = operands(6, 37, 11)
    expected = linear(x, weight, bias)
    for array in (x, weight, bias):
        array.flags.writeable = False
    assert (linear(x, weight, bias) == expected).all()
    assert (
        linear(np.asfortranarray(x), np.asfortranarray(weight), np.repeat(bias, 2)[::2]) == expected
    ).all()


@pytest.mark.parametrize(
    ("x", "bias", "error", "message"),
    [
        (np.zeros((2, 3)), None, TypeError, "x is float64"),
        (np.zeros((2, 5), np.float32), None, ValueError, r"\(2, 5\).*\(4, 3\)"),
        (np.zeros(3, np.float32), None, ValueError, r"\(3,\)"),
        (np.zeros((2, 3), np.float32), np.zeros(3, np.float32), ValueError, r"bias \(3,\)"),
        (np.zeros((2, 3), np.float32), np.zeros(4), TypeError, "bias is float64"),
    ],
)
def test_operands_that_do_not_fit_are_named(x: Any, bias: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        packed_linear(x, PackedWeight.pack(np.zeros((4, 3), np.float32)), bias)


@pytest.mark.parametrize(
    ("weight", "error", "message"),
    [
        (np.zeros((4, 3)), TypeError, "float64"),
        (np.zeros((4, 3), np.float16), TypeError, "float16"),
        (np.zeros(4, np.float32), ValueError, r"\(4,\)"),
    ],
)
def test_a_weight_that_cannot_be_packed_is_named(weight: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        PackedWeight.pack(weight)

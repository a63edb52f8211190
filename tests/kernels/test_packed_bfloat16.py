"""bfloat16 in 12 bits: every bit is kept, and products are those of plain bfloat16."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from outrider.kernels.cpu import packed_bfloat16, product
from outrider.kernels.cpu.linear import linear
from outrider.kernels.cpu.packed_bfloat16 import ROWS_PER_START
from outrider.kernels.cpu.weights import NOTHING, PackedWeight

Bits = npt.NDArray[np.uint16]

MATRICES = hnp.arrays(
    np.uint16, hnp.array_shapes(min_dims=2, max_dims=2, max_side=70), elements=st.integers(0, (1 << 16) - 1)
)
COLUMNS: Any = product.columns
NUM_ROWS = [
    *range(1, 10),
    31,
    32,
    33,
    product._UNPACK_FROM - 1,
    product._UNPACK_FROM,
    product._UNPACK_FROM + 2,
]


@pytest.fixture
def any_number_of_exceptions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_bfloat16, "_MOST_EXCEPTIONS", 1.0)


def random_bits(num_rows: int, depth: int, spread: int = 0) -> Bits:
    """Normal numbers, or with `spread` wider ones: many are exceptions then."""
    random = np.random.default_rng(depth)
    matrix = random.standard_normal((num_rows, depth)) * 2.0 ** -random.integers(
        0, spread + 1, (num_rows, depth)
    )
    matrix[random.random(matrix.shape) < 0.01] = 0
    return (matrix.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def bits_of(weight: PackedWeight) -> Bits:
    return (weight.rows().view(np.uint32) >> 16).astype(np.uint16)


def listed(weight: PackedWeight) -> list[tuple[int, int, float]]:
    """The exceptions of a weight."""
    num_starts = len(weight.values) // ROWS_PER_START + 1
    return [entry.tolist() for entry in weight.exceptions[num_starts:-1]]


@given(MATRICES, st.integers(15, 206))
@settings(max_examples=300, deadline=None)
def test_every_number_is_kept(bits: Bits, greatest: int) -> None:
    # A random exponent, cut down to the greatest one: many numbers are far below it, denormal ones and zeros included.
    exponents = np.minimum((bits >> 7) & 255, greatest).astype(np.uint16)
    bits = bits & 0x807F | exponents << 7
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed_bfloat16, "_MOST_EXCEPTIONS", 1.0)
        packed = PackedWeight.pack(bits, compact=True)
    assert packed.values.dtype == np.uint8
    assert packed.format == "bfloat16"
    assert (bits_of(packed) == bits).all()


def test_zeros_keep_their_sign_and_numbers_in_the_window_are_no_exceptions() -> None:
    numbers = [
        0.0,
        -0.0,
        *(sign * 1.5 * 2.0**-e for e in range(15) for sign in (1, -1)),
        2.0**-21,
        3 * 2.0**-21,
    ]
    bits = (np.array([numbers], np.float32).view(np.uint32) >> 16).astype(np.uint16)
    packed = PackedWeight.pack(bits, compact=True)
    assert packed.values.dtype == np.uint8
    assert listed(packed) == []
    assert (bits_of(packed) == bits).all()


@pytest.mark.usefixtures("any_number_of_exceptions")
def test_what_is_cut_off_is_listed_by_row_and_column() -> None:
    matrix = np.zeros((40, 5), np.float32)
    matrix[:, 0] = 1
    matrix[3, 4] = 1.5 * 2.0**-21  # one and a half steps
    matrix[3, 2] = -(2.0**-30)
    matrix[39, 1] = 2.0**-100
    packed = PackedWeight.pack((matrix.view(np.uint32) >> 16).astype(np.uint16), compact=True)
    assert listed(packed) == [(3, 2, -(2.0**-30)), (3, 4, 2.0**-22), (39, 1, 2.0**-100)]
    assert (packed.rows() == matrix).all()
    assert (packed.rows(np.array([[39, 3], [3, 0]])) == matrix[[[39, 3], [3, 0]]]).all()
    assert (packed.rows(39) == matrix[39]).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 2.0**80])
def test_a_matrix_of_numbers_too_large_stays_as_it_is(value: float) -> None:
    matrix = np.zeros((3, 64), np.float32)
    matrix[1, 7] = value
    bits = (matrix.view(np.uint32) >> 16).astype(np.uint16)
    assert PackedWeight.pack(bits, compact=True).values is bits


def test_a_matrix_with_more_than_a_few_exceptions_stays_as_it_is() -> None:
    bits = np.full((10, 320), 0x3F80, np.uint16)
    bits[2, :3] = 1
    assert PackedWeight.pack(bits, compact=True).values.dtype == np.uint8
    bits[9, 319] = 1
    assert PackedWeight.pack(bits, compact=True).values is bits


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (16, 32), (17, 33)])
def test_a_matrix_of_any_shape_can_be_packed(shape: tuple[int, int]) -> None:
    packed = PackedWeight.pack(np.full(shape, 0x3F80, np.uint16), compact=True)
    assert packed.values.shape == (shape[0], -(-shape[1] // 32) * 48)
    assert packed.values.flags.c_contiguous
    assert packed.values.ctypes.data % 64 == 0
    assert (packed.rows() == np.ones(shape)).all()


@pytest.mark.parametrize("num_rows", NUM_ROWS)
@pytest.mark.parametrize(("num_columns", "depth"), [(37, 53), (3, 64), (131, 577), (300, 1040)])
def test_a_product_without_exceptions_has_the_bits_of_plain_bfloat16(
    num_rows: int, num_columns: int, depth: int
) -> None:
    bits = random_bits(num_columns, depth)
    packed = PackedWeight.pack(bits, compact=True)
    assert packed.values.dtype == np.uint8
    clean = np.ones(num_columns, np.bool_)
    clean[[row for row, _, _ in listed(packed)]] = False
    assert clean.sum() > num_columns // 2
    x = np.random.default_rng(0).standard_normal((num_rows, depth)).astype(np.float32)
    plain = linear(x, PackedWeight.pack(bits))
    assert (linear(x, packed)[:, clean] == plain[:, clean]).all()


@pytest.mark.usefixtures("any_number_of_exceptions")
@pytest.mark.parametrize("num_rows", NUM_ROWS)
def test_exceptions_are_added_to_the_product_in_their_order(num_rows: int) -> None:
    bits = random_bits(90, 577, spread=20)
    packed = PackedWeight.pack(bits, compact=True)
    random = np.random.default_rng(0)
    x, bias = random.standard_normal((num_rows, 577), np.float32), random.standard_normal(90, np.float32)
    expected = linear(x, PackedWeight(packed.values, packed.scales, packed.depth))
    assert len(listed(packed)) > 5000
    for row, column, delta in listed(packed):
        expected[:, row] += x[:, column] * np.float32(delta)
    assert (linear(x, packed, bias) == expected + bias).all()


@pytest.mark.usefixtures("any_number_of_exceptions")
def test_exceptions_belong_to_the_columns_that_are_asked_for() -> None:
    bits = random_bits(90, 64, spread=20)
    packed = PackedWeight.pack(bits, compact=True)
    x = np.random.default_rng(0).standard_normal((3, 64), np.float32)
    together = linear(x, packed)
    matrix = product.Matrix(packed.values, packed.scales, packed.exceptions, NOTHING)
    for first, last in ((0, 1), (15, 33), (16, 32), (17, 90), (89, 90), (90, 90)):
        out = np.full((3, 90), 7, np.float32)
        COLUMNS(x, matrix, out, first, last)
        assert (out[:, first:last] == together[:, first:last]).all()
        assert (out[:, :first] == 7).all()
        assert (out[:, last:] == 7).all()


@pytest.mark.parametrize("value", [2.0**63, 2.0**64, -(2.0**100), np.inf, np.nan, 1e-30])
def test_a_row_of_huge_or_tiny_numbers_is_the_same_in_every_batch(value: float) -> None:
    packed = PackedWeight.pack(random_bits(20, 64), compact=True)
    x = np.random.default_rng(0).standard_normal((200, 64)).astype(np.float32)
    x[7, 5] = value
    alone = linear(x[7:8], packed)[0]
    for num_rows in (8, 9, 40, 200):
        np.testing.assert_array_equal(linear(x[:num_rows], packed)[7], alone)

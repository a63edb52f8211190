"""Packed weights: what each format holds of a matrix, and how it lies in memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from outrider.kernels.cpu.simd import STEP
from outrider.kernels.cpu.weights import PackedWeight, WeightMemory, padded

Array = npt.NDArray[np.float32]

SMALLEST = float(np.finfo(np.float32).tiny)  # below it numbers are denormal
MATRICES = hnp.arrays(
    np.float32,
    hnp.array_shapes(min_dims=2, max_dims=2, max_side=70),
    elements=st.floats(-(2.0**100), 2.0**100, width=32),
)


def quantized(rows: list[list[float]]) -> PackedWeight:
    return PackedWeight.pack(np.array(rows, np.float32), quantize=True)


def test_every_bfloat16_number_is_kept() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16).reshape(64, 1024)
    packed = PackedWeight.pack(bits)
    assert packed.format == "bfloat16"
    assert (packed.rows().view(np.uint32) == bits.astype(np.uint32) << 16).all()


@pytest.mark.parametrize("depth", [1, 31, 32, 33, 96])
def test_every_float32_number_is_kept(depth: int) -> None:
    bits = np.random.default_rng(0).integers(0, 1 << 32, (50, depth), np.uint32)
    packed = PackedWeight.pack(bits.view(np.float32))
    assert packed.format == "float32"
    assert (packed.rows().view(np.uint32) == bits).all()


@given(MATRICES)
@settings(max_examples=200, deadline=None)
def test_int8_is_off_by_half_a_scale_at_most(matrix: Array) -> None:
    packed = PackedWeight.pack(matrix, quantize=True)
    assert packed.format == "int8"
    largest = np.abs(matrix).max(axis=1).astype(np.float64)
    scales = packed.scales.astype(np.float64)
    normal = largest >= 127 * SMALLEST
    # The scale is rounded, and so is the quotient, which is 127 at most: to one part in 2^24 each.
    assert (np.abs(scales - largest / 127)[normal] <= 2.0**-24 * scales[normal]).all()
    error = np.abs(packed.values[:, : packed.depth] * scales[:, None] - matrix)
    assert (error[normal] <= (0.5 + 127 * 2.0**-23) * scales[normal, None]).all()
    assert (np.abs(packed.values[normal]).max(axis=1, initial=0) == 127).all()
    assert (np.abs(packed.values.astype(np.int64)) <= 127).all()
    # Denormal scales are whole numbers of the smallest step; nothing gets larger than it was.
    assert (error[~normal] <= largest[~normal, None]).all()


@given(MATRICES)
@settings(max_examples=50, deadline=None)
def test_int8_rows_are_rounded_alone_and_alike_on_both_sides_of_zero(matrix: Array) -> None:
    packed = PackedWeight.pack(matrix, quantize=True)
    mirrored = PackedWeight.pack(-matrix, quantize=True)
    assert (mirrored.values == -packed.values).all()
    assert (mirrored.scales == packed.scales).all()
    for row in range(len(matrix)):
        alone = PackedWeight.pack(matrix[row : row + 1], quantize=True)
        assert (alone.values[0] == packed.values[row]).all()
        assert alone.scales[0] == packed.scales[row]


def test_int8_rounds_ties_to_even() -> None:
    packed = quantized([[127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 125.5, 126.5]])
    assert packed.scales.tolist() == [1]
    assert packed.values[0, :9].tolist() == [127, 0, 2, 2, 0, -2, -2, 126, 126]


def test_int8_keeps_rows_of_zeros() -> None:
    packed = quantized([[0, 0, 0], [1, 2, 3]])
    assert packed.scales[0] == 0
    assert packed.rows()[0].tolist() == [0, 0, 0]


def test_an_outlier_leaves_nothing_else_of_its_row_and_no_trace_in_others() -> None:
    packed = quantized([[1e30, 1, -2, 3], [4, 1, -2, 3]])
    assert packed.values[0, :4].tolist() == [127, 0, 0, 0]
    np.testing.assert_allclose(packed.rows()[:, 0], [1e30, 4], rtol=1e-6)
    assert (packed.rows()[1] == quantized([[4, 1, -2, 3]]).rows()[0]).all()


@pytest.mark.parametrize("largest", [1, 63, 64, 127, 190, 1000])
def test_rows_of_denormal_numbers_stay_in_range(largest: int) -> None:
    step = float(np.finfo(np.float32).smallest_subnormal)
    packed = quantized([[largest * step, -largest * step, 0.0]])
    values = packed.values[0, :3].tolist()
    assert 0 <= values[0] == -values[1] <= 127
    assert values[2] == 0
    assert (np.abs(packed.rows()) <= largest * step).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("bfloat16", [False, True])
def test_int8_refuses_what_it_cannot_hold(value: float, bfloat16: bool) -> None:
    matrix = np.ones((3, 40), np.float32)
    matrix[2, 39] = value
    weight = (matrix.view(np.uint32) >> 16).astype(np.uint16) if bfloat16 else matrix
    with pytest.raises(ValueError, match="NaN or infinity, which int8 cannot represent"):
        PackedWeight.pack(weight, quantize=True)
    PackedWeight.pack(weight)


def test_a_bfloat16_matrix_becomes_the_int8_of_its_numbers() -> None:
    bits = (np.random.default_rng(0).standard_normal((9, 50)).astype(np.float32).view(np.uint32) >> 16) << 16
    from_float = PackedWeight.pack(bits.view(np.float32), quantize=True)
    from_half = PackedWeight.pack((bits >> 16).astype(np.uint16), quantize=True)
    assert (from_half.values == from_float.values).all()
    assert (from_half.scales == from_float.scales).all()


def test_a_large_matrix_is_rounded_in_parts_like_a_small_one() -> None:
    matrix = np.random.default_rng(0).standard_normal((5, 1 << 21), np.float32)  # two rows at a time
    packed = PackedWeight.pack(matrix, quantize=True)
    for row in range(5):
        alone = PackedWeight.pack(matrix[row : row + 1], quantize=True)
        assert (alone.values[0] == packed.values[row]).all()
        assert alone.scales[0] == packed.scales[row]


@pytest.mark.parametrize("quantize", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.uint16])
@pytest.mark.parametrize("shape", [(3, 1), (3, 32), (3, 33), (0, 5), (3, 0)])
def test_rows_end_with_whole_steps_of_zeros(shape: tuple[int, int], dtype: type, quantize: bool) -> None:
    weight = np.ones(shape, dtype)
    packed = PackedWeight.pack(weight, quantize=quantize)
    assert packed.depth == shape[1]
    assert packed.values.shape == (shape[0], padded(shape[1]))
    assert packed.values.shape[1] % STEP == 0
    assert packed.values.flags.c_contiguous
    assert (packed.values[:, shape[1] :] == 0).all()
    assert packed.rows().shape == shape
    assert packed.scales.shape == ((shape[0],) if quantize else (0,))


@pytest.mark.parametrize("dtype", [np.float32, np.uint16])
def test_a_matrix_that_fits_is_kept_where_it_is(dtype: type) -> None:
    weight = np.ones((3, 64), dtype)
    assert PackedWeight.pack(weight).values is weight
    strided = np.ones((3, 128), dtype)[:, ::2]
    assert PackedWeight.pack(strided).values.flags.c_contiguous


@pytest.mark.parametrize("weights", ["float32", "bfloat16", "int8"])
def test_some_rows_are_those_of_the_matrix(weights: str) -> None:
    matrix = np.random.default_rng(0).standard_normal((9, 50)).astype(np.float32)
    if weights == "bfloat16":
        packed = PackedWeight.pack((matrix.view(np.uint32) >> 16).astype(np.uint16))
    else:
        packed = PackedWeight.pack(matrix, quantize=weights == "int8")
    index = np.array([[8, 0, 0], [3, 2, 1]])
    assert packed.rows(index).shape == (2, 3, 50)
    assert (packed.rows(index) == packed.rows()[index]).all()


@pytest.mark.parametrize("quantize", [False, True])
def test_padding_is_zeros_in_memory_that_held_something_else(quantize: bool) -> None:
    memory = WeightMemory()
    memory._block = np.full(1 << 16, 0x7F, np.uint8)
    packed = PackedWeight.pack(np.ones((3, 33), np.float32), quantize=quantize, memory=memory)
    assert np.shares_memory(packed.values, memory._block.base)
    assert (packed.values[:, 33:] == 0).all()


def test_arrays_of_one_memory_do_not_overlap_and_begin_at_cache_lines() -> None:
    memory = WeightMemory()
    random = np.random.default_rng(0)
    matrices = [random.standard_normal((n, 7 * n)).astype(np.float32) for n in range(1, 32)]
    packed = [
        PackedWeight.pack(matrix, quantize=n % 2 == 0, memory=memory) for n, matrix in enumerate(matrices)
    ]
    for one, matrix in zip(packed, matrices, strict=True):
        alone = PackedWeight.pack(matrix, quantize=one.format == "int8")
        assert (one.values == alone.values).all()
        assert one.values.ctypes.data % 64 == 0

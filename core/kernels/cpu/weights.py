"""How a weight matrix lies in memory for the kernels: float32, bfloat16 or int8, rows padded to whole steps."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from .packed_bfloat16 import NO_EXCEPTIONS, ROWS_PER_START, compress, decompress
from .simd import STEP, inlined

WeightFormat = Literal["float32", "bfloat16", "int8"]

NOTHING: npt.NDArray[np.float32] = np.zeros(0, np.float32)
"""Stands for "no bias", "no scales"."""

_FORMATS: dict[np.dtype[Any], WeightFormat] = {
    np.dtype(np.float32): "float32",
    np.dtype(np.uint16): "bfloat16",
    np.dtype(np.uint8): "bfloat16",
    np.dtype(np.int8): "int8",
}
_LARGEST = 127
_CACHE_LINE = 64
_BLOCK_BYTES = 32 << 20


def padded(size: int) -> int:
    """`size` rounded up to a multiple of `STEP`."""
    return -(-size // STEP) * STEP


padded_size = inlined(padded)
"""`padded`, for kernels."""


def empty_aligned(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """An undefined array that begins at a cache line, so that no vector of it lies on two."""
    num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    return _aligned(np.empty(num_bytes + _CACHE_LINE, np.uint8), num_bytes).view(dtype).reshape(shape)


def _aligned(memory: npt.NDArray[np.uint8], num_bytes: int) -> npt.NDArray[np.uint8]:
    """The first `num_bytes` of `memory` that begin at a cache line."""
    begin = -memory.ctypes.data % _CACHE_LINE
    return memory[begin : begin + num_bytes]


class WeightMemory:
    """Where weights lie that are not kept where they were loaded: one after another in large blocks.

    The operating system backs large blocks with large pages; a product then streams 10 to 15 % faster than from pages
    of 4 KiB. Memory that was never written to is not used.
    """

    def __init__(self) -> None:
        self._block: npt.NDArray[np.uint8] = np.zeros(0, np.uint8)

    def allocate(self, shape: tuple[int, int], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """An array `shape` that begins at a cache line; what it holds is undefined."""
        num_bytes = shape[0] * shape[1] * np.dtype(dtype).itemsize
        if len(self._block) < num_bytes + _CACHE_LINE:
            self._block = np.empty(max(num_bytes + _CACHE_LINE, _BLOCK_BYTES), np.uint8)
        array = _aligned(self._block, num_bytes)
        self._block = self._block[array.ctypes.data - self._block.ctypes.data + num_bytes :]
        return array.view(dtype).reshape(shape)


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """A matrix `[N, K]`.

    Attributes:
        values: `[N, padded(K)]`, C order, zeros behind column `K`: float32; uint16, the upper halves of float32 numbers
            (bfloat16); or int8. Or uint8 `[N, padded(K) * 3 / 2]`, bfloat16 as `packed_bfloat16` describes.
        scales: `[N]` float32 for int8 and uint8: the number is `value * scale`. `[0]` otherwise.
        depth: `K`.
        exceptions: of uint8.
    """

    values: npt.NDArray[Any]
    scales: npt.NDArray[np.float32]
    depth: int
    exceptions: npt.NDArray[np.void] = field(default_factory=lambda: NO_EXCEPTIONS)

    @classmethod
    def pack(
        cls,
        weight: npt.NDArray[Any],
        *,
        quantize: bool = False,
        compact: bool = False,
        memory: WeightMemory | None = None,
    ) -> PackedWeight:
        """Pack `[N, K]`, float32 or (as uint16) bfloat16; the array itself is kept if it needs no padding.

        Args:
            quantize: round to int8: `scale` of a row is its largest magnitude / 127, values are rounded to nearest,
                ties to even. A number is then off by half a scale at most.
            compact: keep bfloat16 in 12 bits per number, if `packed_bfloat16.compress` can.
            memory: for arrays that are made; None: of its own.

        Raises:
            TypeError: the array is of another type.
            ValueError: it is no matrix, or cannot be quantised since it holds NaN or infinity.
        """
        if weight.dtype not in (np.float32, np.uint16):
            raise TypeError(f"weight is {weight.dtype}; expected float32, or bfloat16 as uint16")
        if weight.ndim != 2:
            raise ValueError(f"weight {weight.shape} is not [N, K]")
        depth = weight.shape[1]
        scales = NOTHING
        memory = memory or WeightMemory()
        if quantize:
            weight, scales = _quantized(weight, memory)
        elif compact and weight.dtype == np.uint16:
            compressed = compress(weight, lambda size: memory.allocate((1, size), np.uint8)[0])
            if compressed is not None:
                values, scales, exceptions = compressed
                return cls(values, scales, depth, exceptions)
        if depth % STEP or not weight.flags.c_contiguous:
            values = memory.allocate((len(weight), padded(depth)), weight.dtype)
            values[:, :depth] = weight
            values[:, depth:] = 0
            weight = values
        return cls(weight, scales, depth)

    @property
    def format(self) -> WeightFormat:
        """Name of the number format."""
        return _FORMATS[self.values.dtype]

    def rows(self, index: Any = slice(None)) -> npt.NDArray[np.float32]:
        """The matrix, or some rows of it, as float32 `[., K]`."""
        stored = self.values[index]
        values = (decompress(stored) if stored.dtype == np.uint8 else _as_float32(stored))[..., : self.depth]
        if len(self.scales):
            values = values * self.scales[index][..., None]
        if len(self.exceptions):
            self._add_exceptions(
                values.reshape(-1, self.depth), np.arange(len(self.values))[index].reshape(-1)
            )
        return values

    def _add_exceptions(self, values: npt.NDArray[np.float32], rows: npt.NDArray[np.int64]) -> None:
        exceptions = self.exceptions[len(self.values) // ROWS_PER_START + 1 :]
        of_row = np.ascontiguousarray(exceptions["row"])
        begins, ends = np.searchsorted(of_row, rows), np.searchsorted(of_row, rows, "right")
        for i in np.flatnonzero(begins < ends):
            those = exceptions[begins[i] : ends[i]]
            values[i, those["column"]] += those["delta"]


def _as_float32(values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    if values.dtype == np.uint16:
        return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return values.astype(np.float32, copy=False)


def _quantized(
    weight: npt.NDArray[Any], memory: WeightMemory
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    values = memory.allocate(weight.shape, np.int8)
    scales = np.empty(len(weight), np.float32)
    step = max(1, (1 << 22) // max(1, weight.shape[1]))  # rows at a time, so that no second matrix is needed
    for first in range(0, len(weight), step):
        rows = slice(first, first + step)
        part = _as_float32(weight[rows])
        largest = np.abs(part).max(axis=1, initial=0.0)
        if not np.isfinite(largest).all():
            raise ValueError("weight holds NaN or infinity, which int8 cannot represent")
        scales[rows] = largest / np.float32(_LARGEST)
        divisor = np.where(scales[rows] > 0, scales[rows], 1)
        # A row of denormal numbers has a scale so coarse that the quotient may leave the range.
        values[rows] = np.clip(np.rint(part / divisor[:, None]), -_LARGEST, _LARGEST)
    return values, scales

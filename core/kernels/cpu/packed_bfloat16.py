"""bfloat16 in 12 bits: exponents, counted from the largest of their row, nearly all fit in four bits.

A number is kept as its sign, its mantissa and the code `c` of its exponent: 15 for the exponent of the row's largest
number, one less for each power of two below it; 0 is gradual underflow, as in other floating-point formats. Numbers
that need finer steps than those of `c = 0` are cut, and what was cut off is listed as an exception: nothing is lost.

`STEP` numbers of a row are a block of three lines of `LANES` bytes; byte `i` of a line is about the numbers `i`, called
low, and `LANES + i`, high:

1. the last bit of the low `c`, then the low mantissa;
2. the high sign, then the high mantissa;
3. from bit 7 on, the low sign, the high `c`, and the other three bits of the low `c`.

So a low number is two bytes that lie side by side in a float32 number, and a high one takes a single shift. The float32
number that has `c` as its exponent is the number times a power of two that is the same for the whole row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import prange

from .simd import FLOATS, INTS, LANES, STEP, inlined, kernel, lanes, shuffled

BLOCK_BYTES = 3 * LANES
"""Bytes of `STEP` numbers."""
FACTOR = 2.0**64
"""Decoded numbers are tiny. Lest products lose bits, they are multiplied by this; the scales of rows account for it."""
SLACK = 64 - BLOCK_BYTES
"""Bytes behind the last block that kernels read, and ignore."""

EXCEPTION = np.dtype([("row", np.int32), ("column", np.int32), ("delta", np.float32)])
"""What is to be added to a number of a matrix."""
NO_EXCEPTIONS: npt.NDArray[np.void] = np.zeros(0, EXCEPTION)
ROWS_PER_START = 16
"""Exceptions `[S + E + 1]` begin with `S = N // ROWS_PER_START + 1` entries whose `column` is the place, in the same
array, of the first exception of that many rows; then come those, by row and column, and one of no row to end them."""

DECODES_FAST = bool(llvm.get_host_cpu_features().get("avx512vbmi", False))
"""Whether decoding takes less time here than the stream of weights gets shorter by: bytes go anywhere at once."""

_CODES = 15
_GREATEST_EXPONENT = 206  # above it, the scale of a row is no normal number
_MOST_EXCEPTIONS = 1e-3  # of all numbers; one costs as much time as reading some hundred others
_NO_ROW = np.iinfo(np.int32).max


@inlined
def _greatest_exponent(row: Any) -> Any:
    greatest = np.uint16(0)
    for bits in row:
        greatest = max(greatest, bits & np.uint16(0x7FFF))
    return max(np.int64(greatest) >> 7, _CODES)


@inlined
def _split(bits: Any, greatest: int) -> Any:
    """Code and mantissa of a number, and how many times the last bit of its own mantissa was cut off."""
    number: Any = np.int64(bits)
    exponent, mantissa = (number >> 7) & 255, number & 127
    code = exponent - greatest + _CODES
    if code > 0:
        return code, mantissa, 0
    if exponent > 0:
        mantissa += 128
    else:
        code += 1  # a denormal number has the exponent of the smallest normal ones
    places = min(1 - code, 8)
    kept = mantissa >> places
    return 0, kept, mantissa - (kept << places)


def _build_count(fingerprint: int) -> Callable[..., Any]:
    def count(bits: Any, greatest: Any, exceptions: Any) -> int:
        """Of each row, the exponent of its largest number, and how many numbers are exceptions."""
        for n in prange(len(bits)):
            most = _greatest_exponent(bits[n])
            least = np.uint16(max(most - _CODES + 1, 0) << 7)
            total = 0
            for number in bits[n]:
                if number & np.uint16(0x7FFF) < least:
                    total += _split(number, most)[2] != 0
            greatest[n], exceptions[n] = most, total
        return fingerprint

    return count


def _build_encode(fingerprint: int) -> Callable[..., Any]:
    def encode(bits: Any, greatest: Any, first_exception: Any, values: Any, exceptions: Any) -> int:
        depth = bits.shape[1]
        for n in prange(len(bits)):
            at, most = first_exception[n], greatest[n]
            for block in range(values.shape[1] // BLOCK_BYTES):
                for lane in range(LANES):
                    rest = 0
                    for half in range(2):
                        k = block * STEP + half * LANES + lane
                        number = bits[n, k] if k < depth else np.uint16(0)
                        code, mantissa, lost = _split(number, most)
                        sign = (np.int64(number) >> 8) & 128
                        if half == 0:
                            values[n, block * BLOCK_BYTES + lane] = (code & 1) << 7 | mantissa
                            rest = sign | code >> 1
                        else:
                            values[n, block * BLOCK_BYTES + LANES + lane] = sign | mantissa
                            values[n, block * BLOCK_BYTES + 2 * LANES + lane] = rest | code << 3
                        if lost:
                            unit = np.float32(2.0) ** np.float32(
                                max(np.int64(number >> 7 & 255), np.int64(1)) - 134
                            )
                            exceptions[at].row, exceptions[at].column = n, k
                            exceptions[at].delta = np.float32(-lost if sign else lost) * unit
                            at += 1
        return fingerprint

    return encode


_count = kernel(_build_count)
_encode = kernel(_build_encode)


def compress(
    bits: npt.NDArray[np.uint16], allocate: Callable[[int], npt.NDArray[np.uint8]]
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32], npt.NDArray[np.void]] | None:
    """Values `[N, padded(K) * 3 / 2]`, scales `[N]` and exceptions of a matrix `[N, K]`.

    Args:
        bits: bfloat16 numbers.
        allocate: gives that many bytes.

    Returns:
        None if the matrix holds infinity, NaN or numbers near the end of the range, or too many exceptions.
    """
    num_rows, depth = bits.shape
    greatest, counts = np.empty(num_rows, np.int64), np.empty(num_rows, np.int64)
    _count(bits, greatest, counts)
    total = int(counts.sum())
    if greatest.max(initial=0) > _GREATEST_EXPONENT or total > _MOST_EXCEPTIONS * bits.size:
        return None
    num_starts = num_rows // ROWS_PER_START + 1
    exceptions = np.zeros(num_starts + total + 1, EXCEPTION)
    first = num_starts + np.concatenate([[0], counts.cumsum()])
    exceptions["column"][:num_starts] = first[::ROWS_PER_START]
    exceptions["row"][-1] = _NO_ROW
    width = -(-depth // STEP) * BLOCK_BYTES
    values = allocate(num_rows * width + SLACK)[: num_rows * width].reshape(num_rows, width)
    _encode(bits, greatest, first, values, exceptions)
    scales = ((greatest - _CODES + 127 - 64) << 23).astype(np.uint32).view(np.float32)
    return values, scales, exceptions if total else NO_EXCEPTIONS


def decompress(values: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Decode `[..., padded(K) * 3 / 2]` to `[..., padded(K)]`, without scales and exceptions."""
    num_blocks = values.shape[-1] // BLOCK_BYTES
    lines = values.reshape(*values.shape[:-1], num_blocks, 3, LANES).astype(np.uint32)
    first, second, shared = lines[..., 0, :], lines[..., 1, :], lines[..., 2, :]
    low = first | (shared & 0x87) << 8
    high = (second & 0x80) << 8 | (shared & 0x78) << 4 | second & 0x7F
    numbers = np.stack([low, high], axis=-2) << 16
    return numbers.view(np.float32).reshape(*values.shape[:-1], num_blocks * STEP) * np.float32(FACTOR)


def decode_block(builder: ir.IRBuilder, address: Any) -> list[Any]:
    """Load a block: the low numbers and the high ones, not yet multiplied by `FACTOR`."""
    kind = ir.VectorType(ir.IntType(8), 64)
    block = builder.load(builder.bitcast(address, kind.as_pointer()), align=1)

    def placed(lower: int, upper: int) -> Any:
        """Bytes of these two lines as the upper half of a float32 number."""
        order = [line * LANES + i for i in range(LANES) for line in (lower, lower, lower, upper)]
        return builder.bitcast(shuffled(builder, block, block, order), INTS)

    low, high = placed(0, 2), placed(1, 1)
    code = builder.and_(builder.lshr(low, lanes(4, INTS)), lanes(0x07800000, INTS))
    low = builder.and_(low, lanes(0x87FF0000, INTS))
    high = builder.or_(builder.and_(high, lanes(0x807F0000, INTS)), code)
    return [builder.bitcast(low, FLOATS), builder.bitcast(high, FLOATS)]

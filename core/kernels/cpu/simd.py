"""Building blocks of the kernels: sixteen float32 lanes, the reduction tree, and how kernels are compiled and cached.

Arithmetic on lanes is spelled out for LLVM, which may neither reorder nor contract it: a kernel gives the same bits at
every call site and on every machine. One without 512-bit registers splits the lanes over smaller ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16
STEP = 2 * LANES
"""Entries that a product takes at a time: rows are padded to whole steps."""

INDEX = ir.IntType(64)
BYTES = ir.IntType(8).as_pointer()
FLOAT = ir.FloatType()
FLOATS = ir.VectorType(FLOAT, LANES)
INTS = ir.VectorType(ir.IntType(32), LANES)
_SHORTS = ir.VectorType(ir.IntType(16), LANES)
_SIGNED_BYTES = ir.VectorType(ir.IntType(8), LANES)

inlined = njit(error_model="numpy")
"""Decorates what a kernel is made of: compiled with its caller, without checks for division by zero."""
merged = njit(error_model="numpy", forceinline=True)
"""The same for short functions in the innermost loops: no call is left in machine code, where one that passes arrays
takes as long as some hundred multiply-adds."""
spliced = njit(error_model="numpy", inline="always")
"""The same for long functions with one or two callers: each level of calls that numba compiles and links by itself
costs as much time again, a copy in the caller does not."""


def _fingerprint() -> int:
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return int.from_bytes(digest.digest()[:4])


_FINGERPRINT = _fingerprint()


def kernel(build: Callable[[int], Callable[..., Any]], *, parallel: bool = True) -> Any:
    """Compile the function that `build(fingerprint)` returns; cached on disk between processes.

    numba's cache notices changes of the file that holds the function, but the machine code contains that of the files
    it imports. So the function must return `fingerprint`, a digest of this folder: what it captures is part of the key.
    """
    return njit(cache=True, parallel=parallel, error_model="numpy")(build(_FINGERPRINT))


def lanes(value: float, kind: ir.VectorType = FLOATS) -> ir.Constant:
    """A constant in every lane."""
    return ir.Constant(kind, [value] * LANES)


def fma(builder: ir.IRBuilder, a: Any, b: Any, c: Any) -> Any:
    """`a * b + c`, rounded once."""
    kind = ir.FunctionType(FLOATS, [FLOATS] * 3)
    return builder.call(
        cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{LANES}f32"), (a, b, c)
    )


def load_lanes(builder: ir.IRBuilder, address: Any, offset: Any) -> Any:
    """Load `LANES` entries from `offset` on as float32, exactly.

    By the type of `address`: float32, also as 32-bit integers; 16-bit integers, which are bfloat16 numbers; 8-bit
    integers.
    """
    element = address.type.pointee
    kind = {FLOAT: FLOATS, ir.IntType(32): FLOATS, ir.IntType(16): _SHORTS, ir.IntType(8): _SIGNED_BYTES}[
        element
    ]
    pointer = builder.bitcast(builder.gep(address, [offset]), kind.as_pointer())
    value = builder.load(pointer, align=1 if kind is _SIGNED_BYTES else 2 if kind is _SHORTS else 4)
    if kind is _SHORTS:  # a bfloat16 number is the upper half of a float32 number
        return builder.bitcast(builder.shl(builder.zext(value, INTS), lanes(16, INTS)), FLOATS)
    return builder.sitofp(value, FLOATS) if kind is _SIGNED_BYTES else value


def store_lanes(builder: ir.IRBuilder, value: Any, address: Any) -> None:
    """Store a vector of any length at an address of float32."""
    builder.store(value, builder.bitcast(address, value.type.as_pointer()), align=4)


def store_upper_halves(builder: ir.IRBuilder, value: Any, address: Any) -> None:
    """Store the upper halves of float32 lanes, as bfloat16 numbers, at an address of 16-bit integers."""
    halves = builder.trunc(builder.lshr(builder.bitcast(value, INTS), lanes(16, INTS)), _SHORTS)
    builder.store(halves, builder.bitcast(address, _SHORTS.as_pointer()), align=2)


def shuffled(builder: ir.IRBuilder, a: Any, b: Any, order: list[int]) -> Any:
    """Entries of `a` followed by `b`, in this order."""
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(ir.IntType(32), len(order)), order))


def add_up(builder: ir.IRBuilder, vectors: list[Any]) -> Any:
    """Add up the lanes of each vector. `len(vectors)` is a power of two up to `LANES`; sum `i` becomes lane `i`.

    The tree is the same for any number of vectors: lane `j` meets lane `j + width / 2`, `width` halving from `LANES`.
    """
    width, groups = LANES, 1  # lanes left per sum, sums per vector
    while width > 1:
        half = width // 2
        lower = [group * width + lane for group in range(groups) for lane in range(half)]
        if len(vectors) > 1:
            lower += [LANES + lane for lane in lower]
            pairs = list(zip(vectors[::2], vectors[1::2], strict=True))
            groups *= 2
        else:
            pairs = [(vectors[0], vectors[0])]
        upper = [lane + half for lane in lower]
        vectors = [
            builder.fadd(shuffled(builder, a, b, lower), shuffled(builder, a, b, upper)) for a, b in pairs
        ]
        width = half
    return vectors[0]


def data_of(context: Any, builder: ir.IRBuilder, kind: types.Array, array: Any) -> Any:
    """Address of the first entry of a numba array."""
    return context.make_array(kind)(context, builder, array).data


def columns_of(context: Any, builder: ir.IRBuilder, kind: types.Array, array: Any) -> Any:
    """Length of a row of a two-dimensional numba array."""
    return cgutils.unpack_tuple(builder, context.make_array(kind)(context, builder, array).shape, 2)[1]


def row_stride_of(context: Any, builder: ir.IRBuilder, kind: types.Array, array: Any) -> Any:
    """Entries from one row of a two-dimensional numba array to the next."""
    num_bytes = cgutils.unpack_tuple(builder, context.make_array(kind)(context, builder, array).strides, 2)[0]
    return builder.sdiv(num_bytes, INDEX(kind.dtype.bitwidth // 8))


# exp(r) = 1 + r + r^2 P(r) for |r| <= ln(2)/2, relative error 3e-9 (fitted here, weighted least squares).
_EXP = (0.49999993, 0.1666652, 0.04166839, 0.00836878, 0.00138145)


def exp(builder: ir.IRBuilder, x: Any) -> Any:
    """`e ** x` to about one unit in the last place for `x <= 88`; 0 below -87."""
    # x = n ln(2) + r. Adding 1.5 * 2^23 rounds to an integer and leaves n in the low bits; no conversion that would be
    # undefined for NaN or infinity.
    shifted = fma(builder, x, lanes(1.4426950408889634), lanes(12582912.0))
    n = builder.fsub(shifted, lanes(12582912.0))
    r = fma(builder, n, lanes(-0.693359375), x)
    r = fma(builder, n, lanes(2.12194440e-4), r)
    value = lanes(_EXP[-1])
    for coefficient in _EXP[-2::-1]:
        value = fma(builder, value, r, lanes(coefficient))
    value = builder.fadd(fma(builder, builder.fmul(r, r), value, r), lanes(1.0))
    exponent = builder.shl(builder.bitcast(shifted, INTS), lanes(23, INTS))
    value = builder.bitcast(builder.add(builder.bitcast(value, INTS), exponent), FLOATS)
    return builder.select(builder.fcmp_ordered("<", x, lanes(-87.0)), lanes(0.0), value)


@intrinsic
def gate_lanes(typingctx: Any, gate: Any, up: Any, row: Any, column: Any) -> Any:
    """`gate[row, column + i] = silu(gate) * up` for `LANES` entries; `silu(g) = g / (1 + e^-g)`."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        width = columns_of(context, builder, signature.args[0], args[0])
        offset = builder.add(builder.mul(args[2], width), args[3])
        gates, ups = (data_of(context, builder, signature.args[i], args[i]) for i in (0, 1))
        g = load_lanes(builder, gates, offset)
        below = builder.fadd(lanes(1.0), exp(builder, builder.fneg(g)))
        silu = builder.fdiv(g, below)
        # Below -87 the exponential leaves the range and is garbage; silu is 0 there to the last bit that matters.
        silu = builder.select(builder.fcmp_ordered("<", g, lanes(-87.0)), lanes(0.0), silu)
        value = builder.fmul(silu, load_lanes(builder, ups, offset))
        store_lanes(builder, value, builder.gep(gates, [offset]))
        return context.get_dummy_value()

    return types.void(gate, up, types.intp, types.intp), codegen

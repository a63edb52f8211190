"""Sixteen float32 lanes as one numba value: a kernel's arithmetic is spelled out and stays as spelled.

The compiler may not reorder or contract these operations, whatever surrounds them: a kernel written with them gives
the same bits at every call site and on every machine; one without 512-bit registers splits lanes over smaller ones.
Memory is addressed by plain integers (bytes, no alignment asked), so that one compiled kernel serves every cache type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import njit
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.core.extending import intrinsic, register_model

LANES = 16

compiled = njit(error_model="numpy")
"""Decorates the functions of a kernel: compiled with their caller, and division does not look for zeros."""

ADDRESS = ir.IntType(64)
FLOAT = ir.FloatType()
FLOATS = ir.VectorType(FLOAT, LANES)
_INTS = ir.VectorType(ir.IntType(32), LANES)
_SHORTS = ir.VectorType(ir.IntType(16), LANES)
_HALVES = ir.VectorType(ir.HalfType(), LANES)

# exp(r) = 1 + r + r^2 P(r) for |r| <= ln(2)/2, relative error 3e-9 (fitted here, weighted least squares).
_EXP = (0.49999993, 0.1666652, 0.04166839, 0.00836878, 0.00138145)
# tanh(x) = x + x^3 P(x^2) for |x| <= 0.625, relative error 5e-9.
_TANH = (-0.33333276, 0.13331274, -0.05372513, 0.02058982, -0.00564831)


class Lanes(types.Type):
    """Numba type of sixteen float32 lanes."""

    def __init__(self) -> None:
        super().__init__(name="float32x16")


lanes = Lanes()


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, numba_type: Lanes) -> None:
        super().__init__(manager, numba_type, FLOATS)


# -------------------------------------------------------------------------------------------------
# Emitting: functions from values of the compiler's intermediate language to such values
# -------------------------------------------------------------------------------------------------


def constant(value: float, kind: ir.VectorType = FLOATS) -> ir.Constant:
    return ir.Constant(kind, [value] * LANES)


def emit_splat(builder: ir.IRBuilder, scalar: Any) -> Any:
    one = builder.insert_element(ir.Constant(FLOATS, ir.Undefined), scalar, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(one, ir.Constant(FLOATS, ir.Undefined), ir.Constant(_INTS, [0] * LANES))


def load_at(builder: ir.IRBuilder, address: Any, kind: ir.Type) -> Any:
    return builder.load(
        builder.inttoptr(address, kind.as_pointer()), align=2 if kind in (_SHORTS, _HALVES) else 4
    )


def store_at(builder: ir.IRBuilder, address: Any, value: Any) -> None:
    align = 2 if value.type in (_SHORTS, _HALVES) else 4
    builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=align)


def emit_fma(builder: ir.IRBuilder, a: Any, b: Any, c: Any) -> Any:
    kind = ir.FunctionType(FLOATS, [FLOATS] * 3)
    return builder.call(
        cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{LANES}f32"), (a, b, c)
    )


def shuffle(builder: ir.IRBuilder, a: Any, b: Any, order: list[int]) -> Any:
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(ir.IntType(32), len(order)), order))


def _fold(builder: ir.IRBuilder, value: Any, combine: Callable[[ir.IRBuilder, Any, Any], Any]) -> Any:
    # The tree is part of the result's bits: lane i meets lane i + 8, then i + 4, i + 2, i + 1.
    half = LANES // 2
    while half:
        low = shuffle(builder, value, value, list(range(half)))
        high = shuffle(builder, value, value, list(range(half, 2 * half)))
        value = combine(builder, low, high)
        half //= 2
    return builder.extract_element(value, ir.Constant(ir.IntType(32), 0))


def _larger(builder: ir.IRBuilder, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


def _polynomial(builder: ir.IRBuilder, x: Any, coefficients: tuple[float, ...]) -> Any:
    value = constant(coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        value = emit_fma(builder, value, x, constant(coefficient))
    return value


def _exp(builder: ir.IRBuilder, x: Any) -> Any:
    # x = n ln(2) + r. Adding 1.5 * 2^23 rounds to an integer and leaves n in the low bits; no conversion that would be
    # undefined for NaN or infinity.
    shifted = emit_fma(builder, x, constant(1.4426950408889634), constant(12582912.0))
    n = builder.fsub(shifted, constant(12582912.0))
    r = emit_fma(builder, n, constant(-0.693359375), x)
    r = emit_fma(builder, n, constant(2.12194440e-4), r)
    value = emit_fma(builder, builder.fmul(r, r), _polynomial(builder, r, _EXP), r)
    value = builder.fadd(value, constant(1.0))
    exponent = builder.shl(builder.bitcast(shifted, _INTS), constant(23, _INTS))
    value = builder.bitcast(builder.add(builder.bitcast(value, _INTS), exponent), FLOATS)
    return builder.select(builder.fcmp_ordered("<", x, constant(-87.0)), constant(0.0), value)


def _tanh(builder: ir.IRBuilder, x: Any) -> Any:
    square = builder.fmul(x, x)
    near = emit_fma(builder, builder.fmul(square, x), _polynomial(builder, square, _TANH), x)
    size = builder.select(builder.fcmp_ordered("<", x, constant(0.0)), builder.fneg(x), x)
    capped = builder.select(builder.fcmp_ordered(">", size, constant(10.0)), constant(10.0), size)
    power = _exp(builder, builder.fadd(capped, capped))
    far = builder.fsub(constant(1.0), builder.fdiv(constant(2.0), builder.fadd(power, constant(1.0))))
    far = builder.select(builder.fcmp_ordered("<", x, constant(0.0)), builder.fneg(far), far)
    return builder.select(builder.fcmp_ordered("<", size, constant(0.625)), near, far)


def _load_bfloat16(builder: ir.IRBuilder, address: Any) -> Any:
    wide = builder.zext(load_at(builder, address, _SHORTS), _INTS)
    return builder.bitcast(builder.shl(wide, constant(16, _INTS)), FLOATS)


def _store_bfloat16(builder: ir.IRBuilder, address: Any, value: Any) -> None:
    # Round to nearest, ties to even. A NaN keeps its upper bits with the quiet bit set: else it could turn infinite.
    bits = builder.bitcast(value, _INTS)
    odd = builder.and_(builder.lshr(bits, constant(16, _INTS)), constant(1, _INTS))
    rounded = builder.add(bits, builder.add(odd, constant(0x7FFF, _INTS)))
    quiet = builder.or_(bits, constant(0x400000, _INTS))
    bits = builder.select(builder.fcmp_unordered("uno", value, value), quiet, rounded)
    store_at(builder, address, builder.trunc(builder.lshr(bits, constant(16, _INTS)), _SHORTS))


def _keep(builder: ir.IRBuilder, value: Any, first: Any, last: Any) -> Any:
    def spread(number: Any) -> Any:
        return builder.bitcast(
            emit_splat(builder, builder.bitcast(builder.trunc(number, ir.IntType(32)), FLOAT)), _INTS
        )

    lane = ir.Constant(_INTS, list(range(LANES)))
    inside = builder.and_(
        builder.icmp_signed(">=", lane, spread(first)), builder.icmp_signed("<", lane, spread(last))
    )
    return builder.select(inside, value, constant(float("-inf")))


def _transpose(builder: ir.IRBuilder, rows: list[Any]) -> list[Any]:
    # Swap the off-diagonal halves of ever larger squares.
    for size in (1, 2, 4, 8):
        upper = [lane if not lane & size else LANES + lane - size for lane in range(LANES)]
        lower = [lane + size if not lane & size else LANES + lane for lane in range(LANES)]
        swapped = list(rows)
        for row in range(LANES):
            if not row & size:
                swapped[row] = shuffle(builder, rows[row], rows[row + size], upper)
                swapped[row + size] = shuffle(builder, rows[row], rows[row + size], lower)
        rows = swapped
    return rows


def _load_float32(builder: ir.IRBuilder, address: Any) -> Any:
    return load_at(builder, address, FLOATS)


def _load_float16(builder: ir.IRBuilder, address: Any) -> Any:
    return builder.fpext(load_at(builder, address, _HALVES), FLOATS)


def emit_prefetch(builder: ir.IRBuilder, address: Any) -> None:
    flag = ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [ir.IntType(8).as_pointer(), flag, flag, flag])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    pointer = builder.inttoptr(address, ir.IntType(8).as_pointer())
    # For reading, data, to be kept in all caches.
    builder.call(function, (pointer, flag(0), flag(3), flag(1)))


def _load_transposed(load: Callable[[ir.IRBuilder, Any], Any]) -> Callable[..., None]:
    def emit(builder: ir.IRBuilder, addresses: Any, offset: Any, target: Any) -> None:
        rows = []
        for row in range(LANES):
            address = builder.add(addresses, ir.Constant(ADDRESS, 8 * row))
            rows.append(load(builder, builder.add(load_at(builder, address, ADDRESS), offset)))
        for column, value in enumerate(_transpose(builder, rows)):
            store_at(builder, builder.add(target, ir.Constant(ADDRESS, 4 * LANES * column)), value)

    return emit


# -------------------------------------------------------------------------------------------------
# Operations for kernels
# -------------------------------------------------------------------------------------------------


def _operation(result: types.Type, arguments: tuple[types.Type, ...], emit: Callable[..., Any]) -> Any:
    """Make `emit` a numba function of these argument types (numbers are cast to them)."""

    def lower(context: Any, builder: ir.IRBuilder, _signature: Any, values: Any) -> Any:
        value = emit(builder, *values)
        return context.get_dummy_value() if result is types.void else value

    # One parameter list per arity, because numba reads the arity off the function.
    def one(context, a):  # type: ignore[no-untyped-def]
        return result(*arguments), lower

    def two(context, a, b):  # type: ignore[no-untyped-def]
        return result(*arguments), lower

    def three(context, a, b, c):  # type: ignore[no-untyped-def]
        return result(*arguments), lower

    return intrinsic((one, two, three)[len(arguments) - 1])


splat = _operation(lanes, (types.float32,), emit_splat)
"""`splat(number)`: the number in every lane."""
load = _operation(lanes, (types.int64,), _load_float32)
"""`load(address)`: sixteen float32."""
load_bfloat16 = _operation(lanes, (types.int64,), _load_bfloat16)
load_float16 = _operation(lanes, (types.int64,), _load_float16)
load_splat = _operation(lanes, (types.int64,), lambda b, address: emit_splat(b, load_at(b, address, FLOAT)))
"""`load_splat(address)`: one float32, in every lane."""
load_one = _operation(types.float32, (types.int64,), lambda b, address: load_at(b, address, FLOAT))
load_address = _operation(types.int64, (types.int64,), lambda b, address: load_at(b, address, ADDRESS))

prefetch = _operation(types.void, (types.int64,), emit_prefetch)
"""`prefetch(address)`: ask for a cache line that will be needed soon. Never faults."""

store = _operation(types.void, (types.int64, lanes), store_at)
"""`store(address, value)`: sixteen float32."""
store_bfloat16 = _operation(types.void, (types.int64, lanes), _store_bfloat16)
store_float16 = _operation(
    types.void, (types.int64, lanes), lambda b, address, x: store_at(b, address, b.fptrunc(x, _HALVES))
)
store_one = _operation(types.void, (types.int64, types.float32), store_at)
store_address = _operation(types.void, (types.int64, types.int64), store_at)

load_transposed = _operation(types.void, (types.int64,) * 3, _load_transposed(_load_float32))
"""`load_transposed(addresses, offset, target)`: read sixteen numbers at each of the sixteen addresses stored at
`addresses`, plus `offset`; write the first of each row to `target`, then the second of each, and so on."""
load_transposed_bfloat16 = _operation(types.void, (types.int64,) * 3, _load_transposed(_load_bfloat16))
load_transposed_float16 = _operation(types.void, (types.int64,) * 3, _load_transposed(_load_float16))

add = _operation(lanes, (lanes, lanes), lambda b, x, y: b.fadd(x, y))
sub = _operation(lanes, (lanes, lanes), lambda b, x, y: b.fsub(x, y))
mul = _operation(lanes, (lanes, lanes), lambda b, x, y: b.fmul(x, y))
div = _operation(lanes, (lanes, lanes), lambda b, x, y: b.fdiv(x, y))
fma = _operation(lanes, (lanes, lanes, lanes), emit_fma)
"""`fma(x, y, z)`: `x * y + z`, rounded once."""
larger = _operation(lanes, (lanes, lanes), _larger)
"""`larger(x, y)`: the larger of each pair; `y` where either is NaN."""
exp = _operation(lanes, (lanes,), _exp)
"""`exp(x)` for x <= 88, within 2 units in the last place; 0 below -87."""
tanh = _operation(lanes, (lanes,), _tanh)
"""`tanh(x)`, within 2 units in the last place."""
keep = _operation(lanes, (lanes, types.int64, types.int64), _keep)
"""`keep(x, first, last)`: lanes `first <= i < last`; minus infinity in the others."""
sum_lanes = _operation(
    types.float32, (lanes,), lambda b, x: _fold(b, x, lambda b, low, high: b.fadd(low, high))
)
max_lanes = _operation(types.float32, (lanes,), lambda b, x: _fold(b, x, _larger))
fetch_and_add = _operation(
    types.int64,
    (types.int64, types.int64),
    lambda b, address, n: b.atomic_rmw("add", b.inttoptr(address, ADDRESS.as_pointer()), n, "acq_rel"),
)
"""`fetch_and_add(address, n)`: add to an int64 that other threads also add to; returns what it was before."""
load_acquire = _operation(
    types.int64,
    (types.int64,),
    lambda b, address: b.load_atomic(b.inttoptr(address, ADDRESS.as_pointer()), "acquire", 8),
)
"""`load_acquire(address)`: an int64 that other threads add to."""

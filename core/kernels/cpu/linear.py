"""`x @ weight.T + bias` whose rows do not know each other.

Every output element is one chain of `LANES`-wide fused multiply-adds over `k = 0, LANES, 2 * LANES, ...` and one fixed
tree over the lanes. How many rows and columns a tile holds, which thread computes it and what stands beside it only
decide *when* an element is computed, never in which order its terms are added. So the bits of a row do not depend on
the number of rows, on its place among them, or on the number of threads.

The weight is streamed from memory once for all rows (once per block of `_ROWS_BYTES` of activations): on CPUs a
product with few rows is limited by that stream, so 8 rows cost little more than 1.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import get_num_threads, njit, prange, types
from numba.core import cgutils
from numba.extending import intrinsic

Float32Array = npt.NDArray[np.float32]

LANES = 16
_F32 = ir.FloatType()
_VECTOR = ir.VectorType(_F32, LANES)
_INDEX = ir.IntType(64)
_BYTES = ir.IntType(8).as_pointer()

# Accumulators of a tile live in registers: 32 of 16 lanes with AVX-512, else 16 of 8 lanes (or less).
_WIDE = bool(llvm.get_host_cpu_features().get("avx512f", False))
_TILE_ROWS = 4 if _WIDE else 2
_TILE_COLUMNS = 4 if _WIDE else 2
_ROWS_BYTES = 512 * 1024  # activations of a block of rows: half of a usual second-level cache
_PARALLEL_FROM = 256 * 1024  # multiply-adds that are worth waking the other threads for


def _reduce(builder: ir.IRBuilder, vectors: list[Any]) -> Any:
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
        masks = [
            ir.Constant(ir.VectorType(ir.IntType(32), len(lower)), [lane + shift for lane in lower])
            for shift in (0, half)
        ]
        vectors = [
            builder.fadd(builder.shuffle_vector(a, b, masks[0]), builder.shuffle_vector(a, b, masks[1]))
            for a, b in pairs
        ]
        width = half
    return vectors[0]


def _make_tile(rows: int, columns: int, *, prefetch: bool) -> Any:
    """Make `tile(x, weight, x_tail, weight_tail, out, m, n)`: `out[m : m + rows, n : n + columns]`, bias left out.

    `x_tail [M, LANES]` and `weight_tail [N, LANES]` hold the last `K % LANES` entries of each row, padded with zeros;
    they are not read if that is 0. `columns` is a power of two. `prefetch`: fetch the next tile's weights meanwhile;
    the hardware foresees single rows, and those are short.
    """

    @intrinsic
    def tile(
        typingctx: Any, x: Any, weight: Any, x_tail: Any, weight_tail: Any, out: Any, m: Any, n: Any
    ) -> Any:
        def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
            arrays = [
                context.make_array(ty)(context, builder, arg)
                for ty, arg in zip(signature.args[:5], args[:5], strict=True)
            ]
            row, column = args[5:]
            depth = cgutils.unpack_tuple(builder, arrays[0].shape, 2)[1]
            width = cgutils.unpack_tuple(builder, arrays[4].shape, 2)[1]
            fma = cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(_VECTOR, [_VECTOR] * 3), f"llvm.fma.v{LANES}f32"
            )

            flags = [ir.IntType(32)] * 3
            fetch = builder.module.declare_intrinsic(
                "llvm.prefetch", [_BYTES], ir.FunctionType(ir.VoidType(), [_BYTES, *flags])
            )

            def addresses(array: Any, first: Any, count: int, stride: Any) -> list[Any]:
                rows = [builder.add(first, _INDEX(i)) for i in range(count)]
                return [builder.gep(array.data, [builder.mul(row, stride)]) for row in rows]

            def load(address: Any, offset: Any) -> Any:
                pointer = builder.bitcast(builder.gep(address, [offset]), _VECTOR.as_pointer())
                return builder.load(pointer, align=4)

            def step(x_rows: list[Any], weight_rows: list[Any], offset: Any, sums: list[Any]) -> list[Any]:
                weights = [load(address, offset) for address in weight_rows]
                result = []
                for i, address in enumerate(x_rows):
                    activations = load(address, offset)
                    result += [
                        builder.call(fma, [activations, weights[j], sums[i * columns + j]])
                        for j in range(columns)
                    ]
                return result

            x_rows = addresses(arrays[0], row, rows, depth)
            weight_rows = addresses(arrays[1], column, columns, depth)
            main = builder.and_(depth, _INDEX(-LANES))
            zeros = [ir.Constant(_VECTOR, None)] * (rows * columns)

            before = builder.block
            body = builder.append_basic_block("k")
            after = builder.append_basic_block("k.end")
            builder.cbranch(builder.icmp_signed(">", main, _INDEX(0)), body, after)
            builder.position_at_end(body)
            k = builder.phi(_INDEX)
            sums = [builder.phi(_VECTOR) for _ in zeros]
            for address in weight_rows if prefetch else ():
                ahead = builder.gep(address, [builder.add(k, builder.mul(depth, _INDEX(columns)))])
                ahead = builder.bitcast(ahead, _BYTES)
                # To read, keep near, data. An address past the end of the array is no fault.
                builder.call(fetch, [ahead, ir.IntType(32)(0), ir.IntType(32)(3), ir.IntType(32)(1)])
            new_sums = step(x_rows, weight_rows, k, sums)
            next_k = builder.add(k, _INDEX(LANES))
            for phi, start, new in zip([k, *sums], [_INDEX(0), *zeros], [next_k, *new_sums], strict=True):
                phi.add_incoming(start, before)
                phi.add_incoming(new, body)
            builder.cbranch(builder.icmp_signed("<", next_k, main), body, after)

            builder.position_at_end(after)
            full = [builder.phi(_VECTOR) for _ in zeros]
            for phi, new in zip(full, new_sums, strict=True):
                phi.add_incoming(ir.Constant(_VECTOR, None), before)
                phi.add_incoming(new, body)
            tail = builder.append_basic_block("tail")
            done = builder.append_basic_block("done")
            builder.cbranch(builder.icmp_signed("<", main, depth), tail, done)
            builder.position_at_end(tail)
            lanes = _INDEX(LANES)
            with_tail = step(
                addresses(arrays[2], row, rows, lanes),
                addresses(arrays[3], column, columns, lanes),
                _INDEX(0),
                full,
            )
            builder.branch(done)

            builder.position_at_end(done)
            total = [builder.phi(_VECTOR) for _ in zeros]
            for phi, new, old in zip(total, with_tail, full, strict=True):
                phi.add_incoming(old, after)
                phi.add_incoming(new, tail)
            out_rows = addresses(arrays[4], row, rows, width)
            first = 0
            while first < rows:
                count = 1 << min(rows - first, LANES // columns).bit_length() - 1
                flat = _reduce(builder, total[first * columns : (first + count) * columns])
                for i in range(count):
                    mask = ir.Constant(
                        ir.VectorType(ir.IntType(32), columns), list(range(i * columns, (i + 1) * columns))
                    )
                    values = builder.shuffle_vector(flat, flat, mask)
                    pointer = builder.gep(out_rows[first + i], [column])
                    builder.store(values, builder.bitcast(pointer, values.type.as_pointer()), align=4)
                first += count
            return context.get_dummy_value()

        return types.void(x, weight, x_tail, weight_tail, out, types.intp, types.intp), codegen

    return tile


_first_tile = _make_tile(_TILE_ROWS, _TILE_COLUMNS, prefetch=True)
_tile = _make_tile(_TILE_ROWS, _TILE_COLUMNS, prefetch=False)
_tile_of_2_rows = _make_tile(2, _TILE_COLUMNS, prefetch=True)
_tile_of_1_row = _make_tile(1, _TILE_COLUMNS, prefetch=True)
_tile_of_1_column = _make_tile(1, 1, prefetch=False)


@njit(cache=True)
def _columns(
    x: Float32Array,
    weight: Float32Array,
    x_tail: Float32Array,
    weight_tail: Float32Array,
    bias: Float32Array,
    out: Float32Array,
    first: int,
    last: int,
) -> None:
    """Compute the columns `first <= n < last` of `out` for all rows."""
    num_rows, depth = x.shape
    block = max(1, _ROWS_BYTES // (4 * max(depth, 1) * _TILE_ROWS)) * _TILE_ROWS
    for start in range(0, num_rows, block):
        end = min(num_rows, start + block)
        n = first
        while n + _TILE_COLUMNS <= last:
            m = start
            if m + _TILE_ROWS <= end:
                _first_tile(x, weight, x_tail, weight_tail, out, m, n)
                m += _TILE_ROWS
            while m + _TILE_ROWS <= end:
                _tile(x, weight, x_tail, weight_tail, out, m, n)
                m += _TILE_ROWS
            while m + 2 <= end:
                _tile_of_2_rows(x, weight, x_tail, weight_tail, out, m, n)
                m += 2
            if m < end:
                _tile_of_1_row(x, weight, x_tail, weight_tail, out, m, n)
            n += _TILE_COLUMNS
        while n < last:
            for m in range(start, end):
                _tile_of_1_column(x, weight, x_tail, weight_tail, out, m, n)
            n += 1
    if len(bias):
        for m in range(num_rows):
            for n in range(first, last):
                out[m, n] += bias[n]


@njit(cache=True, parallel=True)
def _columns_parallel(
    x: Float32Array,
    weight: Float32Array,
    x_tail: Float32Array,
    weight_tail: Float32Array,
    bias: Float32Array,
    out: Float32Array,
    num_parts: int,
) -> None:
    num_columns = len(weight)
    per_part = -(-num_columns // (num_parts * _TILE_COLUMNS)) * _TILE_COLUMNS
    for part in prange(num_parts):
        first = min(num_columns, part * per_part)
        _columns(x, weight, x_tail, weight_tail, bias, out, first, min(num_columns, first + per_part))


_NOTHING = np.zeros(0, dtype=np.float32)
_NO_TAIL = np.zeros((0, LANES), dtype=np.float32)


def _tail(array: Float32Array) -> Float32Array:
    """The last `K % LANES` entries of each row, padded with zeros to `LANES`; nothing if there are none."""
    num_left = array.shape[1] % LANES
    if num_left == 0:
        return _NO_TAIL
    tail = np.zeros((len(array), LANES), dtype=np.float32)
    tail[:, :num_left] = array[:, -num_left:]
    return tail


def linear(x: Float32Array, weight: Float32Array, bias: Float32Array | None = None) -> Float32Array:
    """Return `x @ weight.T + bias`, `[M, N]`; the bits of a row depend on nothing but that row, `weight` and `bias`.

    Args:
        x: `[M, K]` float32; copied if its rows are not contiguous.
        weight: `[N, K]` float32, the layout of `torch.nn.Linear`; copied if not contiguous.
        bias: `[N]` float32, added to the finished sums.

    Raises:
        TypeError: an array is not float32.
        ValueError: the shapes do not fit.
    """
    for name, array in (("x", x), ("weight", weight), ("bias", bias)):
        if array is not None and array.dtype != np.float32:
            raise TypeError(f"linear: {name} is {array.dtype}, expected float32")
    if x.ndim != 2 or weight.ndim != 2 or x.shape[1] != weight.shape[1]:
        raise ValueError(f"linear: x {x.shape} and weight {weight.shape} are not [M, K] and [N, K]")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"linear: bias {bias.shape} does not fit weight {weight.shape}")
    x, weight = np.ascontiguousarray(x), np.ascontiguousarray(weight)
    bias = _NOTHING if bias is None else np.ascontiguousarray(bias)
    out = np.empty((len(x), len(weight)), dtype=np.float32)
    num_parts = get_num_threads()
    if num_parts == 1 or len(x) * weight.size < _PARALLEL_FROM:
        _columns(x, weight, _tail(x), _tail(weight), bias, out, 0, len(weight))
    else:
        _columns_parallel(x, weight, _tail(x), _tail(weight), bias, out, num_parts)
    return out

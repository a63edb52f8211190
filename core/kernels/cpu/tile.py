"""A tile of `x @ weight.T`: the code in which nearly all time of a forward is spent.

Every output element is one chain of `LANES`-wide fused multiply-adds over `k = 0, LANES, 2 * LANES, ...` and one fixed
tree over the lanes. How many rows and columns a tile holds, which thread computes it and what stands beside it only
decide *when* an element is computed, never in which order its terms are added. So the bits of a row do not depend on
the number of rows, on its place among them, or on the number of threads.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .packed_bfloat16 import BLOCK_BYTES, FACTOR, decode_block
from .simd import (
    BYTES,
    FLOATS,
    INDEX,
    LANES,
    STEP,
    add_up,
    columns_of,
    data_of,
    fma,
    inlined,
    lanes,
    load_lanes,
    row_stride_of,
    shuffled,
    store_lanes,
    store_upper_halves,
)

# Accumulators of a tile live in registers: 32 of 16 lanes with AVX-512, else 16 of 8 lanes (or less).
_WIDE = bool(llvm.get_host_cpu_features().get("avx512f", False))
TILE_ROWS = 4 if _WIDE else 2
TILE_COLUMNS = 4 if _WIDE else 2
_CACHE_LINE = 64
_PREFETCH_BYTES = (
    8192  # ahead of the weights that are used; of 4, 8, 12, 16 and 24 thousand the fastest, by a little
)


def _make_tile(rows: int, columns: int, *, prefetch: bool) -> Any:
    """Make `tile(x, weight, scales, out, m, n)`.

    It computes `out[m : m + rows, n : n + columns]` from `x [M, K]` and `weight [N, K]`, `K` a multiple of `STEP`, of
    the formats of `product.columns`. `columns` is a power of two. Weights of 8-bit integers are multiplied by `scales
    [N]` after summation; others have no scales. For packed bfloat16, `x` is multiplied by `FACTOR`, or has been if it
    is uint32, which are the bits of float32 numbers. `prefetch`: fetch the weights of later tiles meanwhile; the
    hardware foresees single rows, and those are short.
    """

    @intrinsic
    def tile(typingctx: Any, x: Any, weight: Any, scales: Any, out: Any, m: Any, n: Any) -> Any:
        def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
            x_data, weight_data, scale_data, out_data = (
                data_of(context, builder, signature.args[i], args[i]) for i in range(4)
            )
            depth = columns_of(context, builder, signature.args[0], args[0])
            width = row_stride_of(context, builder, signature.args[3], args[3])
            row, column = args[4:]
            number = signature.args[1].dtype
            is_packed = number == types.uint8
            block = INDEX(BLOCK_BYTES if is_packed else STEP)  # entries of `STEP` numbers

            def addresses(data: Any, first: Any, count: int, stride: Any) -> list[Any]:
                rows = [builder.add(first, INDEX(i)) for i in range(count)]
                return [builder.gep(data, [builder.mul(row, stride)]) for row in rows]

            x_rows = addresses(x_data, row, rows, depth)
            stride = columns_of(context, builder, signature.args[1], args[1])
            weight_rows = addresses(weight_data, column, columns, stride)
            zeros = [ir.Constant(FLOATS, None)] * (rows * columns)

            before = builder.block
            body = builder.append_basic_block("k")
            done = builder.append_basic_block("k.end")
            builder.cbranch(builder.icmp_signed(">", depth, INDEX(0)), body, done)
            builder.position_at_end(body)
            k, at = builder.phi(INDEX), builder.phi(INDEX)
            sums = [builder.phi(FLOATS) for _ in zeros]
            new_sums: list[Any] = list(sums)
            blocks = [
                decode_block(builder, builder.gep(address, [at])) for address in weight_rows if is_packed
            ]
            for part in range(0, STEP, LANES):  # a cache line of a bfloat16 row
                offset = builder.add(k, INDEX(part))
                if prefetch and (part == 0 or number == types.float32):
                    _fetch_ahead(builder, weight_rows, builder.add(at, INDEX(part)))
                if is_packed:
                    weights = [halves[part // LANES] for halves in blocks]
                else:
                    weights = [load_lanes(builder, address, offset) for address in weight_rows]
                for i, address in enumerate(x_rows):
                    activations = load_lanes(builder, address, offset)
                    if is_packed and signature.args[0].dtype == types.float32:
                        activations = builder.fmul(activations, lanes(FACTOR))
                    for j, w in enumerate(weights):
                        new_sums[i * columns + j] = fma(builder, activations, w, new_sums[i * columns + j])
            next_k = builder.add(k, INDEX(STEP))
            nexts = [next_k, builder.add(at, block), *new_sums]
            for phi, start, new in zip([k, at, *sums], [INDEX(0), INDEX(0), *zeros], nexts, strict=True):
                phi.add_incoming(start, before)
                phi.add_incoming(new, body)
            builder.cbranch(builder.icmp_signed("<", next_k, depth), body, done)

            builder.position_at_end(done)
            total = [builder.phi(FLOATS) for _ in zeros]
            for phi, new in zip(total, new_sums, strict=True):
                phi.add_incoming(ir.Constant(FLOATS, None), before)
                phi.add_incoming(new, body)
            out_rows = addresses(out_data, row, rows, width)
            scale = None
            if number in (types.int8, types.uint8, types.int16):
                kind = ir.VectorType(FLOATS.element, columns)
                address = builder.bitcast(builder.gep(scale_data, [column]), kind.as_pointer())
                scale = builder.load(address, align=4)
            first = 0
            while first < rows:
                count = 1 << min(rows - first, LANES // columns).bit_length() - 1
                flat = add_up(builder, total[first * columns : (first + count) * columns])
                for i in range(count):
                    values = shuffled(builder, flat, flat, list(range(i * columns, (i + 1) * columns)))
                    if scale is not None:
                        values = builder.fmul(values, scale)
                    store_lanes(builder, values, builder.gep(out_rows[first + i], [column]))
                first += count
            return context.get_dummy_value()

        return types.void(x, weight, scales, out, types.intp, types.intp), codegen

    return tile


def _fetch(builder: ir.IRBuilder, address: Any, nearness: int) -> None:
    """Ask for a cache line. Nearness 0: for one use, past the larger caches; 2: into the second level."""
    flag = ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [BYTES, flag, flag, flag])
    fetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(fetch, [address, flag(0), flag(nearness), flag(1)])


def _fetch_ahead(builder: ir.IRBuilder, rows: list[Any], k: Any) -> None:
    # For one use: a step streams more weights than the caches hold, and would drive out all else that it needs. An
    # address past the end of the array is no fault.
    for address in rows:
        here = builder.bitcast(builder.gep(address, [k]), BYTES)
        _fetch(builder, builder.gep(here, [INDEX(_PREFETCH_BYTES)]), 0)


@intrinsic
def _decode_block(typingctx: Any, weight: Any, row: Any, block: Any, out: Any, out_row: Any) -> Any:
    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        source, target = (data_of(context, builder, signature.args[i], args[i]) for i in (0, 3))
        stride, width = (columns_of(context, builder, signature.args[i], args[i]) for i in (0, 3))
        offset = builder.add(builder.mul(args[1], stride), builder.mul(args[2], INDEX(BLOCK_BYTES)))
        to = builder.add(builder.mul(args[4], width), builder.mul(args[2], INDEX(STEP)))
        for numbers in decode_block(builder, builder.gep(source, [offset])):
            numbers = builder.fmul(numbers, lanes(FACTOR))
            store_upper_halves(builder, numbers, builder.gep(target, [to]))
            to = builder.add(to, INDEX(LANES))
        return context.get_dummy_value()

    return types.void(weight, types.intp, types.intp, out, types.intp), codegen


@inlined
def decode_rows(weight: Any, first: int, last: int, out: Any) -> None:
    """Decode rows of packed bfloat16 to `out [last - first, K]`: bfloat16 as int16, without the scales."""
    for row in range(first, last):
        for block in range(out.shape[1] // STEP):
            _decode_block(weight, row, block, out, row - first)


@intrinsic
def _fetch_line(typingctx: Any, weight: Any, offset: Any) -> Any:
    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        data = builder.bitcast(data_of(context, builder, signature.args[0], args[0]), BYTES)
        _fetch(builder, builder.gep(data, [args[1]]), 2)
        return context.get_dummy_value()

    return types.void(weight, types.intp), codegen


@inlined
def fetch_rows(weight: Any, first: int, num_bytes: int) -> None:
    """Ask for `num_bytes` from row `first` on, and wait for nothing. Past the end of the array is no fault."""
    begin = first * weight.shape[1] * weight.itemsize
    for offset in range(begin, begin + num_bytes, _CACHE_LINE):
        _fetch_line(weight, offset)


first_tile = _make_tile(TILE_ROWS, TILE_COLUMNS, prefetch=True)
"""The first tile of a group of columns."""
tile = _make_tile(TILE_ROWS, TILE_COLUMNS, prefetch=False)
"""The tiles below it."""
tile_of_2_rows = _make_tile(2, TILE_COLUMNS, prefetch=True)
tile_of_1_row = _make_tile(1, TILE_COLUMNS, prefetch=True)
tile_of_1_column = _make_tile(1, 1, prefetch=False)

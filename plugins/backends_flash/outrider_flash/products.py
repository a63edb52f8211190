"""Products of up to four queries with sixteen keys or values: emitted for each number of queries, loads shared by them.

A score is a sum of sixteen lanes: lane `j` is a chain over the dimensions `j`, `j + 16` and so on. They are added in
the order of the cheapest shuffles: within four, `i` and `i + 2`, then `i` and `i + 1`; of the four sums the first and
third, the second and fourth, then both. A result is a chain over the positions. Both are part of a row's bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from . import simd
from .records import PARTITION
from .simd import compiled

_WIDE = 4  # vectors of a value that are added up together
_LINE = 4 * simd.LANES
_Emit = Callable[..., None]


def _add(builder: ir.IRBuilder, address: Any, offset: int) -> Any:
    return builder.add(address, simd.ADDRESS(offset)) if offset else address


def _loop(
    builder: ir.IRBuilder,
    first: Any,
    last: Any,
    step: int,
    sums: list[Any],
    body: Callable[[Any, list[Any]], list[Any]],
) -> list[Any]:
    """Sums after `body(i, sums)` for `i` from `first` below `last`."""
    before = builder.block
    head, inside, behind = (builder.append_basic_block() for _ in range(3))
    builder.branch(head)
    builder.position_at_end(head)
    i = builder.phi(simd.ADDRESS)
    phis = [builder.phi(one.type) for one in sums]
    builder.cbranch(builder.icmp_signed("<", i, last), inside, behind)
    builder.position_at_end(inside)
    results = body(i, phis)
    following = _add(builder, i, step)
    for phi, start, result in zip((i, *phis), (first, *sums), (following, *results), strict=True):
        phi.add_incoming(start, before)
        phi.add_incoming(result, builder.block)
    builder.branch(head)
    builder.position_at_end(behind)
    return phis


def _pairs(builder: ir.IRBuilder, one: Any, other: Any, low: list[int], high: list[int]) -> Any:
    return builder.fadd(simd.shuffle(builder, one, other, low), simd.shuffle(builder, one, other, high))


def _in_fours(pattern: list[int]) -> list[int]:
    """The same pick from every four lanes of two vectors: 0 to 3 are the first's, 4 to 7 the second's."""
    return [lane % 4 + 4 * four + lane // 4 * simd.LANES for four in range(4) for lane in pattern]


def _whole_fours(pattern: list[int]) -> list[int]:
    """Fours of two vectors: 0 to 3 are the first's, 4 to 7 the second's."""
    return [4 * four + lane for four in pattern for lane in range(4)]


_SPREAD = (_in_fours([0, 4, 1, 5]), _in_fours([2, 6, 3, 7]))
_JOIN = (_in_fours([0, 1, 4, 5]), _in_fours([2, 3, 6, 7]))
_HALVES = (_whole_fours([0, 1, 4, 5]), _whole_fours([2, 3, 6, 7]))
_ALTERNATE = (_whole_fours([0, 2, 4, 6]), _whole_fours([1, 3, 5, 7]))


def _score_rows(num_queries: int) -> _Emit:
    def emit(
        builder: ir.IRBuilder, queries: Any, step: Any, size: Any, rows: Any, ahead: Any, target: Any
    ) -> None:
        sources = [builder.add(queries, builder.mul(step, simd.ADDRESS(q))) for q in range(num_queries)]
        quarters: list[list[Any]] = [[] for _ in range(num_queries)]
        for first in range(0, simd.LANES, 4):
            keys = [
                simd.load_at(builder, _add(builder, rows, 8 * (first + k)), simd.ADDRESS) for k in range(4)
            ]
            later = [
                simd.load_at(builder, _add(builder, ahead, 8 * (first + k)), simd.ADDRESS) for k in range(4)
            ]

            def body(i: Any, sums: list[Any], keys: Any = keys, later: Any = later) -> list[Any]:
                for address in later:
                    simd.emit_prefetch(builder, builder.add(address, i))
                loaded = [simd.load_at(builder, builder.add(key, i), simd.FLOATS) for key in keys]
                result = []
                for q, source in enumerate(sources):
                    query = simd.load_at(builder, builder.add(source, i), simd.FLOATS)
                    result += [
                        simd.emit_fma(builder, query, key, sums[4 * q + k]) for k, key in enumerate(loaded)
                    ]
                return result

            zeros = [simd.constant(0.0)] * (4 * num_queries)
            sums = _loop(builder, simd.ADDRESS(0), builder.mul(size, simd.ADDRESS(4)), _LINE, zeros, body)
            for q in range(num_queries):
                a, b, c, d = sums[4 * q : 4 * q + 4]
                low, high = _pairs(builder, a, b, *_SPREAD), _pairs(builder, c, d, *_SPREAD)
                quarters[q].append(_pairs(builder, low, high, *_JOIN))
        for q, (a, b, c, d) in enumerate(quarters):
            low, high = _pairs(builder, a, b, *_HALVES), _pairs(builder, c, d, *_HALVES)
            scores = _pairs(builder, low, high, *_ALTERNATE)
            simd.store_at(builder, _add(builder, target, 4 * PARTITION * q), scores)

    return emit


def _score_columns(num_queries: int) -> _Emit:
    def emit(builder: ir.IRBuilder, queries: Any, step: Any, size: Any, columns: Any, target: Any) -> None:
        sources = [builder.add(queries, builder.mul(step, simd.ADDRESS(q))) for q in range(num_queries)]
        quarters: list[list[Any]] = []
        for first in range(0, simd.LANES, 4):

            def body(i: Any, sums: list[Any], first: int = first) -> list[Any]:
                result = []
                for lane in range(4):
                    column = builder.add(columns, builder.mul(i, simd.ADDRESS(simd.LANES)))
                    key = simd.load_at(builder, _add(builder, column, _LINE * (first + lane)), simd.FLOATS)
                    for q, source in enumerate(sources):
                        address = _add(builder, builder.add(source, i), 4 * (first + lane))
                        query = simd.emit_splat(builder, simd.load_at(builder, address, simd.FLOAT))
                        result.append(simd.emit_fma(builder, query, key, sums[num_queries * lane + q]))
                return result

            zeros = [simd.constant(0.0)] * (4 * num_queries)
            sums = _loop(builder, simd.ADDRESS(0), builder.mul(size, simd.ADDRESS(4)), _LINE, zeros, body)
            a, b, c, d = (sums[num_queries * lane : num_queries * (lane + 1)] for lane in range(4))
            quarters.append(
                [builder.fadd(builder.fadd(a[q], c[q]), builder.fadd(b[q], d[q])) for q in range(num_queries)]
            )
        a, b, c, d = quarters
        for q in range(num_queries):
            scores = builder.fadd(builder.fadd(a[q], c[q]), builder.fadd(b[q], d[q]))
            simd.store_at(builder, _add(builder, target, 4 * PARTITION * q), scores)

    return emit


def _add_values(num_queries: int, width: int) -> _Emit:
    def emit(
        builder: ir.IRBuilder, states: Any, step: Any, weights: Any, rows: Any, ahead: Any, first: Any, last: Any,
        offset: Any,
    ) -> None:  # fmt: skip
        targets = [
            _add(
                builder,
                builder.add(states, builder.add(offset, builder.mul(step, simd.ADDRESS(q)))),
                _LINE * v,
            )
            for q in range(num_queries)
            for v in range(width)
        ]

        def at(table: Any, lane: Any) -> Any:
            address = builder.add(table, builder.mul(lane, simd.ADDRESS(8)))
            return builder.add(simd.load_at(builder, address, simd.ADDRESS), offset)

        def body(lane: Any, sums: list[Any]) -> list[Any]:
            row, later = at(rows, lane), at(ahead, lane)
            for v in range(width):
                simd.emit_prefetch(builder, _add(builder, later, _LINE * v))
            values = [simd.load_at(builder, _add(builder, row, _LINE * v), simd.FLOATS) for v in range(width)]
            result = []
            for q in range(num_queries):
                address = builder.add(weights, builder.mul(lane, simd.ADDRESS(4)))
                number = simd.load_at(builder, _add(builder, address, 4 * PARTITION * q), simd.FLOAT)
                weight = simd.emit_splat(builder, number)
                result += [
                    simd.emit_fma(builder, weight, value, sums[width * q + v])
                    for v, value in enumerate(values)
                ]
            return result

        sums = [simd.load_at(builder, target, simd.FLOATS) for target in targets]
        for target, total in zip(targets, _loop(builder, first, last, 1, sums, body), strict=True):
            simd.store_at(builder, target, total)

    return emit


def _lowered(emit: _Emit) -> Any:
    def lower(context: Any, builder: ir.IRBuilder, _signature: Any, values: Any) -> Any:
        emit(builder, *values)
        return context.get_dummy_value()

    return lower


def _of_rows(n: int) -> Any:
    def typed(context, queries, step, size, rows, ahead, target):  # type: ignore[no-untyped-def]
        return types.void(*[types.int64] * 6), _lowered(_score_rows(n))

    return intrinsic(typed)


def _of_columns(n: int) -> Any:
    def typed(context, queries, step, size, columns, target):  # type: ignore[no-untyped-def]
        return types.void(*[types.int64] * 5), _lowered(_score_columns(n))

    return intrinsic(typed)


def _of_values(n: int, width: int) -> Any:
    def typed(context, states, step, weights, rows, ahead, first, last, offset):  # type: ignore[no-untyped-def]
        return types.void(*[types.int64] * 8), _lowered(_add_values(n, width))

    return intrinsic(typed)


_rows1, _rows2, _rows3, _rows4 = (_of_rows(n) for n in (1, 2, 3, 4))
_columns1, _columns2, _columns3, _columns4 = (_of_columns(n) for n in (1, 2, 3, 4))
_wide1, _wide2, _wide3, _wide4 = (_of_values(n, _WIDE) for n in (1, 2, 3, 4))
_narrow1, _narrow2, _narrow3, _narrow4 = (_of_values(n, 1) for n in (1, 2, 3, 4))


@compiled
def score_rows(n: int, queries: int, size: int, rows: int, ahead: int, target: int) -> None:
    """Dot products of `n` queries `[n, size]` with the keys at the sixteen addresses `rows`; asks for those at `ahead`.

    Writes the scores of query `q` at `target + 4 * PARTITION * q`.
    """
    step = 4 * size
    if n == 4:
        _rows4(queries, step, size, rows, ahead, target)
    elif n == 3:
        _rows3(queries, step, size, rows, ahead, target)
    elif n == 2:
        _rows2(queries, step, size, rows, ahead, target)
    else:
        _rows1(queries, step, size, rows, ahead, target)


@compiled
def score_columns(n: int, queries: int, size: int, columns: int, target: int) -> None:
    """`score_rows` with sixteen keys that lie as `[size, 16]`: the same bits, quicker for many queries."""
    step = 4 * size
    if n == 4:
        _columns4(queries, step, size, columns, target)
    elif n == 3:
        _columns3(queries, step, size, columns, target)
    elif n == 2:
        _columns2(queries, step, size, columns, target)
    else:
        _columns1(queries, step, size, columns, target)


@compiled
def add_values(
    n: int, states: int, step: int, weights: int, rows: int, ahead: int, first: int, last: int, size: int
) -> None:
    """Add the values at addresses `[first, last)` of `rows` to `n` states, each times its weight, in this order.

    States are `step` bytes apart, weights `PARTITION` floats. Asks for the values at `ahead`.
    """
    i = 0
    while i < 4 * size:
        if i + 4 * simd.LANES * _WIDE <= 4 * size:
            if n == 4:
                _wide4(states, step, weights, rows, ahead, first, last, i)
            elif n == 3:
                _wide3(states, step, weights, rows, ahead, first, last, i)
            elif n == 2:
                _wide2(states, step, weights, rows, ahead, first, last, i)
            else:
                _wide1(states, step, weights, rows, ahead, first, last, i)
            i += 4 * simd.LANES * _WIDE
        else:
            if n == 4:
                _narrow4(states, step, weights, rows, ahead, first, last, i)
            elif n == 3:
                _narrow3(states, step, weights, rows, ahead, first, last, i)
            elif n == 2:
                _narrow2(states, step, weights, rows, ahead, first, last, i)
            else:
                _narrow1(states, step, weights, rows, ahead, first, last, i)
            i += 4 * simd.LANES

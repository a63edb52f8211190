"""One query against sixteen keys, a partition, all partitions: every operation that decides the bits of a row."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import simd
from .entries import copy_out
from .records import PARTITION, padded
from .simd import compiled


@compiled
def score_one(query: int, keys: int, size: int) -> Any:
    """Dot products of one query with sixteen staged keys."""
    even = odd = simd.splat(0.0)
    for i in range(0, size, 2):
        even = simd.fma(simd.load_splat(query + 4 * i), simd.load(keys + 64 * i), even)
        odd = simd.fma(simd.load_splat(query + 4 * i + 4), simd.load(keys + 64 * i + 64), odd)
    return simd.add(even, odd)


@compiled
def score_four(query: int, keys: int, size: int) -> Any:
    """`score_one` for four consecutive queries: the same operations on each, every key loaded once."""
    even0 = even1 = even2 = even3 = simd.splat(0.0)
    odd0 = odd1 = odd2 = odd3 = simd.splat(0.0)
    query1, query2, query3 = query + 4 * size, query + 8 * size, query + 12 * size
    for i in range(0, size, 2):
        key = simd.load(keys + 64 * i)
        even0 = simd.fma(simd.load_splat(query + 4 * i), key, even0)
        even1 = simd.fma(simd.load_splat(query1 + 4 * i), key, even1)
        even2 = simd.fma(simd.load_splat(query2 + 4 * i), key, even2)
        even3 = simd.fma(simd.load_splat(query3 + 4 * i), key, even3)
        key = simd.load(keys + 64 * i + 64)
        odd0 = simd.fma(simd.load_splat(query + 4 * i + 4), key, odd0)
        odd1 = simd.fma(simd.load_splat(query1 + 4 * i + 4), key, odd1)
        odd2 = simd.fma(simd.load_splat(query2 + 4 * i + 4), key, odd2)
        odd3 = simd.fma(simd.load_splat(query3 + 4 * i + 4), key, odd3)
    return simd.add(even0, odd0), simd.add(even1, odd1), simd.add(even2, odd2), simd.add(even3, odd3)


@compiled
def finish_scores(layer: Any, scores: Any, first: int, last: int) -> Any:
    """Scale and cap scores; lanes outside `[first, last)` are positions that the row does not see."""
    scores = simd.mul(scores, simd.splat(layer.scaling))
    if layer.softcap != 0.0:
        cap = simd.splat(layer.softcap)
        scores = simd.mul(cap, simd.tanh(simd.div(scores, cap)))
    return simd.keep(scores, first, last)


@compiled
def clear(state: int, value_lanes: int) -> None:
    """The state of a query that has seen nothing."""
    for i in range(0, value_lanes, simd.LANES):
        simd.store(state + 4 * i, simd.splat(0.0))
    simd.store(state + 4 * value_lanes, simd.splat(-np.inf))
    simd.store(state + 4 * value_lanes + 64, simd.splat(0.0))


@compiled
def softmax(scores: int, first: int, last: int, state: int, value_lanes: int) -> None:
    """Turn a partition's scores `[first, last)` into weights; start the state with their largest and their sum.

    Scores beside them in the same vectors are minus infinity.
    """
    first = first // simd.LANES * simd.LANES
    top = simd.splat(-np.inf)
    for i in range(first, last, simd.LANES):
        top = simd.larger(simd.load(scores + 4 * i), top)
    largest = simd.max_lanes(top)
    # All scores minus infinity: any finite number keeps the differences from being NaN.
    shift = simd.splat(largest if largest > -np.inf else np.float32(0.0))
    total = simd.splat(0.0)
    for i in range(first, last, simd.LANES):
        weight = simd.exp(simd.sub(simd.load(scores + 4 * i), shift))
        simd.store(scores + 4 * i, weight)
        total = simd.add(total, weight)
    clear(state, value_lanes)
    simd.store(state + 4 * value_lanes, simd.splat(largest))
    simd.store(state + 4 * value_lanes + 64, simd.splat(simd.sum_lanes(total)))


@compiled
def accumulate_one(state: int, weights: int, values: int, first: int, last: int, value_lanes: int) -> None:
    """Add the values of lanes `[first, last)`, each times its weight, in this order."""
    i = 0
    while i + 4 * simd.LANES <= value_lanes:
        target = state + 4 * i
        total0, total1 = simd.load(target), simd.load(target + 64)
        total2, total3 = simd.load(target + 128), simd.load(target + 192)
        for lane in range(first, last):
            weight = simd.load_splat(weights + 4 * lane)
            value = values + 4 * (lane * value_lanes + i)
            total0 = simd.fma(weight, simd.load(value), total0)
            total1 = simd.fma(weight, simd.load(value + 64), total1)
            total2 = simd.fma(weight, simd.load(value + 128), total2)
            total3 = simd.fma(weight, simd.load(value + 192), total3)
        simd.store(target, total0)
        simd.store(target + 64, total1)
        simd.store(target + 128, total2)
        simd.store(target + 192, total3)
        i += 4 * simd.LANES
    while i < value_lanes:
        total = simd.load(state + 4 * i)
        for lane in range(first, last):
            value = simd.load(values + 4 * (lane * value_lanes + i))
            total = simd.fma(simd.load_splat(weights + 4 * lane), value, total)
        simd.store(state + 4 * i, total)
        i += simd.LANES


@compiled
def accumulate_four(
    state: int, weights: int, values: int, first: int, last: int, value_lanes: int, state_step: int
) -> None:
    """`accumulate_one` for four consecutive queries: the same operations on each, every value loaded once."""
    weights1, weights2, weights3 = (
        weights + 4 * PARTITION,
        weights + 8 * PARTITION,
        weights + 12 * PARTITION,
    )
    i = 0
    while i < value_lanes:
        target0, target1 = state + 4 * i, state + 4 * i + state_step
        target2, target3 = target0 + 2 * state_step, target1 + 2 * state_step
        total0, total1, total2, total3 = (
            simd.load(target0),
            simd.load(target1),
            simd.load(target2),
            simd.load(target3),
        )
        if i + 2 * simd.LANES <= value_lanes:
            more0, more1 = simd.load(target0 + 64), simd.load(target1 + 64)
            more2, more3 = simd.load(target2 + 64), simd.load(target3 + 64)
            for lane in range(first, last):
                address = values + 4 * (lane * value_lanes + i)
                value, more = simd.load(address), simd.load(address + 64)
                weight = simd.load_splat(weights + 4 * lane)
                total0, more0 = simd.fma(weight, value, total0), simd.fma(weight, more, more0)
                weight = simd.load_splat(weights1 + 4 * lane)
                total1, more1 = simd.fma(weight, value, total1), simd.fma(weight, more, more1)
                weight = simd.load_splat(weights2 + 4 * lane)
                total2, more2 = simd.fma(weight, value, total2), simd.fma(weight, more, more2)
                weight = simd.load_splat(weights3 + 4 * lane)
                total3, more3 = simd.fma(weight, value, total3), simd.fma(weight, more, more3)
            simd.store(target0 + 64, more0)
            simd.store(target1 + 64, more1)
            simd.store(target2 + 64, more2)
            simd.store(target3 + 64, more3)
            i += simd.LANES
        else:
            for lane in range(first, last):
                value = simd.load(values + 4 * (lane * value_lanes + i))
                total0 = simd.fma(simd.load_splat(weights + 4 * lane), value, total0)
                total1 = simd.fma(simd.load_splat(weights1 + 4 * lane), value, total1)
                total2 = simd.fma(simd.load_splat(weights2 + 4 * lane), value, total2)
                total3 = simd.fma(simd.load_splat(weights3 + 4 * lane), value, total3)
        simd.store(target0, total0)
        simd.store(target1, total1)
        simd.store(target2, total2)
        simd.store(target3, total3)
        i += simd.LANES


@compiled
def merge(state: int, later: int, value_lanes: int) -> None:
    """Add the state of a later partition to a query's state."""
    largest, total = 4 * value_lanes, 4 * value_lanes + 64
    # Without any weight the row sees nothing there. (What it sees weighs at least 1 together, or is NaN.)
    if simd.load_one(later + total) == 0.0:
        return
    if simd.load_one(state + total) == 0.0:
        for i in range(0, value_lanes + 2 * simd.LANES, simd.LANES):
            simd.store(state + 4 * i, simd.load(later + 4 * i))
        return
    top = simd.larger(simd.load(later + largest), simd.load(state + largest))
    keep = simd.exp(simd.sub(simd.load(state + largest), top))
    take = simd.exp(simd.sub(simd.load(later + largest), top))
    for i in range(0, value_lanes, simd.LANES):
        kept = simd.mul(simd.load(state + 4 * i), keep)
        simd.store(state + 4 * i, simd.fma(simd.load(later + 4 * i), take, kept))
    kept = simd.mul(simd.load(state + total), keep)
    simd.store(state + total, simd.fma(simd.load(later + total), take, kept))
    simd.store(state + largest, top)


@compiled
def finish(layer: Any, state: int, head: int, output: int) -> None:
    """Write a query's `[value_size]` result."""
    value_lanes = padded(layer.value_size)
    total = simd.load(state + 4 * value_lanes + 64)
    keep = simd.splat(1.0)
    if layer.sinks != 0:
        largest, sink = simd.load(state + 4 * value_lanes), simd.load_splat(layer.sinks + 4 * head)
        top = simd.larger(sink, largest)
        keep = simd.exp(simd.sub(largest, top))
        total = simd.fma(total, keep, simd.exp(simd.sub(sink, top)))
    for i in range(0, value_lanes, simd.LANES):
        simd.store(state + 4 * i, simd.div(simd.mul(simd.load(state + 4 * i), keep), total))
    copy_out(state, output, layer.value_size)

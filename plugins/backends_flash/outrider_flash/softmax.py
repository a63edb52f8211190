"""From scores to results: with the products, every operation that decides the bits of a row."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import simd
from .entries import copy_out
from .records import padded
from .simd import compiled


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
def softmax(layer: Any, scores: int, first: int, last: int, state: int, value_lanes: int) -> None:
    """Turn a query's raw scores `[first, last)` of a partition into weights, those beside them in their vectors into 0.

    Starts the state with their largest and their sum.
    """
    start = first // simd.LANES * simd.LANES
    top = simd.splat(-np.inf)
    for i in range(start, last, simd.LANES):
        score = finish_scores(layer, simd.load(scores + 4 * i), first - i, last - i)
        simd.store(scores + 4 * i, score)
        top = simd.larger(score, top)
    largest = simd.max_lanes(top)
    # All scores minus infinity: any finite number keeps the differences from being NaN.
    shift = simd.splat(largest if largest > -np.inf else np.float32(0.0))
    total = simd.splat(0.0)
    for i in range(start, last, simd.LANES):
        weight = simd.exp(simd.sub(simd.load(scores + 4 * i), shift))
        simd.store(scores + 4 * i, weight)
        total = simd.add(total, weight)
    clear(state, value_lanes)
    simd.store(state + 4 * value_lanes, simd.splat(largest))
    simd.store(state + 4 * value_lanes + 64, simd.splat(simd.sum_lanes(total)))


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

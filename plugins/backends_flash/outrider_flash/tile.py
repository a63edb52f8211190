"""Attention of one tile: a few consecutive rows of a request, with all query heads that share one key/value head.

Every key and value is read once for all queries of the tile. Keys are taken in partitions of `PARTITION` positions,
counted from position 0 of the request: per partition a plain softmax in two passes, then the partitions are merged in
position order. Each query does the same operations in the same order whatever stands beside it in the tile, so the bits
of a row depend on the row, its position, and the keys and values it sees, and on nothing else: not on the batch, the
tile, the cut of the work over threads, the block size or the block numbers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from . import simd
from .entries import copy_in, find_keys, find_values, stage_keys, stage_values
from .records import AHEAD, PARTITION, padded, padded_queries, state_size
from .simd import compiled
from .softmax import (
    accumulate_four,
    accumulate_one,
    clear,
    finish,
    finish_scores,
    merge,
    score_four,
    score_one,
    softmax,
)


class Tile(NamedTuple):
    """A tile's extent, and the addresses of its scratch (floats unless said otherwise)."""

    first_row: int
    last_row: int
    head: int
    group: int
    num_queries: int  # rows * group, rounded up by `padded_queries`
    key_lanes: int  # padded sizes
    value_lanes: int
    state_bytes: int
    queries: int  # [num_queries, key_lanes]
    bounds: int  # [num_queries, 2] int64: the positions a query sees
    weights: int  # [num_queries, PARTITION]: scores, then softmax weights
    states: int  # [num_queries, state_size]
    merged: int  # [num_queries, state_size]
    staged_keys: int  # [key_lanes, 16]
    staged_values: int  # [16, value_lanes]
    zeros: int  # [key_lanes]
    pointers: int  # [2 * PARTITION + AHEAD] int64


@compiled
def lay_out(layer: Any, first_row: int, last_row: int, head: int, scratch: int) -> Any:
    """Divide a thread's scratch of `scratch_size` floats."""
    group = layer.num_heads // layer.num_kv_heads
    num_queries = padded_queries((last_row - first_row) * group)
    key_lanes, value_lanes = padded(layer.key_size), padded(layer.value_size)
    state_bytes = 4 * state_size(layer.value_size)
    bounds = scratch + 4 * num_queries * key_lanes
    weights = bounds + 16 * num_queries
    states = weights + 4 * num_queries * PARTITION
    merged = states + num_queries * state_bytes
    staged_keys = merged + num_queries * state_bytes
    staged_values = staged_keys + 4 * simd.LANES * key_lanes
    zeros = staged_values + 4 * simd.LANES * value_lanes
    return Tile(
        first_row, last_row, head, group, num_queries, key_lanes, value_lanes, state_bytes, scratch, bounds, weights,
        states, merged, staged_keys, staged_values, zeros, zeros + 4 * key_lanes,
    )  # fmt: skip


@compiled
def load_queries(layer: Any, call: Any, positions: Any, tile: Any) -> None:
    """Gather the tile's queries, the heads of a row side by side, and what each of them sees."""
    query = low = high = 0
    for row in range(tile.first_row, tile.last_row):
        high = positions[row] + 1
        low = max(0, high - layer.window) if layer.window > 0 else 0
        for head in range(tile.head * tile.group, (tile.head + 1) * tile.group):
            source = call.query + row * call.query_row + head * call.query_head
            copy_in(source, tile.queries + 4 * query * tile.key_lanes, layer.key_size)
            simd.store_address(tile.bounds + 16 * query, low)
            simd.store_address(tile.bounds + 16 * query + 8, high)
            query += 1
    # The rest of the last four: results that nobody reads.
    while query < tile.num_queries:
        for i in range(0, tile.key_lanes, simd.LANES):
            simd.store(tile.queries + 4 * (query * tile.key_lanes + i), simd.splat(0.0))
        simd.store_address(tile.bounds + 16 * query, low)
        simd.store_address(tile.bounds + 16 * query + 8, high)
        query += 1


@compiled
def visible(tile: Any, query: int, origin: int, size: int) -> Any:
    """The part of `origin + [0, size)` that a query sees, counted from `origin`; may be empty."""
    low = simd.load_address(tile.bounds + 16 * query) - origin
    high = simd.load_address(tile.bounds + 16 * query + 8) - origin
    return max(low, 0), min(high, size)


@compiled
def store_scores(layer: Any, tile: Any, query: int, scores: Any, start: int, target: int) -> None:
    """Scale one query's scores for positions `start + [0, 16)`, hide what it does not see, and store them."""
    low, high = visible(tile, query, start, simd.LANES)
    simd.store(target + 4 * PARTITION * query, finish_scores(layer, scores, low, high))


@compiled
def score_keys(layer: Any, tile: Any, start: int, target: int) -> None:
    """Score the sixteen staged keys, of positions `start + [0, 16)`, for every query."""
    if tile.num_queries == 1:
        scores = score_one(tile.queries, tile.staged_keys, tile.key_lanes)
        store_scores(layer, tile, 0, scores, start, target)
        return
    for query in range(0, tile.num_queries, 4):
        address = tile.queries + 4 * query * tile.key_lanes
        scores0, scores1, scores2, scores3 = score_four(address, tile.staged_keys, tile.key_lanes)
        store_scores(layer, tile, query, scores0, start, target)
        store_scores(layer, tile, query + 1, scores1, start, target)
        store_scores(layer, tile, query + 2, scores2, start, target)
        store_scores(layer, tile, query + 3, scores3, start, target)


@compiled
def add_values(tile: Any, start: int, weights: int, values: int, states: int) -> None:
    """Accumulate sixteen values, of positions `start + [0, 16)`, for every query."""
    query = 0
    while query < tile.num_queries:
        low, high = visible(tile, query, start, simd.LANES)
        state, own = states + tile.state_bytes * query, weights + 4 * PARTITION * query
        together = False
        if query % 4 == 0 and query + 4 <= tile.num_queries:
            # Bounds grow from row to row: if the last of the four sees the same of these keys, all four do.
            last_low, last_high = visible(tile, query + 3, start, simd.LANES)
            together = low == last_low and high == last_high
        if together:
            accumulate_four(state, own, values, low, high, tile.value_lanes, tile.state_bytes)
            query += 4
        else:
            accumulate_one(state, own, values, low, high, tile.value_lanes)
            query += 1


@compiled
def attend_partition(layer: Any, blocks: Any, tile: Any, origin: int, stop: int, states: int) -> None:
    """Leave every query's softmax state over positions `origin + [0, PARTITION)` at `states`."""
    begin, _ = visible(tile, 0, origin, PARTITION)
    _, end = visible(tile, tile.num_queries - 1, origin, PARTITION)
    first, last = begin // simd.LANES * simd.LANES, (end + simd.LANES - 1) // simd.LANES * simd.LANES

    # Pointers in the order of use: keys, values, first keys of the next partition. A slot outside [begin, end) may hold
    # anything, NaN included: it is never read, zeros stand in for it.
    for i in range(0, tile.key_lanes, simd.LANES):
        simd.store(tile.zeros + 4 * i, simd.splat(0.0))
    keys = tile.pointers
    values = keys + 8 * (last - first)
    following = values + 8 * (last - first)
    for i in range(2 * (last - first) + AHEAD):
        simd.store_address(tile.pointers + 8 * i, tile.zeros)
    shift = 8 * (begin - first)
    find_keys(layer, blocks, tile.head, origin + begin, origin + end, keys + shift)
    find_values(layer, blocks, tile.head, origin + begin, origin + end, values + shift)
    find_keys(layer, blocks, tile.head, origin + last, min(origin + last + AHEAD, stop), following)

    for start in range(first, last, simd.LANES):
        stage_keys(layer.cache_type, keys, tile.key_lanes, tile.staged_keys, keys + 8 * AHEAD)
        score_keys(layer, tile, origin + start, tile.weights + 4 * start)
        keys += 8 * simd.LANES
    for query in range(tile.num_queries):
        low, high = visible(tile, query, origin, PARTITION)
        weights, state = tile.weights + 4 * PARTITION * query, states + tile.state_bytes * query
        softmax(weights, low, high, state, tile.value_lanes)
    for start in range(first, last, simd.LANES):
        low, high = max(begin - start, 0), min(end - start, simd.LANES)
        stage_values(
            layer.cache_type, values, low, high, tile.value_lanes, tile.staged_values, values + 8 * AHEAD
        )
        add_values(tile, origin + start, tile.weights + 4 * start, tile.staged_values, states)
        values += 8 * simd.LANES


@compiled
def merge_states(tile: Any, states: int, first: bool) -> None:
    """Add the states of the next partition to the tile's merged states."""
    for query in range(tile.num_queries):
        merged = tile.merged + tile.state_bytes * query
        if first:
            clear(merged, tile.value_lanes)
        merge(merged, states + tile.state_bytes * query, tile.value_lanes)


@compiled
def finish_tile(layer: Any, call: Any, tile: Any) -> None:
    """Write the results of all queries of the tile."""
    state = tile.merged
    for row in range(tile.first_row, tile.last_row):
        for head in range(tile.head * tile.group, (tile.head + 1) * tile.group):
            finish(layer, state, head, call.output + 4 * (row * layer.num_heads + head) * layer.value_size)
            state += tile.state_bytes


@compiled
def attend_item(layer: Any, call: Any, positions: Any, block_table: Any, item: Any, scratch: int) -> None:
    """Do one item of the plan: a tile against all its partitions, or some, whose states are then left to merge."""
    tile = lay_out(layer, item.first_row, item.last_row, item.head, scratch)
    load_queries(layer, call, positions, tile)
    states = tile.states
    stop = min(item.last_partition * PARTITION, positions[item.last_row - 1] + 1)
    for partition in range(item.first_partition, item.last_partition):
        if item.partials >= 0:
            index = item.partials + (partition - item.first_partition) * tile.num_queries
            states = call.partials + index * tile.state_bytes
        attend_partition(layer, block_table[item.request], tile, partition * PARTITION, stop, states)
        if item.partials < 0:
            merge_states(tile, states, partition == item.first_partition)
    if item.partials < 0:
        finish_tile(layer, call, tile)


@compiled
def merge_item(layer: Any, call: Any, item: Any, scratch: int) -> None:
    """Finish a tile whose partitions were spread over several items; `item` spans all of them."""
    tile = lay_out(layer, item.first_row, item.last_row, item.head, scratch)
    for partition in range(item.last_partition - item.first_partition):
        index = item.partials + partition * tile.num_queries
        merge_states(tile, call.partials + index * tile.state_bytes, partition == 0)
    finish_tile(layer, call, tile)

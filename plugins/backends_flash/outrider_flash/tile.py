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
from .entries import (
    copy_in,
    fill_pointers,
    find_keys,
    find_values,
    prefetch_entries,
    stage_columns,
    stage_rows,
)
from .products import add_values, score_columns, score_rows
from .records import AHEAD, FLOAT32, PARTITION, padded, state_size
from .simd import compiled
from .softmax import clear, finish, merge, softmax

# With more queries than these it pays to transpose the keys.
_FEW_QUERIES = 8


class Tile(NamedTuple):
    """A tile's extent, and the addresses of its scratch (floats unless said otherwise)."""

    first_row: int
    last_row: int
    head: int
    group: int
    num_queries: int  # rows * group
    key_lanes: int  # padded sizes
    value_lanes: int
    state_bytes: int
    queries: int  # [num_queries, key_lanes]
    bounds: int  # [num_queries, 2] int64: the positions a query sees
    weights: int  # [num_queries, PARTITION]: scores, then softmax weights
    states: int  # [num_queries, state_size]
    merged: int  # [num_queries, state_size]
    staged: int  # [key_lanes, 16] or [16, key_lanes], and [16, value_lanes]
    zeros: int  # [key_lanes]
    staged_keys: int  # [16] int64: addresses of the rows of `staged`
    staged_values: int  # [16] int64
    pointers: int  # [2 * PARTITION + AHEAD] int64


@compiled
def lay_out(layer: Any, first_row: int, last_row: int, head: int, scratch: int) -> Any:
    """Divide a thread's scratch of `scratch_size` floats."""
    group = layer.num_heads // layer.num_kv_heads
    num_queries = (last_row - first_row) * group
    key_lanes, value_lanes = padded(layer.key_size), padded(layer.value_size)
    state_bytes = 4 * state_size(layer.value_size)
    bounds = scratch + 4 * num_queries * key_lanes
    weights = bounds + 16 * num_queries
    states = weights + 4 * num_queries * PARTITION
    merged = states + num_queries * state_bytes
    staged = merged + num_queries * state_bytes
    zeros = staged + 4 * simd.LANES * max(key_lanes, value_lanes)
    staged_keys = zeros + 4 * key_lanes
    staged_values = staged_keys + 8 * simd.LANES
    return Tile(
        first_row, last_row, head, group, num_queries, key_lanes, value_lanes, state_bytes, scratch, bounds, weights,
        states, merged, staged, zeros, staged_keys, staged_values, staged_values + 8 * simd.LANES,
    )  # fmt: skip


@compiled
def load_queries(layer: Any, queries: int, positions: Any, tile: Any) -> None:
    """Gather the tile's queries, the heads of a row side by side, and what each of them sees."""
    query = low = high = 0
    for row in range(tile.first_row, tile.last_row):
        high = positions[row] + 1
        low = max(0, high - layer.window) if layer.window > 0 else 0
        for head in range(tile.head * tile.group, (tile.head + 1) * tile.group):
            source = queries + 4 * (row * layer.num_heads + head) * layer.key_size
            copy_in(source, tile.queries + 4 * query * tile.key_lanes, layer.key_size)
            simd.store_address(tile.bounds + 16 * query, low)
            simd.store_address(tile.bounds + 16 * query + 8, high)
            query += 1
    for lane in range(simd.LANES):
        simd.store_address(tile.staged_keys + 8 * lane, tile.staged + 4 * lane * tile.key_lanes)
        simd.store_address(tile.staged_values + 8 * lane, tile.staged + 4 * lane * tile.value_lanes)
    # A slot that no query of the tile sees may hold anything, NaN included: it is never read, zeros stand in for it.
    for i in range(0, tile.key_lanes, simd.LANES):
        simd.store(tile.zeros + 4 * i, simd.splat(0.0))


@compiled
def visible(tile: Any, query: int, origin: int, size: int) -> Any:
    """The part of `origin + [0, size)` that a query sees, counted from `origin`; may be empty."""
    low = simd.load_address(tile.bounds + 16 * query) - origin
    high = simd.load_address(tile.bounds + 16 * query + 8) - origin
    return max(low, 0), min(high, size)


@compiled
def score_keys(layer: Any, tile: Any, keys: int, target: int) -> None:
    """Score the keys at sixteen addresses for every query."""
    few = tile.num_queries <= _FEW_QUERIES
    rows, ahead = keys, keys + 8 * AHEAD
    if not few:
        stage_columns(layer.cache_type, keys, tile.key_lanes, tile.staged)
    elif layer.cache_type != FLOAT32:
        stage_rows(layer.cache_type, keys, 0, simd.LANES, tile.key_lanes, tile.staged)
        rows = ahead = tile.staged_keys
    for query in range(0, tile.num_queries, 4):
        n, address = min(4, tile.num_queries - query), tile.queries + 4 * query * tile.key_lanes
        scores = target + 4 * PARTITION * query
        if few:
            score_rows(n, address, tile.key_lanes, rows, ahead, scores)
            ahead = rows
        else:
            score_columns(n, address, tile.key_lanes, tile.staged, scores)


@compiled
def use_values(layer: Any, tile: Any, values: int, start: int, weights: int, states: int) -> None:
    """Accumulate the values at sixteen addresses, of positions `start + [0, 16)`, for every query."""
    rows, ahead = values, values + 8 * AHEAD
    if layer.cache_type != FLOAT32:
        low, _ = visible(tile, 0, start, simd.LANES)
        _, high = visible(tile, tile.num_queries - 1, start, simd.LANES)
        stage_rows(layer.cache_type, values, low, high, tile.value_lanes, tile.staged)
        rows = ahead = tile.staged_values
    query = 0
    while query < tile.num_queries:
        low, high = visible(tile, query, start, simd.LANES)
        # Bounds grow from row to row: if the last of some sees the same of these keys, all do.
        n = min(4, tile.num_queries - query)
        last_low, last_high = visible(tile, query + n - 1, start, simd.LANES)
        if low != last_low or high != last_high:
            n = 1
        state, own = states + tile.state_bytes * query, weights + 4 * PARTITION * query
        add_values(n, state, tile.state_bytes, own, rows, ahead, low, high, tile.value_lanes)
        query += n
        ahead = rows


@compiled
def attend_partition(
    layer: Any, blocks: Any, tile: Any, origin: int, stop: int, is_first: bool, states: int
) -> None:
    """Leave every query's softmax state over positions `origin + [0, PARTITION)` at `states`."""
    begin, _ = visible(tile, 0, origin, PARTITION)
    _, end = visible(tile, tile.num_queries - 1, origin, PARTITION)
    first, last = begin // simd.LANES * simd.LANES, (end + simd.LANES - 1) // simd.LANES * simd.LANES

    # Pointers in the order of use: keys, values, first keys of the next partition.
    keys = tile.pointers
    values = keys + 8 * (last - first)
    following = values + 8 * (last - first)
    for pointers in (keys, values):
        fill_pointers(pointers, begin - first, tile.zeros)
        fill_pointers(pointers + 8 * (end - first), last - end, tile.zeros)
    shift = 8 * (begin - first)
    find_keys(layer, blocks, tile.head, origin + begin, origin + end, keys + shift)
    find_values(layer, blocks, tile.head, origin + begin, origin + end, values + shift)
    fill_pointers(following, AHEAD, tile.zeros)
    find_keys(layer, blocks, tile.head, origin + last, min(origin + last + AHEAD, stop), following)

    if is_first:  # what no earlier partition has asked for
        prefetch_entries(layer.cache_type, keys, min(AHEAD, last - first), tile.key_lanes)
    for start in range(first, last, simd.LANES):
        score_keys(layer, tile, keys + 8 * (start - first), tile.weights + 4 * start)
    for query in range(tile.num_queries):
        low, high = visible(tile, query, origin, PARTITION)
        weights, state = tile.weights + 4 * PARTITION * query, states + tile.state_bytes * query
        softmax(layer, weights, low, high, state, tile.value_lanes)
    for start in range(first, last, simd.LANES):
        own = values + 8 * (start - first)
        use_values(layer, tile, own, origin + start, tile.weights + 4 * start, states)


@compiled
def merge_states(tile: Any, states: int, first: bool) -> None:
    """Add the states of the next partition to the tile's merged states."""
    for query in range(tile.num_queries):
        merged = tile.merged + tile.state_bytes * query
        if first:
            clear(merged, tile.value_lanes)
        merge(merged, states + tile.state_bytes * query, tile.value_lanes)


@compiled
def finish_tile(layer: Any, output: int, tile: Any) -> None:
    """Write the results of all queries of the tile."""
    state = tile.merged
    for row in range(tile.first_row, tile.last_row):
        for head in range(tile.head * tile.group, (tile.head + 1) * tile.group):
            finish(layer, state, head, output + 4 * (row * layer.num_heads + head) * layer.value_size)
            state += tile.state_bytes


@compiled
def attend_item(
    layer: Any, query: int, output: int, positions: Any, block_table: Any, item: Any, partials: int,
    scratch: int,
) -> None:  # fmt: skip
    """Do one item of the plan: a tile against all its partitions, or some, whose states are then left to merge."""
    tile = lay_out(layer, item.first_row, item.last_row, item.head, scratch)
    load_queries(layer, query, positions, tile)
    states = tile.states
    stop = min(item.last_partition * PARTITION, positions[item.last_row - 1] + 1)
    for partition in range(item.first_partition, item.last_partition):
        if item.partials >= 0:
            index = item.partials + (partition - item.first_partition) * tile.num_queries
            states = partials + index * tile.state_bytes
        is_first = partition == item.first_partition
        attend_partition(
            layer, block_table[item.request], tile, partition * PARTITION, stop, is_first, states
        )
        if item.partials < 0:
            merge_states(tile, states, is_first)
    if item.partials < 0:
        finish_tile(layer, output, tile)


@compiled
def merge_item(layer: Any, output: int, item: Any, partials: int, scratch: int) -> None:
    """Finish a tile whose partitions were spread over several items; `item` spans all of them."""
    tile = lay_out(layer, item.first_row, item.last_row, item.head, scratch)
    for partition in range(item.last_partition - item.first_partition):
        index = item.partials + partition * tile.num_queries
        merge_states(tile, partials + index * tile.state_bytes, partition == 0)
    finish_tile(layer, output, tile)

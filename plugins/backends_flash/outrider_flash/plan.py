"""Cutting a step into pieces of work for the threads. Nothing here can change a result, only how soon it is there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .records import ITEM, PARTITION

QUERIES_PER_TILE = 64
# A step is cut into about this many pieces per thread: fewer leave threads idle at its end, more cost merges.
_PIECES_PER_THREAD = 4
# Reading one key and value costs as much as this many queries' work on them.
_READ_COST = 6
# Below this cost, of all heads together, waking other threads takes longer than the work.
_SERIAL_COST = 12288


@dataclass(frozen=True, slots=True)
class Plan:
    """The work of one step for the layers of one form.

    Attributes:
        items: `[n]` of `ITEM`, in the order in which threads should take them.
        merges: `[m]` of `ITEM`: tiles whose partitions were spread over several items.
        num_partials: softmax states that wait for the merges.
        num_workers: threads to use.
    """

    items: npt.NDArray[np.void]
    merges: npt.NDArray[np.void]
    num_partials: int
    num_workers: int


def rows_per_tile(group: int) -> int:
    """Most rows of a tile when `group` query heads share a key/value head."""
    return max(1, QUERIES_PER_TILE // group)


def make_plan(
    query_start_loc: npt.NDArray[np.int32],
    positions: npt.NDArray[np.int64],
    *,
    group: int,
    num_kv_heads: int,
    window: int,
    num_threads: int,
) -> Plan:
    """Cut rows into tiles, and tiles into ranges of partitions where there are too few of them for the threads.

    Args:
        query_start_loc: `[B + 1]`, rows of each request; the positions of its rows increase.
        positions: `[T]`.
        group: query heads per key/value head.
        window: positions a row sees, itself included; 0: all.
    """
    tiles = _tiles(query_start_loc, positions, rows_per_tile(group), window)
    num_partitions = tiles["last_partition"] - tiles["first_partition"]
    num_queries = (tiles["last_row"] - tiles["first_row"]) * group
    num_queries = np.where(num_queries == 1, 1, -(-num_queries // 4) * 4)  # as `padded_queries`
    cost = num_partitions * PARTITION * (num_queries + _READ_COST)
    total_cost = int(cost.sum()) * num_kv_heads
    num_workers = num_threads if total_cost >= _SERIAL_COST else 1

    pieces = np.ones_like(cost)
    if num_workers > 1:
        limit = total_cost // (num_workers * _PIECES_PER_THREAD) + 1
        pieces = np.minimum(-(-cost // limit), num_partitions)
    split = pieces > 1
    num_states = np.where(split, num_partitions * num_queries, 0)
    offsets = (np.cumsum(num_states) - num_states) * num_kv_heads

    tile, head = _product(np.arange(len(tiles)), num_kv_heads)
    spread = tiles[tile]
    spread["head"] = head
    spread["partials"] = np.where(split[tile], offsets[tile] + head * num_states[tile], -1)

    item = np.repeat(np.arange(len(spread)), pieces[tile])
    items = spread[item]
    piece = np.arange(len(item)) - (np.cumsum(pieces[tile]) - pieces[tile])[item]
    span, count = num_partitions[tile][item], pieces[tile][item]
    items["first_partition"] = spread["first_partition"][item] + span * piece // count
    items["last_partition"] = spread["first_partition"][item] + span * (piece + 1) // count
    skipped = items["first_partition"] - spread["first_partition"][item]
    items["partials"] += np.where(split[tile][item], skipped * num_queries[tile][item], 0)

    order = np.argsort(-(cost // pieces)[tile][item], kind="stable")
    num_partials = int(num_states.sum()) * num_kv_heads
    return Plan(items[order], spread[split[tile]], num_partials, num_workers)


def _tiles(
    query_start_loc: npt.NDArray[np.int32], positions: npt.NDArray[np.int64], rows: int, window: int
) -> npt.NDArray[np.void]:
    starts, ends = query_start_loc[:-1].astype(np.int64), query_start_loc[1:].astype(np.int64)
    counts = -(-(ends - starts) // rows)
    request = np.repeat(np.arange(len(starts)), counts)
    index = np.arange(len(request)) - (np.cumsum(counts) - counts)[request]
    tiles = np.zeros(len(request), ITEM)
    tiles["request"] = request
    tiles["first_row"] = starts[request] + index * rows
    tiles["last_row"] = np.minimum(tiles["first_row"] + rows, ends[request])
    if window:
        tiles["first_partition"] = np.maximum(positions[tiles["first_row"]] + 1 - window, 0) // PARTITION
    tiles["last_partition"] = positions[tiles["last_row"] - 1] // PARTITION + 1
    return tiles


def _product(outer: npt.NDArray[np.int64], inner: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    return np.repeat(outer, inner), np.tile(np.arange(inner), len(outer))

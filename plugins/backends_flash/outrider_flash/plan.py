"""Cutting a step into pieces of work for the threads. Nothing here can change a result, only how soon it is there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from .fingerprint import source_fingerprint
from .records import ITEM, PARTITION
from .simd import compiled

QUERIES_PER_TILE = 64
# A step is cut into about this many pieces per thread: fewer leave threads idle at its end, more cost merges.
_PIECES_PER_THREAD = 8
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
        num_workers: threads to use, if they have to be woken for it.
    """

    items: npt.NDArray[np.void]
    merges: npt.NDArray[np.void]
    num_partials: int
    num_workers: int


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
    items, merges, num_partials, cost, _ = _cut(
        query_start_loc, positions, group, num_kv_heads, window, num_threads
    )
    return Plan(items, merges, num_partials, num_threads if cost >= _SERIAL_COST else 1)


def rows_per_tile(group: int) -> int:
    """Most rows of a tile when `group` query heads share a key/value head."""
    return max(1, QUERIES_PER_TILE // group)


@compiled
def _fill_tiles(
    query_start_loc: Any, positions: Any, rows: int, group: int, window: int, tiles: Any, costs: Any
) -> None:
    """Write each tile's extent and its cost per head."""
    tile = 0
    for request in range(len(query_start_loc) - 1):
        start: Any = np.int64(query_start_loc[request])
        end: Any = np.int64(query_start_loc[request + 1])
        for first in range(start, end, rows):
            last: Any = min(first + rows, end)
            low = max(0, positions[first] + 1 - window) if window > 0 else 0
            begin, stop = low // PARTITION, positions[last - 1] // PARTITION + 1
            here = tiles[tile]
            here.first_row, here.last_row, here.request, here.head = first, last, request, 0
            here.first_partition, here.last_partition, here.partials = begin, stop, -1
            queries = (last - first) * group
            costs[tile] = (positions[last - 1] + 1 - begin * PARTITION) * (queries + _READ_COST)
            tile += 1


@compiled
def _copy_item(source: Any, target: Any, head: int, partials: int) -> None:
    target.first_row, target.last_row, target.request = source.first_row, source.last_row, source.request
    target.first_partition, target.last_partition = source.first_partition, source.last_partition
    target.head, target.partials = head, partials


def _compile(fingerprint: int) -> Any:
    @njit(cache=True, error_model="numpy")
    def cut(
        query_start_loc: Any, positions: Any, group: int, num_kv_heads: int, window: int, num_threads: int
    ) -> Any:
        rows = max(1, QUERIES_PER_TILE // group)
        num_tiles = 0
        for request in range(len(query_start_loc) - 1):
            num_tiles += (query_start_loc[request + 1] - query_start_loc[request] + rows - 1) // rows
        tiles, costs = np.empty(num_tiles, ITEM), np.empty(num_tiles, np.int64)
        _fill_tiles(query_start_loc, positions, rows, group, window, tiles, costs)

        total = costs.sum() * num_kv_heads
        limit = total // (num_threads * _PIECES_PER_THREAD) + 1
        pieces, heaviest = np.ones(num_tiles, np.int64), costs.copy()
        num_items = num_merges = 0
        for tile in range(num_tiles):
            if num_threads > 1:
                spans = tiles[tile].last_partition - tiles[tile].first_partition
                pieces[tile] = min((costs[tile] + limit - 1) // limit, spans)
                largest = (spans + pieces[tile] - 1) // pieces[tile] * PARTITION
                queries = (tiles[tile].last_row - tiles[tile].first_row) * group
                heaviest[tile] = min(costs[tile], largest * (queries + _READ_COST))
            num_items += pieces[tile]
            num_merges += pieces[tile] > 1
        items = np.empty(num_items * num_kv_heads, ITEM)
        merges = np.empty(num_merges * num_kv_heads, ITEM)

        item = merge = partials = 0
        # The most expensive pieces first: a long one at the end would be waited for.
        for tile in np.argsort(-heaviest, kind="mergesort"):
            whole, count = tiles[tile], pieces[tile]
            first, spans = whole.first_partition, whole.last_partition - whole.first_partition
            width = (whole.last_row - whole.first_row) * group
            for piece in range(count):
                begin, end = spans * piece // count, spans * (piece + 1) // count
                for head in range(num_kv_heads):
                    state = partials + (head * spans + begin) * width if count > 1 else -1
                    _copy_item(whole, items[item], head, state)
                    items[item].first_partition, items[item].last_partition = first + begin, first + end
                    item += 1
            if count > 1:
                for head in range(num_kv_heads):
                    _copy_item(whole, merges[merge], head, partials)
                    partials += spans * width
                    merge += 1
        return items, merges, partials, total, fingerprint

    return cut


_cut = _compile(source_fingerprint())


def warm_up() -> None:
    """Compile the cutting, or load it from numba's cache. Afterwards it never compiles again."""
    if not _cut.signatures:
        _cut(np.zeros(1, np.int32), np.zeros(0, np.int64), 1, 1, 0, 1)
        _cut.disable_compile()

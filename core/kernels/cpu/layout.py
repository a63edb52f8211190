"""Where the rows of a step stand: a few integers per row. Compiled: one call costs less than a dozen of numpy's."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]


@njit(cache=True)
def lay_out_rows(starts: Int64Array, lengths: Int64Array) -> tuple[Int32Array, Int64Array, Int32Array]:
    """Put `lengths[i]` rows from position `starts[i]` on of each request one behind the other.

    Args:
        starts, lengths: `[B]`.

    Returns:
        `query_start_loc [B + 1]`; and for each of the `T` rows its position and its request.
    """
    query_start_loc = np.zeros(len(lengths) + 1, np.int32)
    positions = np.empty(lengths.sum(), np.int64)
    request_of_row = np.empty(len(positions), np.int32)
    row = 0
    for request in range(len(lengths)):
        for offset in range(lengths[request]):
            positions[row] = starts[request] + offset
            request_of_row[row] = request
            row += 1
        query_start_loc[request + 1] = row
    return query_start_loc, positions, request_of_row


@njit(cache=True)
def map_slots(
    positions: Int64Array, query_start_loc: Int32Array, block_table: Int32Array, block_size: int
) -> tuple[Int64Array, Int32Array, int, int, int]:
    """Where each row's entry lies in the cache, and how long each request is with its last row.

    Args:
        positions: `[T]`, increasing within a request.
        query_start_loc: `[B + 1]`; every request has rows.
        block_table: `[B, max_blocks]`, -1 behind a request's blocks.

    Returns:
        Slots `[T]`; lengths `[B]`; most rows of a request; the greatest length; and the first row whose request has no
        block for it, -1 if there is none.
    """
    slots, lengths = np.empty(len(positions), np.int64), np.empty(len(block_table), np.int32)
    most_rows, greatest_length, without_block = 0, 0, -1
    for request in range(len(block_table)):
        begin, end = query_start_loc[request], query_start_loc[request + 1]
        for row in range(begin, end):
            index, offset = positions[row] // block_size, positions[row] % block_size
            block = block_table[request, index] if index < block_table.shape[1] else -1
            if block < 0 and without_block < 0:
                without_block = row
            slots[row] = block * block_size + offset
        lengths[request] = positions[end - 1] + 1
        most_rows = max(most_rows, end - begin)
        greatest_length = max(greatest_length, lengths[request])
    return slots, lengths, most_rows, greatest_length, without_block


@njit(cache=True)
def find_logits_rows(
    query_start_loc: Int32Array, num_drafts: Int64Array
) -> tuple[Int64Array, Int32Array, Int64Array, Int64Array, Int32Array]:
    """The rows that judge a draft or give a bonus token: the last `num_drafts[i] + 1` rows of each request.

    Args:
        query_start_loc: `[B + 1]`.
        num_drafts: `[B]`.

    Returns:
        Rows of the flat batch, `[ΣD + B]`, and the request of each; which of these rows judge a draft, `[ΣD]`, and
        which give a bonus token, `[B]`; the inclusive cumulative sum of `num_drafts`.
    """
    num_requests, total = len(num_drafts), num_drafts.sum()
    rows, request_of_row = np.empty(total + num_requests, np.int64), np.empty(total + num_requests, np.int32)
    targets, bonuses = np.empty(total, np.int64), np.empty(num_requests, np.int64)
    cumulative = np.empty(num_requests, np.int32)
    at = drafts = 0
    for request in range(num_requests):
        first = query_start_loc[request + 1] - num_drafts[request] - 1
        for draft in range(num_drafts[request] + 1):
            rows[at], request_of_row[at] = first + draft, request
            if draft < num_drafts[request]:
                targets[drafts] = at
                drafts += 1
            else:
                bonuses[request] = at
            at += 1
        cumulative[request] = drafts
    return rows, request_of_row, targets, bonuses, cumulative


@njit(cache=True)
def commit_tokens(
    tokens: Int32Array,
    copy: Int32Array,
    num_tokens: Int32Array,
    num_computed: Int32Array,
    num_accepted: Int32Array,
    batch_rows: Int32Array,
    query_start_loc: Int32Array,
    num_drafts: Int64Array,
    num_emitted: Int64Array,
    emitted: Int64Array,
) -> tuple[Int64Array, npt.NDArray[np.bool_]]:
    """Append what a step decided to the requests whose prompt it completed, as far as their rows have room.

    Args:
        tokens, copy: `[S, L]`, written alike.
        num_tokens, num_accepted: `[S]`, updated; `num_computed [S]` is as it was before the step.
        batch_rows, num_drafts, num_emitted: `[B]`; `query_start_loc [B + 1]`.
        emitted: all requests' tokens, one behind the other.

    Returns:
        `[B]` leading rows of each request whose input token is committed; `[B]` whether its prompt is complete.
    """
    committed_rows = np.empty(len(batch_rows), np.int64)
    has_prompt = np.empty(len(batch_rows), np.bool_)
    at = 0
    for i in range(len(batch_rows)):
        row, count = batch_rows[i], num_emitted[i]
        committed_rows[i] = query_start_loc[i + 1] - query_start_loc[i]
        begin = num_tokens[row]
        has_prompt[i] = num_computed[row] + committed_rows[i] - num_drafts[i] >= begin
        num_accepted[row] = max(count, 1)
        if has_prompt[i] and count > 0:
            committed_rows[i] += count - 1 - num_drafts[i]
            kept = min(count, tokens.shape[1] - begin)
            for j in range(kept):
                tokens[row, begin + j] = copy[row, begin + j] = emitted[at + j]
            num_tokens[row] = begin + kept
        at += count
    return committed_rows, has_prompt

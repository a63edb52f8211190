"""Where each n-gram of a context was seen: an index that grows with the context and is asked in constant time.

For every length `n` in `[min_n, max_n]` there is one open-addressing table from n-gram to the position of its last
token, for the earliest or for the most recent occurrence. An entry holds 31 bits of the n-gram's hash and the position;
the tokens themselves are always compared, so a hash collision costs a probe and never gives a wrong match.

A step costs `O(max_n)` table look-ups per new token plus the draft itself, whatever the length of the context. The
tables double when they are half full, which adds a constant per token on average.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import carray, njit, prange, types
from numba.extending import intrinsic

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]

NUM_INDEXED = 0  # buffer[0]: every n-gram that ends before this position is in the tables
_FINGERPRINT = 1  # buffer[1]: hash of the tokens just before that position
HEADER = 2


@intrinsic
def _int32_pointer(typingctx: Any, address: Any = None) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.int32)(address), codegen


@intrinsic
def _int64_pointer(typingctx: Any, address: Any = None) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.int64)(address), codegen


@njit(cache=True, inline="always")
def _key(rolling: int) -> int:
    """31 well-mixed bits of a rolling hash. Signed arithmetic wraps, as in C with -fwrapv."""
    mixed = (rolling ^ ((rolling >> 32) & 0xFFFFFFFF)) * 0x2545F4914F6CDD1D
    return (mixed >> 33) & 0x7FFFFFFF


@njit(cache=True)
def _fingerprint(tokens: Int32Array, end: int, max_n: int, multiplier: int) -> int:
    rolling = 0
    for back in range(min(max_n, end)):
        rolling = rolling * multiplier + tokens[end - 1 - back] + 1
    return rolling


@njit(cache=True)
def _find(
    tokens: Int32Array, buffer: Int64Array, base: int, mask: int, key: int, last: int, n: int
) -> tuple[int, int]:
    """Slot of the n-gram that ends at position `last`, or the free slot where it belongs; and the probes it took."""
    slot = key & mask
    probes = 1
    while True:
        entry = buffer[base + slot]
        if entry == 0:
            return base + slot, probes
        if entry >> 32 == key:
            other = (entry & 0xFFFFFFFF) - 1
            same = True
            for back in range(n):
                if tokens[other - back] != tokens[last - back]:
                    same = False
                    break
            if same:
                return base + slot, probes
        slot = (slot + 1) & mask
        probes += 1


@njit(cache=True)
def _draft(
    tokens: Int32Array,
    buffer: Int64Array,
    draft: Int32Array,
    budget: int,
    min_n: int,
    max_n: int,
    most_recent: bool,
    multiplier: int,
) -> tuple[int, int]:
    """Bring one request's index up to date, then draft from it. Returns the draft's length and the probes made."""
    num_tokens = len(tokens)
    capacity = (len(buffer) - HEADER) // (max_n - min_n + 1)
    mask = capacity - 1
    num_indexed = buffer[NUM_INDEXED]
    # The newest token's n-grams stay out: the suffix must match an *earlier* occurrence.
    newest = num_tokens - 1
    if num_indexed > newest or buffer[_FINGERPRINT] != _fingerprint(tokens, num_indexed, max_n, multiplier):
        buffer[:] = 0  # not the context that was indexed: start over
        num_indexed = 0

    probes = 0
    for last in range(num_indexed, newest):
        rolling = 0
        for n in range(1, min(max_n, last + 1) + 1):
            rolling = rolling * multiplier + tokens[last - n + 1] + 1
            if n >= min_n:
                key = _key(rolling)
                base = HEADER + (n - min_n) * capacity
                slot, tried = _find(tokens, buffer, base, mask, key, last, n)
                probes += tried
                if most_recent or buffer[slot] == 0:
                    buffer[slot] = (key << 32) | (last + 1)
    buffer[NUM_INDEXED] = newest
    buffer[_FINGERPRINT] = _fingerprint(tokens, newest, max_n, multiplier)

    start = 0  # 0: no match; a match is followed by position 1 at the earliest
    rolling = 0
    for n in range(1, min(max_n, newest) + 1):
        rolling = rolling * multiplier + tokens[newest - n + 1] + 1
        if n >= min_n:
            base = HEADER + (n - min_n) * capacity
            slot, tried = _find(tokens, buffer, base, mask, _key(rolling), newest, n)
            probes += tried
            if buffer[slot] == 0:
                break  # a longer suffix cannot match where a shorter one does not
            start = buffer[slot] & 0xFFFFFFFF
    if start == 0:
        return 0, probes
    for index in range(budget):
        # Past the end of the context the draft repeats itself, as the text has begun to: "a b a b" -> "a b a b a".
        source = start + index
        draft[index] = tokens[source] if source < num_tokens else draft[source - num_tokens]
    return budget, probes


@njit(cache=True)
def _draft_at(
    i: int,
    requests: Int64Array,
    drafts: Int32Array,
    results: Int64Array,
    min_n: int,
    max_n: int,
    most_recent: bool,
    multiplier: int,
) -> None:
    """Row `i` of `requests`: address and length of the tokens, address and length of the index, budget."""
    results[i] = _draft(
        carray(_int32_pointer(requests[i, 0]), (requests[i, 1],)),
        carray(_int64_pointer(requests[i, 2]), (requests[i, 3],)),
        drafts[i],
        requests[i, 4],
        min_n,
        max_n,
        most_recent,
        multiplier,
    )


# Two loops around one body: numba's cache does not tell a function compiled with `parallel` from the same without.
@njit(cache=True)
def draft_serial(
    requests: Int64Array,
    drafts: Int32Array,
    results: Int64Array,
    min_n: int,
    max_n: int,
    most_recent: bool,
    multiplier: int,
) -> None:
    for i in range(len(requests)):
        _draft_at(i, requests, drafts, results, min_n, max_n, most_recent, multiplier)


@njit(cache=True, parallel=True)
def draft_parallel(
    requests: Int64Array,
    drafts: Int32Array,
    results: Int64Array,
    min_n: int,
    max_n: int,
    most_recent: bool,
    multiplier: int,
) -> None:
    for i in prange(len(requests)):
        _draft_at(i, requests, drafts, results, min_n, max_n, most_recent, multiplier)


@njit(cache=True)
def rehash(old: Int64Array, new: Int64Array, num_tables: int) -> None:
    """Move every entry to larger tables. Entries of one table are distinct, so no tokens need comparing."""
    old_capacity = (len(old) - HEADER) // num_tables
    capacity = (len(new) - HEADER) // num_tables
    new[:HEADER] = old[:HEADER]
    for table in range(num_tables):
        base = HEADER + table * capacity
        for index in range(old_capacity):
            entry = old[HEADER + table * old_capacity + index]
            if entry != 0:
                slot = (entry >> 32) & (capacity - 1)
                while new[base + slot] != 0:
                    slot = (slot + 1) & (capacity - 1)
                new[base + slot] = entry

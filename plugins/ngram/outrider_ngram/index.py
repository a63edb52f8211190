"""The index of each context, and drafting from a batch of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .kernels import HEADER, NUM_INDEXED, Int32Array, Int64Array, draft_parallel, draft_serial, rehash

_MIN_CAPACITY = 64
# Waking the other threads costs about as much as indexing this many tokens.
_PARALLEL_FROM_TOKENS = 2048


class NgramIndex:
    """The tables of one context; what they hold follows from the tokens that `draft_batch` is given with them."""

    __slots__ = ("_num_tables", "address", "buffer", "capacity")

    def __init__(self, num_tables: int, num_tokens: int) -> None:
        """Make empty tables, `num_tables` many, with room for a context of `num_tokens`."""
        self._num_tables = num_tables
        self._allocate(num_tokens)

    def reserve(self, num_tokens: int) -> None:
        """Make room for a context of `num_tokens`; the tables stay at most half full."""
        if 2 * num_tokens > self.capacity:
            old = self.buffer
            self._allocate(num_tokens)
            rehash(old, self.buffer, self._num_tables)

    @property
    def num_indexed(self) -> int:
        """Every n-gram that ends before this position is in the tables."""
        return int(self.buffer[NUM_INDEXED])

    def _allocate(self, num_tokens: int) -> None:
        self.capacity = max(_MIN_CAPACITY, 1 << (2 * num_tokens - 1).bit_length())
        self.buffer: Int64Array = np.zeros(HEADER + self._num_tables * self.capacity, dtype=np.int64)
        self.address: int = self.buffer.ctypes.data


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """What is looked up in every context.

    Attributes:
        min_n, max_n: shortest and longest suffix, in tokens.
        most_recent: continue the most recent occurrence, not the earliest. An index serves one choice only.
        multiplier: base of the rolling hash, below 2**63.
    """

    min_n: int
    max_n: int
    most_recent: bool
    multiplier: int

    @property
    def num_tables(self) -> int:
        """One per length."""
        return self.max_n - self.min_n + 1


@dataclass(frozen=True, slots=True)
class Drafts:
    """What `draft_batch` found.

    Attributes:
        token_ids: `[B, max(budgets)]`; row `i` is defined up to `lengths[i]`.
        lengths: `[B]`; 0: no match.
        probes: `[B]`; table slots looked at, the unit in which the work of a step is counted.
    """

    token_ids: Int32Array
    lengths: Int64Array
    probes: Int64Array


def draft_batch(
    contexts: Sequence[Int32Array],
    indexes: Sequence[NgramIndex],
    budgets: Sequence[int],
    lookup: Lookup,
    *,
    parallel: bool | None = None,
) -> Drafts:
    """Bring the indexes of `B` contexts up to date and draft from each.

    Args:
        contexts: `B` contiguous arrays of at least one token id; they are only read.
        indexes: the index of each context, with room reserved for it. An index of some other context is rebuilt.
        budgets: most tokens to draft for each context, at least 1.
        parallel: use all threads; None: if there is enough to do.
    """
    rows = [
        (context.ctypes.data, len(context), index.address, len(index.buffer), budget)
        for context, index, budget in zip(contexts, indexes, budgets, strict=True)
    ]
    if parallel is None:
        num_unseen = sum(
            len(context) - index.num_indexed for context, index in zip(contexts, indexes, strict=True)
        )
        parallel = len(rows) > 1 and num_unseen >= _PARALLEL_FROM_TOKENS
    drafts = np.empty((len(rows), max(budgets)), dtype=np.int32)
    results = np.empty((len(rows), 2), dtype=np.int64)
    kernel = draft_parallel if parallel else draft_serial
    kernel(
        np.array(rows, dtype=np.int64),
        drafts,
        results,
        lookup.min_n,
        lookup.max_n,
        lookup.most_recent,
        lookup.multiplier,
    )
    return Drafts(drafts, results[:, 0], results[:, 1])

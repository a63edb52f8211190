"""What a decoding step of the proposer costs, by length of context: `python benchmarks/step_cost.py`.

One request at a time grows by one token a step; also shown: a batch, and indexing a whole prompt at once. For
comparison, `rescan` is a search through the context in numba, as an engine without an index does it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from numba import njit
from outrider_ngram.index import Lookup, NgramIndex, draft_batch

LOOKUP = Lookup(min_n=2, max_n=4, most_recent=True, multiplier=0x9E3779B97F4A7C1)
BUDGET = 4


def text(num_tokens: int) -> npt.NDArray[np.int32]:
    """Tokens with a natural language's distribution of frequencies (Zipf), so that n-grams repeat."""
    return np.minimum(np.random.default_rng(0).zipf(1.3, num_tokens), 49_151).astype(np.int32)


@njit
def rescan(tokens: npt.NDArray[np.int32], min_n: int, max_n: int) -> int:
    """Where the text after the latest longest match begins; 0: none."""
    newest, start, longest = len(tokens) - 1, 0, min_n - 1
    for last in range(newest - 1, -1, -1):
        n = 0
        while n < max_n and n <= last and tokens[last - n] == tokens[newest - n]:
            n += 1
        if n > longest:
            start, longest = last + 1, n
    return start


class Decoder:
    """`batch` requests with the same text, whose first `context` tokens are indexed."""

    def __init__(self, tokens: npt.NDArray[np.int32], context: int, batch: int) -> None:
        self.tokens = tokens
        self.indexes = [NgramIndex(LOOKUP.num_tables, context) for _ in range(batch)]
        self(context)

    def __call__(self, end: int) -> None:
        """Draft after the first `end` tokens."""
        for index in self.indexes:
            index.reserve(end)
        draft_batch(
            [self.tokens[:end]] * len(self.indexes), self.indexes, [BUDGET] * len(self.indexes), LOOKUP
        )


def microseconds(step: Callable[[int], object], ends: range) -> float:
    """Median time of a step."""
    seconds = []
    for end in ends:
        start = time.perf_counter()
        step(end)
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds)) * 1e6


def main() -> None:
    """Print one line per context length."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--contexts", type=int, nargs="+", default=[1_000, 4_000, 32_000])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=32)
    args = parser.parse_args()
    tokens = text(max(args.contexts) + args.steps + 2)
    rescan(tokens[:8], LOOKUP.min_n, LOOKUP.max_n)

    print(f"median of {args.steps} steps, {LOOKUP.min_n}- to {LOOKUP.max_n}-grams, {BUDGET} drafted tokens")
    print(f"{'context':>8} {'step':>10} {f'batch of {args.batch}':>14} {'rescan':>10} {'whole prompt':>14}")
    for context in args.contexts:
        ends = range(context + 1, context + 1 + args.steps)
        single = microseconds(Decoder(tokens, context, 1), ends)
        batch = microseconds(Decoder(tokens, context, args.batch), ends)
        search = microseconds(lambda end: rescan(tokens[:end], LOOKUP.min_n, LOOKUP.max_n), ends)
        whole = microseconds(lambda end: Decoder(tokens, end, 1), range(context, context + 9))
        print(f"{context:>8} {single:>8.1f}µs {batch:>12.1f}µs {search:>8.1f}µs {whole:>12.0f}µs")


if __name__ == "__main__":
    main()

"""The index: collisions are harmless, its work does not grow with the context, and it never serves another context."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from outrider_ngram.index import Lookup, NgramIndex, draft_batch


def random_tokens(count: int, vocabulary: int, seed: int = 0) -> npt.NDArray[np.int32]:
    return np.random.default_rng(seed).integers(0, vocabulary, count).astype(np.int32)


def lookup(most_recent: bool = True, multiplier: int = 0x9E3779B97F4A7C1) -> Lookup:
    return Lookup(min_n=2, max_n=4, most_recent=most_recent, multiplier=multiplier)


def grow_and_draft(
    tokens: npt.NDArray[np.int32], index: NgramIndex, first: int, what: Lookup
) -> list[list[int]]:
    """Draft 3 tokens after each of the tokens `first, first + 1, ...`, as decoding would."""
    drafts = []
    for end in range(first, len(tokens) + 1):
        index.reserve(end)
        found = draft_batch([tokens[:end]], [index], [3], what)
        drafts.append(found.token_ids[0, : found.lengths[0]].tolist())
    return drafts


@pytest.mark.parametrize("most_recent", [False, True])
def test_colliding_hashes_change_no_draft(most_recent: bool) -> None:
    # With multiplier 0 all n-grams that begin with the same token have one hash, whatever follows.
    tokens = random_tokens(200, vocabulary=3)
    colliding = grow_and_draft(tokens, NgramIndex(3, 2), 2, lookup(most_recent, multiplier=0))
    mixing = grow_and_draft(tokens, NgramIndex(3, 2), 2, lookup(most_recent))
    assert colliding == mixing
    assert any(colliding)


def test_growing_step_by_step_equals_indexing_at_once() -> None:
    tokens = random_tokens(700, vocabulary=5)
    index = NgramIndex(3, 2)
    by_steps = grow_and_draft(tokens, index, 2, lookup())
    at_once = [
        grow_and_draft(tokens[:end], NgramIndex(3, end), end, lookup())[0]
        for end in range(2, len(tokens) + 1)
    ]
    assert by_steps == at_once
    assert index.num_indexed == len(tokens) - 1


def test_a_step_looks_at_as_many_slots_after_32k_tokens_as_after_1k() -> None:
    tokens = random_tokens(33_000, vocabulary=50)
    probes = {}
    for context in (1_000, 32_000):
        index = NgramIndex(3, context + 500)
        draft_batch([tokens[:context]], [index], [8], lookup())
        steps = [
            int(draft_batch([tokens[:end]], [index], [8], lookup()).probes[0])
            for end in range(context + 1, context + 401)
        ]
        probes[context] = sum(steps) / len(steps)
    # 3 lengths are inserted and up to 3 looked up; a table at most half full answers in about 1.5 probes.
    assert probes[1_000] < 12
    assert probes[32_000] < 12


def test_a_context_indexed_at_once_costs_a_constant_per_token() -> None:
    tokens = random_tokens(32_000, vocabulary=50)
    probes = draft_batch([tokens], [NgramIndex(3, len(tokens))], [8], lookup()).probes[0]
    assert probes < 6 * len(tokens)


def test_asking_twice_changes_nothing() -> None:
    tokens = random_tokens(100, vocabulary=3)
    index = NgramIndex(3, 100)
    first = draft_batch([tokens], [index], [4], lookup())
    again = draft_batch([tokens], [index], [4], lookup())
    assert again.token_ids.tolist() == first.token_ids.tolist()
    assert again.probes[0] <= 9  # nothing was indexed anew


@pytest.mark.parametrize("length", [40, 100, 150])
def test_the_index_of_another_context_is_rebuilt(length: int) -> None:
    index = NgramIndex(3, 200)
    draft_batch([random_tokens(100, vocabulary=2, seed=1)], [index], [4], lookup(most_recent=False))
    other = random_tokens(length, vocabulary=2, seed=2)
    reused = draft_batch([other], [index], [4], lookup(most_recent=False))
    fresh = draft_batch([other], [NgramIndex(3, 200)], [4], lookup(most_recent=False))
    assert (
        reused.token_ids[0, : reused.lengths[0]].tolist() == fresh.token_ids[0, : fresh.lengths[0]].tolist()
    )
    assert reused.lengths[0] == fresh.lengths[0]
    assert index.buffer.nonzero()[0].size == 2 + len({*_grams(other)})


def _grams(tokens: npt.NDArray[np.int32]) -> list[tuple[int, ...]]:
    ids = tokens.tolist()
    return [tuple(ids[end - n : end]) for n in (2, 3, 4) for end in range(n, len(ids))]


def test_a_context_that_was_cut_back_is_rebuilt() -> None:
    tokens = random_tokens(100, vocabulary=2)
    index = NgramIndex(3, 100)
    draft_batch([tokens], [index], [4], lookup())
    cut = draft_batch([tokens[:60]], [index], [4], lookup())
    fresh = draft_batch([tokens[:60]], [NgramIndex(3, 100)], [4], lookup())
    assert cut.token_ids.tolist() == fresh.token_ids.tolist()


def test_threads_change_no_draft() -> None:
    contexts = [random_tokens(300 + 7 * i, vocabulary=4, seed=i) for i in range(9)]
    results = [
        draft_batch(contexts, [NgramIndex(3, 400) for _ in contexts], [5] * 9, lookup(), parallel=parallel)
        for parallel in (False, True)
    ]
    assert results[0].lengths.tolist() == results[1].lengths.tolist() == [5] * 9
    assert results[0].token_ids.tolist() == results[1].token_ids.tolist()
    assert results[0].probes.tolist() == results[1].probes.tolist()

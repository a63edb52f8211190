"""Drafts equal those of a search through the whole context, however the requests grew and were batched."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from outrider_ngram import NgramOptions, NgramProposer
from outrider_ngram.index import Lookup, NgramIndex, draft_batch


def reference(tokens: list[int], budget: int, options: NgramOptions) -> list[int]:
    """The definition, by brute force."""
    for n in range(options.prompt_lookup_max, options.prompt_lookup_min - 1, -1):
        suffix = tokens[len(tokens) - n :]
        starts = [s for s in range(len(tokens) - n) if tokens[s : s + n] == suffix]
        if starts:
            start = (starts[0] if options.choice == "earliest" else starts[-1]) + n
            text = list(tokens)
            for index in range(budget):
                text.append(text[start + index])
            return text[len(tokens) :]
    return []


def proposer(shortest: int, longest: int, choice: str = "most_recent") -> NgramProposer:
    return NgramProposer(
        NgramOptions(prompt_lookup_min=shortest, prompt_lookup_max=longest, choice=choice)  # type: ignore[arg-type]
    )


def ids(*tokens: int) -> npt.NDArray[np.int32]:
    return np.array(tokens, dtype=np.int32)


def test_the_tokens_after_the_match_are_drafted(draft: Any) -> None:
    tokens = ids(1, 2, 3, 4, 5, 9, 1, 2)
    assert draft(proposer(2, 2), {"a": (tokens, 3)}) == {"a": [3, 4, 5]}


def test_the_longest_suffix_wins_over_a_nearer_one(draft: Any) -> None:
    tokens = ids(1, 2, 3, 7, 9, 2, 3, 8, 9, 1, 2, 3)
    assert draft(proposer(1, 3), {"a": (tokens, 1)}) == {"a": [7]}


def test_choice_decides_between_equally_long_matches(draft: Any) -> None:
    tokens = ids(1, 2, 7, 1, 2, 8, 1, 2)
    assert draft(proposer(2, 2, "earliest"), {"a": (tokens, 1)}) == {"a": [7]}
    assert draft(proposer(2, 2, "most_recent"), {"a": (tokens, 1)}) == {"a": [8]}


@pytest.mark.parametrize("choice", ["earliest", "most_recent"])
def test_a_repetition_is_continued_beyond_the_context(draft: Any, choice: str) -> None:
    assert draft(proposer(2, 2, choice), {"a": (ids(5, 6, 5, 6), 5)}) == {"a": [5, 6, 5, 6, 5]}


def test_no_match_and_no_budget_draft_nothing(draft: Any) -> None:
    contexts = {
        "new": (ids(1, 2, 3), 4),
        "spent": (ids(1, 1, 1), 0),
        "short": (ids(1), 4),
        "same": (ids(1, 1, 1), 2),
    }
    assert draft(proposer(1, 4), contexts) == {"new": [], "spent": [], "short": [], "same": [1, 1]}


def test_an_empty_batch_is_fine(draft: Any) -> None:
    assert draft(proposer(1, 4), {}) == {}


@settings(deadline=None)  # the first example may compile
@given(data=st.data())
def test_any_history_of_steps_gives_the_drafts_of_a_full_search(draft: Any, data: st.DataObject) -> None:
    shortest = data.draw(st.integers(1, 4), label="min")
    options = NgramOptions(
        prompt_lookup_min=shortest,
        prompt_lookup_max=shortest + data.draw(st.integers(0, 3), label="max - min"),
        choice=data.draw(st.sampled_from(["earliest", "most_recent"]), label="choice"),
    )
    plugin = NgramProposer(options)
    vocabulary = data.draw(st.integers(1, 4), label="vocabulary")
    tokens = st.lists(st.integers(0, vocabulary - 1), min_size=1, max_size=60)
    texts = {name: data.draw(tokens, label=name) for name in ("a", "b", "c")}
    seen = dict.fromkeys(texts, 1)
    for _ in range(data.draw(st.integers(1, 8), label="steps")):
        batch = data.draw(st.lists(st.sampled_from(sorted(texts)), unique=True), label="batch")
        for name in batch:
            seen[name] = min(len(texts[name]), seen[name] + data.draw(st.integers(0, 20), label="new tokens"))
        budgets = {name: data.draw(st.integers(0, 6), label="budget") for name in batch}
        contexts = {name: (ids(*texts[name][: seen[name]]), budgets[name]) for name in batch}
        assert draft(plugin, contexts) == {
            name: reference(texts[name][: seen[name]], budgets[name], options) for name in batch
        }


def test_token_ids_are_only_read(draft: Any) -> None:
    tokens = ids(1, 2, 3, 1, 2)
    tokens.flags.writeable = False
    assert draft(proposer(2, 2), {"a": (tokens, 1)}) == {"a": [3]}
    assert tokens.tolist() == [1, 2, 3, 1, 2]


@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.int64, np.uint32])
def test_any_integer_type_and_stride_will_do(draft: Any, dtype: Any) -> None:
    tokens = np.array([1, 0, 2, 0, 3, 0, 1, 0, 2, 0], dtype=dtype)[::2]
    assert draft(proposer(2, 2), {"a": (tokens, 1)}) == {"a": [3]}


def test_drafts_of_one_step_survive_the_next() -> None:
    lookup = Lookup(min_n=1, max_n=1, most_recent=True, multiplier=3)
    index = NgramIndex(1, 8)
    first = draft_batch([ids(1, 2, 1)], [index], [1], lookup).token_ids
    draft_batch([ids(1, 2, 1, 1)], [index], [1], lookup)
    assert first.tolist() == [[2]]

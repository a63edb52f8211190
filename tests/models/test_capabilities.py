from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from outrider.api import PluginError, ProposerCapabilities
from outrider.models.capabilities import check_capabilities

TEXTS = [f"t{i}" for i in range(64)]


class Tokenizer:
    def __init__(self, texts: list[str]) -> None:
        self._texts = texts

    def __len__(self) -> int:
        return len(self._texts)

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        assert isinstance(ids, list)
        return [self._texts[i] for i in ids]


def check(texts: list[str] | None = None, num_speculative_tokens: int = 5, **declared: Any) -> None:
    target: Any = SimpleNamespace(num_layers=2, tokenizer=None if texts is None else Tokenizer(texts))
    check_capabilities(
        ProposerCapabilities(**declared),
        target,
        proposer="heads",
        distribution="outrider-heads 1.2",
        num_speculative_tokens=num_speculative_tokens,
    )


def refusal(texts: list[str] | None = None, **declared: Any) -> str:
    with pytest.raises(PluginError) as caught:
        check(texts, **declared)
    message = str(caught.value)
    assert message.startswith("proposer 'heads' (outrider-heads 1.2) cannot draft for this engine: ")
    return message


def test_the_defaults_fit_everything() -> None:
    check()


def test_more_drafts_than_the_proposer_can_make_are_refused_with_both_numbers() -> None:
    assert "at most 2 tokens per request and step, but num_speculative_tokens is 5" in refusal(
        max_draft_tokens=2
    )
    check(max_draft_tokens=5)


def test_a_shorter_context_than_the_targets_is_fine() -> None:
    check(max_positions=16)


def test_a_limit_that_allows_nothing_is_refused() -> None:
    assert "max_positions=0" in refusal(max_positions=0)
    assert "max_draft_tokens=0" in refusal(max_draft_tokens=0)


def test_trees_are_refused() -> None:
    assert "verifies chains only" in refusal(trees=True)


def test_layers_that_do_not_exist_are_refused() -> None:
    check(aux_hidden_layers=(0, 1, 2))
    assert "enter layer 3, but the target has layers 0..1" in refusal(aux_hidden_layers=(0, 3))
    assert "enter layer -1" in refusal(aux_hidden_layers=(-1,))


def test_every_mismatch_is_listed_at_once() -> None:
    message = refusal(trees=True, max_draft_tokens=2)
    assert "at most 2" in message
    assert "trees" in message


@pytest.mark.parametrize(("theirs", "ours"), [(64, 72), (72, 64), (64, 64)])
def test_padding_behind_the_same_vocabulary_does_not_matter(theirs: int, ours: int) -> None:
    padded = [TEXTS + [f"<{side}{i}>" for i in range(8)] for side in ("theirs", "ours")]
    check(padded[1][:ours], vocab=padded[0][:theirs])


def test_a_token_that_means_something_else_is_named_with_both_texts() -> None:
    other = [*TEXTS[:10], "x", *TEXTS[11:]]
    assert "token 10 is 'x' for the proposer and 't10' for the target" in refusal(TEXTS, vocab=other)


def test_a_vocabulary_that_cannot_be_compared_is_refused() -> None:
    assert "has no tokenizer to compare it with" in refusal(None, vocab=TEXTS)

"""Where a request ends, when the step that ends it has more tokens than it needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from outrider.api import SamplingParams
from outrider.engine.commit import commit
from outrider.engine.request import Request
from outrider.metrics.stats import SpecDecodeStats

from .fake_runner import VOCAB_SIZE, oracle
from .harness import TEXTS, Harness, LetterTokenizer, plain

PROMPT = [1, 2, 3]


def count_up(history: Sequence[int], seed: int) -> int:
    """A model without repetition: 4, 5, 6, ... after the prompt."""
    return (history[-1] + 1) % VOCAB_SIZE


def run(k: int, wrong_at: Sequence[int] = (), eos: Sequence[int] = (), **params: Any) -> Harness:
    harness = Harness(
        num_speculative_tokens=k,
        next_token=count_up,
        drafter=oracle(count_up, wrong_at),
        tokenizer=LetterTokenizer(),
    )
    harness.add("r", PROMPT, eos, seed=0, **params)
    harness.run()
    harness.assert_clean()
    return harness


@pytest.mark.parametrize("k", [0, 1, 3, 8])
@pytest.mark.parametrize("offset", range(12))
def test_nothing_follows_an_eos_wherever_in_the_step_it_stands(offset: int, k: int) -> None:
    eos = 4 + offset
    harness = run(k, eos=[eos], max_tokens=30)
    completion = harness.outputs["r"].outputs[0]
    assert completion.token_ids == list(range(4, eos + 1))
    assert (completion.finish_reason, completion.stop_reason) == ("stop", None)
    assert harness.streamed_tokens["r"] == completion.token_ids
    assert completion.text == TEXTS[4:eos]
    assert harness.stats.spec.num_emitted_tokens == offset + 1


@pytest.mark.parametrize(
    ("eos_index", "num_tokens", "reason"),
    [(4, 5, "stop"), (5, 6, "stop"), (6, 6, "length"), (7, 6, "length")],
)
def test_the_first_reason_counts_when_a_step_holds_an_eos_and_the_length_limit(
    eos_index: int, num_tokens: int, reason: str
) -> None:
    request = Request("r", PROMPT, SamplingParams(max_tokens=6), eos_token_ids=[4 + eos_index])
    commit(request, [4, 5, 6], 2, 64, SpecDecodeStats())
    committed = commit(request, [7, 8, 9, 10, 11], 4, 64, SpecDecodeStats())
    assert committed == num_tokens - 3
    assert request.output_token_ids == list(range(4, 4 + num_tokens))
    assert request.finish_reason == reason


@pytest.mark.parametrize("k", [0, 2, 8])
@pytest.mark.parametrize(("max_tokens", "reason"), [(6, "stop"), (5, "stop"), (4, "length")])
def test_stop_and_length_are_told_apart_at_any_draft_length(k: int, max_tokens: int, reason: str) -> None:
    completion = run(k, eos=[8], max_tokens=max_tokens).outputs["r"].outputs[0]
    assert completion.token_ids == [4, 5, 6, 7, 8][:max_tokens]
    assert completion.finish_reason == reason


def test_a_stop_token_id_is_reported_and_its_text_left_out_unless_asked_for() -> None:
    completion = run(8, stop_token_ids=(9,), max_tokens=30).outputs["r"].outputs[0]
    assert (completion.token_ids[-1], completion.stop_reason, completion.text) == (9, 9, "efghi")
    completion = (
        run(8, stop_token_ids=(9,), max_tokens=30, include_stop_str_in_output=True).outputs["r"].outputs[0]
    )
    assert (completion.token_ids[-1], completion.stop_reason, completion.text) == (9, 9, "efghij")


def test_ignore_eos_ignores_only_eos() -> None:
    completion = run(3, eos=[6], stop_token_ids=(9,), ignore_eos=True, max_tokens=30).outputs["r"].outputs[0]
    assert completion.token_ids == [4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("k", [0, 1, 4, 8])
@pytest.mark.parametrize(("min_tokens", "num_tokens"), [(0, 3), (2, 3), (3, 8), (7, 8), (8, 12), (12, 12)])
def test_a_stop_string_counts_only_behind_min_tokens(min_tokens: int, num_tokens: int, k: int) -> None:
    # "fg" is complete with token 3, "kl" with token 8.
    completion = run(k, stop=("fg", "kl"), min_tokens=min_tokens, max_tokens=12).outputs["r"].outputs[0]
    assert len(completion.token_ids) == num_tokens
    assert completion.text == {3: "e", 8: "efghij", 12: "efghijklmnop"}[num_tokens]


@pytest.mark.parametrize("k", [0, 1, 4, 8])
@pytest.mark.parametrize("min_tokens", [0, 1, 2, 3, 4, 7])
def test_a_stop_token_is_not_even_sampled_before_min_tokens(min_tokens: int, k: int) -> None:
    params = {"max_tokens": 12, "min_tokens": min_tokens, "stop_token_ids": (6,)}
    truth = plain(PROMPT, SamplingParams(**params), 0, max_len=64, next_token=count_up)
    completion = run(k, **params).outputs["r"].outputs[0]
    assert completion.token_ids == truth.token_ids
    assert (6 in completion.token_ids) == (min_tokens <= 2)


def test_a_stop_string_among_drafts_takes_the_later_drafts_out_of_everything() -> None:
    # Tokens 4, then a step of 5..9: the stop string is complete at 7.
    harness = run(4, stop=("gh",), max_tokens=30)
    output = harness.outputs["r"]
    completion = output.outputs[0]
    assert completion.token_ids == [4, 5, 6, 7]
    assert (completion.text, completion.finish_reason, completion.stop_reason) == ("ef", "stop", "gh")
    assert completion.token_origins == ["sampled", "accepted", "accepted", "accepted"]
    assert output.metrics.num_draft_tokens == 4
    assert output.metrics.num_accepted_tokens == 3
    assert output.metrics.num_accepted_tokens_per_pos == [1, 1, 1, 0]
    assert output.metrics.num_emitted_tokens == 4
    # Nothing behind the end is findable: a longer prompt hits only blocks of committed tokens.
    harness.add("again", [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], max_tokens=1, seed=0)
    assert harness.run()["again"].num_cached_tokens == 4


def test_a_stop_string_never_shows_in_the_stream_not_even_its_beginning() -> None:
    harness = Harness(next_token=count_up, tokenizer=LetterTokenizer())
    harness.add("r", PROMPT, stop=("ghi", "fx"), max_tokens=30, seed=0)
    seen = []
    while harness.engine.has_unfinished_requests():
        for output in harness.step():
            seen.append(output.outputs[0].text)
    assert seen == ["e", "e", "ef", "ef", "ef"]
    assert harness.outputs["r"].outputs[0].token_ids == [4, 5, 6, 7, 8]


def test_held_back_text_comes_out_when_the_stop_string_does_not() -> None:
    harness = Harness(next_token=count_up, tokenizer=LetterTokenizer())
    harness.add("r", PROMPT, stop=("fgx",), max_tokens=4, seed=0)
    seen = []
    while harness.engine.has_unfinished_requests():
        for output in harness.step():
            seen.append((output.outputs[0].text, output.outputs[0].new_text))
    assert seen == [("e", "e"), ("e", ""), ("e", ""), ("efgh", "fgh")]


def test_a_request_that_ends_by_length_shows_what_was_held_back() -> None:
    completion = run(3, stop=("ghx",), max_tokens=4).outputs["r"].outputs[0]
    assert (completion.text, completion.finish_reason) == ("efgh", "length")


def test_tokens_know_where_they_came_from() -> None:
    # Position 3 is sampled; 4..6 drafted; then 7..9 drafted with a mistake at 8; then 9..11 drafted.
    completion = run(3, wrong_at=[8], max_tokens=10).outputs["r"].outputs[0]
    assert completion.token_origins == [
        "sampled",
        *["accepted", "accepted", "accepted", "bonus"],
        "recovered",
        *["accepted", "accepted", "accepted", "bonus"],
    ]


def test_commit_refuses_more_tokens_than_drafts_and_a_bonus() -> None:
    request = Request("r", PROMPT, SamplingParams())
    with pytest.raises(ValueError, match="3 tokens for 1 drafts"):
        commit(request, [4, 5, 6], 1, 64, SpecDecodeStats())
    assert request.token_ids == PROMPT

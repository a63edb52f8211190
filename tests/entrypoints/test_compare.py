"""Where two outputs part."""

from __future__ import annotations

from typing import Any

import pytest

from outrider.engine.request_output import CompletionOutput, RequestMetrics, RequestOutput
from outrider.entrypoints.compare import describe_difference, first_difference
from outrider.testing.tiny_models import character_tokenizer


def output(token_ids: list[int], finish_reason: str = "length") -> RequestOutput:
    completion = CompletionOutput(finish_reason=finish_reason, _token_ids=token_ids, _stop=len(token_ids))
    return RequestOutput(
        request_id="0",
        prompt=None,
        prompt_token_ids=[1],
        outputs=[completion],
        finished=True,
        metrics=RequestMetrics(),
    )


@pytest.mark.parametrize(
    ("ours", "theirs", "index"),
    [
        ([], [], None),
        ([1, 2], [1, 2], None),
        ([1, 2], [1, 3], 1),
        ([1], [1, 3], 1),
        ([1, 3], [1], 1),
        ([4], [], 0),
    ],
)
def test_first_difference(ours: list[int], theirs: list[int], index: int | None) -> None:
    assert first_difference(ours, theirs) == index


@pytest.mark.parametrize(
    ("ours", "plain", "words"),
    [
        (output([0, 1]), output([0, 2]), "token 1: 'b' (token 1) with x, 'c' (token 2) in plain decoding"),
        (output([0]), output([0, 2]), "token 1: no token with x, 'c' (token 2) in plain decoding"),
        (output([0], "stop"), output([0]), "finish reason 'stop' with x, 'length' in plain decoding"),
    ],
)
def test_a_difference_is_told_with_both_sides(ours: Any, plain: Any, words: str) -> None:
    sentence = describe_difference("x", ours, plain, character_tokenizer())
    assert sentence is not None
    assert words in sentence


def test_identical_outputs_have_nothing_to_tell() -> None:
    assert describe_difference("x", output([0, 1]), output([0, 1]), None) is None

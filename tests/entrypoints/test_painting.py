"""Each character is painted like the token it came from."""

from __future__ import annotations

from typing import Any

import pytest
from rich.text import Text

from outrider.api import SamplingParams
from outrider.engine.commit import commit
from outrider.engine.detokenizer import Detokenizer
from outrider.engine.request import Request
from outrider.engine.request_output import RequestOutput
from outrider.entrypoints.painting import ORIGINS, TokenPainter, legend
from outrider.metrics.stats import SpecDecodeStats
from outrider.testing.tiny_models import ALPHABET, character_tokenizer

STYLE_TO_ORIGIN = {style: origin for origin, (style, _) in ORIGINS.items()}


class Pieces:
    """A tokenizer whose tokens are bytes, so that a character may take several."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        return bytes(token_ids).decode("utf-8", errors="replace")


def paint(
    tokenizer: Any, steps: list[tuple[list[int], int]], **params: Any
) -> tuple[Text, str, TokenPainter]:
    """Commit the steps (tokens, number of drafts) and paint the outputs, one after the other."""
    request = Request("0", [1], SamplingParams(max_tokens=99, **params))
    request.detokenizer = Detokenizer(tokenizer, stop=request.sampling_params.stop)
    painter = TokenPainter(tokenizer)
    painted = Text()
    output = None
    for sampled, num_drafts in steps:
        num_committed = commit(request, sampled, num_drafts, 1000, SpecDecodeStats())
        output = RequestOutput.of(request, num_committed)
        painted.append_text(painter.paint(output.outputs[0]))
    assert output is not None
    return painted, output.outputs[0].text, painter


def origins(painted: Text) -> list[str]:
    """Origin of each character, read off its style."""
    styles = [""] * len(painted.plain)
    for span in painted.spans:
        styles[span.start : span.end] = [str(span.style)] * (span.end - span.start)
    return [STYLE_TO_ORIGIN[style] for style in styles]


def ids(text: str) -> list[int]:
    return [ALPHABET.index(character) for character in text]


def test_every_token_has_the_colour_of_its_origin() -> None:
    steps = [(ids("a"), 0), (ids("bcd"), 2), (ids("ef"), 3)]
    painted, text, painter = paint(character_tokenizer(), steps)
    assert painted.plain == text == "abcdef"
    assert origins(painted) == ["sampled", "accepted", "accepted", "bonus", "accepted", "recovered"]
    assert painter.counts == {"sampled": 1, "accepted": 3, "bonus": 1, "recovered": 1}


def test_text_behind_a_stop_string_is_not_painted() -> None:
    steps = [(ids("ab"), 1), (ids("cxy"), 2), (ids("zq"), 1)]
    painted, text, _ = paint(character_tokenizer(), steps, stop=("xyz",))
    assert painted.plain == text == "abc"
    assert origins(painted) == ["accepted", "bonus", "accepted"]


def test_held_back_text_keeps_its_colours_when_it_comes() -> None:
    steps = [(ids("ax"), 1), (ids("b"), 0)]
    painted, text, _ = paint(character_tokenizer(), steps, stop=("xyz",))
    assert painted.plain == text == "axb"
    assert origins(painted) == ["accepted", "bonus", "sampled"]


def test_a_character_of_several_tokens_is_painted_like_the_last() -> None:
    first, second = "é".encode()
    painted, text, _ = paint(Pieces(), [([first], 0), ([second, 65], 1)])
    assert painted.plain == text == "éA"
    assert origins(painted) == ["accepted", "bonus"]


@pytest.mark.parametrize("origin", list(ORIGINS))
def test_the_legend_counts_every_origin(origin: str) -> None:
    assert f"{origin}  7 tokens" in legend({origin: 7}).plain

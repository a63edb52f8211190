"""Options have vLLM's names and defaults, and say what is wrong with a value."""

from __future__ import annotations

from typing import Any

import pytest
from outrider_ngram import NgramOptions
from pydantic import ValidationError


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (1, 4)),
        ({"prompt_lookup_max": 4}, (4, 4)),
        ({"prompt_lookup_min": 2}, (2, 2)),
        ({"prompt_lookup_min": None, "prompt_lookup_max": 3}, (3, 3)),
        ({"prompt_lookup_min": 2, "prompt_lookup_max": 6}, (2, 6)),
    ],
)
def test_a_missing_length_equals_the_other(given: dict[str, Any], expected: tuple[int, int]) -> None:
    options = NgramOptions(**given)
    assert (options.prompt_lookup_min, options.prompt_lookup_max) == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"prompt_lookup_min": 5, "prompt_lookup_max": 2},
            "prompt_lookup_min=5 is greater than prompt_lookup_max=2",
        ),
        ({"prompt_lookup_min": 0}, "prompt_lookup_min"),
        ({"prompt_lookup_max": -1}, "prompt_lookup_max"),
        ({"prompt_lookup_max": 2.5}, "prompt_lookup_max"),
        ({"choice": "latest"}, "'earliest' or 'most_recent'"),
        ({"prompt_lookup_maxx": 4}, "prompt_lookup_maxx"),
    ],
)
def test_a_bad_value_is_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        NgramOptions(**given)


def test_the_most_recent_match_is_the_default() -> None:
    assert NgramOptions().choice == "most_recent"  # measured: see the README

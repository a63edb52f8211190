"""Hints for misspelt names."""

import pytest

from outrider.config.hints import did_you_mean, listed, nearest

NAMES = ("block_size", "max_num_seqs", "model")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("blok_size", "block_size"),
        ("BLOCK-SIZE", "block_size"),
        ("max_seqs", "max_num_seqs"),
        ("zzz", None),
        ("", None),
    ],
)
def test_nearest(name, expected):
    assert nearest(name, NAMES) == expected


def test_sentences():
    assert did_you_mean("modl", NAMES) == "; did you mean 'model'?"
    assert did_you_mean("zzz", NAMES) == ""
    assert did_you_mean("model", NAMES) == ""
    assert listed(["b", "a"]) == "a, b"
    assert listed([]) == "none"

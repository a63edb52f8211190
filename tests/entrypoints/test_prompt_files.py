"""Files of prompts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outrider.api import ConfigError
from outrider.entrypoints.built_in_prompts import BUILT_IN_PROMPTS
from outrider.entrypoints.prompt_files import FilePrompt, limit_per_category, read_prompts


def test_a_text_file_has_a_prompt_per_line_that_is_not_empty(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("one\n\n  \ntwo words\n")
    assert [(p.question_id, p.text) for p in read_prompts(file)] == [("1", "one"), ("4", "two words")]


def test_spec_bench_gives_the_first_turn(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(
        json.dumps({"question_id": 81, "category": "writing", "turns": ["first", "second"]})
        + "\n"
        + json.dumps({"prompt": "alone"})
        + "\n"
    )
    assert read_prompts(file) == [FilePrompt("81", "writing", "first"), FilePrompt("2", "all", "alone")]


@pytest.mark.parametrize(
    "line", ["no json", "[]", "5", "{}", '{"turns": []}', '{"turns": [5]}', '{"prompt": null}']
)
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "fine"}\n' + line + "\n")
    with pytest.raises(ConfigError, match="line 2"):
        read_prompts(file)


def test_a_file_that_is_missing_or_empty_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.txt"):
        read_prompts(tmp_path / "nothing.txt")
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(ConfigError, match="no prompt"):
        read_prompts(tmp_path / "empty.txt")


def test_the_limit_counts_each_category() -> None:
    prompts = [FilePrompt(str(i), category, "text") for i, category in enumerate("aababb")]
    assert [p.question_id for p in limit_per_category(prompts, 2)] == ["0", "1", "2", "4"]
    assert limit_per_category(prompts, None) == prompts


def test_the_built_in_prompts_have_names_of_their_own() -> None:
    assert len({prompt.question_id for prompt in BUILT_IN_PROMPTS}) == len(BUILT_IN_PROMPTS)

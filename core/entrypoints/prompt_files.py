"""Prompts for the command line, from a file."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..api import ConfigError


@dataclass(frozen=True, slots=True)
class FilePrompt:
    """One prompt.

    Attributes:
        question_id: names it in reports.
        category: what kind of task it is; limits and reports go by it.
        text: the user's words (of a dialogue, the first turn).
    """

    question_id: str
    category: str
    text: str


def read_prompts(path: str | Path) -> list[FilePrompt]:
    """Read `.jsonl` in Spec-Bench's form (an object a line: `turns`, `question_id`, `category`; `prompt` may stand for
    `turns`), or any other text file, in which each line that is not empty is a prompt.

    Raises:
        ConfigError: the file cannot be read, a line is not in this form, or there is no prompt in it.
    """
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"prompts file {str(path)!r} cannot be read: {error}") from error
    filled = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not filled:
        raise ConfigError(f"prompts file {str(path)!r} has no prompt in it")
    if path.suffix != ".jsonl":
        return [FilePrompt(str(number), "all", line) for number, line in filled]
    return [_from_json(line, number, path) for number, line in filled]


def limit_per_category(prompts: Sequence[FilePrompt], limit: int | None) -> list[FilePrompt]:
    """The first `limit` prompts of each category, in the order of `prompts`; None: all."""
    if limit is None:
        return list(prompts)
    seen: Counter[str] = Counter()
    kept = []
    for prompt in prompts:
        seen[prompt.category] += 1
        if seen[prompt.category] <= limit:
            kept.append(prompt)
    return kept


def _from_json(line: str, number: int, path: Path) -> FilePrompt:
    try:
        entry: Any = json.loads(line)
        text = entry["turns"][0] if "turns" in entry else entry["prompt"]
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise ConfigError(
            f"prompts file {str(path)!r}, line {number}: expected a JSON object with `turns` (a list of texts) or "
            f"`prompt` (a text): {error!r}"
        ) from error
    if not isinstance(text, str):
        raise ConfigError(f"prompts file {str(path)!r}, line {number}: the prompt is not a text: {text!r}")
    return FilePrompt(str(entry.get("question_id", number)), str(entry.get("category", "all")), text)

"""Colours that show where each token of an output came from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from rich.text import Text

from ..engine.detokenizer import Detokenizer
from ..engine.request_output import CompletionOutput

ORIGINS: Mapping[str, tuple[str, str]] = {
    "accepted": ("black on green", "drafted, and what the model says"),
    "recovered": ("black on yellow", "the model's own, in place of a wrong draft"),
    "bonus": ("black on cyan", "the model's own, behind a draft that was all right"),
    "sampled": ("", "no draft in that step"),
}
"""Per token origin: the rich style and the words of the legend."""


class TokenPainter:
    """Styled text of one request, as its output grows.

    A character that takes several tokens is painted like the last of them. Special tokens are not shown.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.counts: Counter[str] = Counter()
        self._detokenizer = Detokenizer(tokenizer)
        # Text that the tokens have, but that the output does not show yet: the beginning of a stop string, perhaps.
        self._held = Text()
        self._num_shown = 0

    def paint(self, completion: CompletionOutput) -> Text:
        """Return the styled text of what `completion` has and the completions painted before it had not.

        Args:
            completion: the next output of the stream; none may be left out.
        """
        detokenizer = self._detokenizer
        num_new = len(completion.new_token_ids)
        origins = completion.token_origins[len(completion.token_ids) - num_new :]
        for token_id, origin in zip(completion.new_token_ids, origins, strict=True):
            self.counts[origin] += 1
            start = len(detokenizer.text)
            detokenizer.append(token_id)
            self._held.append(detokenizer.text[start:], ORIGINS[origin][0])
        if completion.finish_reason is not None:
            start = len(detokenizer.text)
            detokenizer.release(True)
            self._held.append(detokenizer.text[start:])
        num_new_chars = len(completion.text) - self._num_shown
        shown, self._held = self._held[:num_new_chars], self._held[num_new_chars:]
        self._num_shown = len(completion.text)
        return shown


def legend(counts: Mapping[str, int]) -> Text:
    """One line per origin: its colour, how many tokens came from there, and what it means."""
    lines = Text()
    for origin, (style, meaning) in ORIGINS.items():
        lines.append(f" {origin} ", style or "bold")
        lines.append(f" {counts.get(origin, 0)} tokens: {meaning}\n")
    return lines

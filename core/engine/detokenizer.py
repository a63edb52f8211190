"""Token ids to text, one token at a time, and the search for stop strings in it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

REPLACEMENT = "\ufffd"


class Tokenizer(Protocol):
    """What the engine needs of a tokenizer; those of transformers and of tokenizers have it."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        """Return the text of the tokens."""
        ...


class CachedTokenizer:
    """A tokenizer that remembers what it decoded: the same few tokens in a row come again and again."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._decode = lru_cache(maxsize=2**15)(
            lambda token_ids, skip: tokenizer.decode(list(token_ids), skip_special_tokens=skip)
        )

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        """Return the text of the tokens."""
        return self._decode(tuple(token_ids), skip_special_tokens)


class Detokenizer:
    """The text of one request's output, in step with its tokens.

    A token's text depends on its neighbours (leading spaces, characters split over tokens), so each token is decoded
    together with the last tokens that gave text, and only what it adds is kept. The text that is finally released is
    what the tokenizer makes of all appended tokens at once. (One exception: some tokenizers whose tokens stand for
    single bytes let an invalid byte spoil the characters before it, too. Those stay, since they may have been shown.)

    Args:
        stop: stop strings; the text never contains one, unless `include_stop_str`, then it ends with it.
        include_stop_str: keep the stop string at the end of the text.

    Attributes:
        text: all complete characters so far.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special_tokens: bool = True,
        stop: Sequence[str] = (),
        include_stop_str: bool = False,
    ) -> None:
        self.text = ""
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._stop = tuple(stop)
        self._include_stop_str = include_stop_str
        # Tokens whose text is already in `text` and serves as left context, then tokens that are not.
        self._window: list[int] = []
        self._num_context = 0
        self._num_released = 0

    def append(self, token_id: int, *, look_for_stop: bool = True) -> str | None:
        """Add a token's text. Return the stop string that this completes, after cutting the text there, or None.

        If several are completed, the one that ends first counts; of those that end together, the longest.
        """
        self._window.append(token_id)
        context, text = self._decode_window()
        if len(text) <= len(context) or text.endswith(REPLACEMENT):
            return None  # no text of its own, or an incomplete character
        return self._add(text[len(context) :], look_for_stop)

    def release(self, final: bool) -> tuple[str, str]:
        """Return (all text that is safe to show, its part that was not yet released).

        Text that may be the beginning of a stop string is not safe, and the bytes of an incomplete character are no
        text yet, unless no token follows (`final`).
        """
        if final:
            context, text = self._decode_window()
            self._add(text[len(context) :], False)
        held = 0 if final or self._include_stop_str else self._num_possible_stop_chars()
        text = self.text[: len(self.text) - held] if held else self.text
        new_text = text[self._num_released :]
        self._num_released = len(text)
        return text, new_text

    def _decode_window(self) -> tuple[str, str]:
        skip = self._skip_special_tokens
        context = self._window[: self._num_context]
        return (
            self._tokenizer.decode(context, skip_special_tokens=skip) if context else "",
            self._tokenizer.decode(self._window, skip_special_tokens=skip) if self._window else "",
        )

    def _add(self, piece: str, look_for_stop: bool) -> str | None:
        num_old_chars = len(self.text)
        self.text += piece
        del self._window[: self._num_context]
        self._num_context = len(self._window)
        return self._cut_at_stop(num_old_chars) if look_for_stop and self._stop else None

    def _cut_at_stop(self, num_old_chars: int) -> str | None:
        matches: list[tuple[int, int, str]] = []
        for stop in self._stop:
            # A match must end in the new text, but may begin before it.
            begin = self.text.find(stop, max(0, num_old_chars - len(stop) + 1))
            if begin >= 0:
                matches.append((begin + len(stop), begin, stop))
        if not matches:
            return None
        end, begin, stop = min(matches)
        self.text = self.text[: end if self._include_stop_str else begin]
        return stop

    def _num_possible_stop_chars(self) -> int:
        for length in range(min(len(self.text), max(map(len, self._stop), default=1) - 1), 0, -1):
            end = self.text[-length:]
            if any(stop.startswith(end) for stop in self._stop if len(stop) > length):
                return length
        return 0

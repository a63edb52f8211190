"""Text that grows with the tokens and ends as the tokenizer's own."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

from outrider.engine.detokenizer import Detokenizer

CORPUS = [
    "hello world, hello there",
    "größer, höher, weiter",
    "日本語のテキスト",
    "🙂🙂🙃 emoji 👩‍👩‍👧",
    "a  b   c",
] * 5


def byte_level() -> Tokenizer:
    """As most models have it: a token may be any piece of a character's bytes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=330, initial_alphabet=alphabet, special_tokens=["<s>", "</s>"])
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def byte_fallback() -> Tokenizer:
    """As the Llama family had it: a space is part of a word's first token, unknown characters are bytes."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "▁hello", "▁w", "or", "ld", "h", "e", "l", "o", ",", "é", "▁▁"]
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, [], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return tokenizer


TOKENIZERS: dict[str, Any] = {
    "byte_level": byte_level(),
    "byte_level_transformers": PreTrainedTokenizerFast(
        tokenizer_object=byte_level(), bos_token="<s>", eos_token="</s>"
    ),
    "byte_fallback": byte_fallback(),
}


def tokens(name: str) -> st.SearchStrategy[list[int]]:
    """Any tokens, but for byte fallback only whole characters: a bad byte there takes back the good ones before it."""
    tokenizer = TOKENIZERS[name]
    if name != "byte_fallback":
        size = (
            len(tokenizer) if isinstance(tokenizer, PreTrainedTokenizerFast) else tokenizer.get_vocab_size()
        )
        return st.lists(st.integers(0, size - 1), max_size=24)
    words = st.integers(0, 2) | st.integers(3 + 256, tokenizer.get_vocab_size() - 1)
    characters = st.characters(codec="utf-8").map(lambda char: [3 + byte for byte in char.encode()])
    return st.lists(words.map(lambda word: [word]) | characters, max_size=12).map(
        lambda parts: list(chain(*parts))
    )


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_tokens_give_the_tokenizers_own_text(name: str, skip: bool, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[name]
    ids = data.draw(tokens(name))
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip)
    streamed = ""
    for token_id in ids:
        assert detokenizer.append(token_id) is None
        streamed += detokenizer.release(False)[1]
    text, rest = detokenizer.release(True)
    assert streamed + rest == text == (tokenizer.decode(ids, skip_special_tokens=skip) if ids else "")


@pytest.mark.parametrize("text", ["🙂🙃", "größer 日本", "a  b", "héllo"])
def test_a_character_comes_out_when_its_last_byte_is_there(text: str) -> None:
    tokenizer = TOKENIZERS["byte_level"]
    words = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(text)
    ids = [tokenizer.token_to_id(byte) for word, _ in words for byte in word]
    detokenizer = Detokenizer(tokenizer)
    for index, token_id in enumerate(ids):
        detokenizer.append(token_id)
        shown = detokenizer.release(False)[0]
        assert shown == text.encode()[: index + 1].decode(errors="ignore")


def test_incomplete_bytes_at_the_end_are_shown_as_the_tokenizer_shows_them() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    ids = [tokenizer.token_to_id("a"), tokenizer.token_to_id("ð"), tokenizer.token_to_id("Ł")]
    detokenizer = Detokenizer(tokenizer)
    for token_id in ids:
        detokenizer.append(token_id)
    assert detokenizer.release(False) == ("a", "a")
    assert detokenizer.release(True) == ("a\ufffd", "\ufffd")
    assert detokenizer.release(True) == ("a\ufffd", "")


class Pieces:
    """Token `i` is the `i`-th piece of text."""

    def __init__(self, *pieces: str) -> None:
        self.pieces = pieces

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        return "".join(self.pieces[token_id] for token_id in token_ids)


def stopped(pieces: list[str], *stop: str, include: bool = False) -> tuple[str | None, str, list[str]]:
    """Return (stop string found, final text, all texts shown on the way)."""
    detokenizer = Detokenizer(Pieces(*pieces), stop=stop, include_stop_str=include)
    shown: list[str] = []
    found = None
    for token_id in range(len(pieces)):
        found = detokenizer.append(token_id)
        shown.append(detokenizer.release(found is not None)[0])
        if found is not None:
            break
    return found, detokenizer.release(True)[0], shown


def test_a_stop_string_is_found_inside_a_piece_and_across_pieces() -> None:
    assert stopped(["hello wor", "ld"], "lo w") == ("lo w", "hel", ["hel"])
    assert stopped(["hel", "lo w", "orld"], "low", "lo wo") == ("lo wo", "hel", ["he", "hel", "hel"])
    assert stopped(["a", "b", "c", "d"], "abcd") == ("abcd", "", ["", "", "", ""])


def test_the_stop_string_is_kept_if_asked_for_and_nothing_behind_it() -> None:
    assert stopped(["hello wor", "ld"], "lo w", include=True) == ("lo w", "hello w", ["hello w"])
    assert stopped(["he", "llo"], "el", include=True) == ("el", "hel", ["he", "hel"])


def test_the_stop_string_that_ends_first_counts_and_of_those_the_longest() -> None:
    assert stopped(["abcdef"], "bcde", "cd")[:2] == ("cd", "ab")
    assert stopped(["abcdef"], "cd", "bcd")[:2] == ("bcd", "a")


def test_text_is_held_back_no_longer_than_it_could_be_a_stop_string() -> None:
    assert stopped(["a", "ab", "x", "ab"], "abab")[2] == ["", "a", "aabx", "aabx"]
    assert stopped(["x", "x", "xy"], "xxy") == ("xxy", "x", ["", "", "x"])


def test_a_stop_string_that_was_not_looked_for_stays_in_the_text() -> None:
    detokenizer = Detokenizer(Pieces("a", "b", "c", "ab"), stop=["ab"])
    assert detokenizer.append(0, look_for_stop=False) is None
    assert detokenizer.append(1, look_for_stop=False) is None
    assert detokenizer.append(2) is None
    assert detokenizer.append(3) == "ab"
    assert detokenizer.release(True)[0] == "abc"


def test_a_stop_string_begun_while_it_was_not_looked_for_counts_when_it_ends() -> None:
    detokenizer = Detokenizer(Pieces("a", "b"), stop=["ab"])
    detokenizer.append(0, look_for_stop=False)
    assert detokenizer.release(False) == ("", "")
    assert detokenizer.append(1) == "ab"
    assert detokenizer.release(True) == ("", "")

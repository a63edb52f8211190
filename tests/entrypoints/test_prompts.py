"""What counts as a prompt, and what is said about what does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from outrider.api import RequestError
from outrider.entrypoints.prompts import has_chat_template, tokenize_conversation, tokenize_prompt
from outrider.testing.tiny_models import ALPHABET, character_tokenizer


def ids(text: str) -> list[int]:
    return [ALPHABET.index(character) for character in text]


def test_a_text_and_its_mapping_are_the_same_prompt() -> None:
    tokenizer = character_tokenizer()
    assert tokenize_prompt("abc", tokenizer) == tokenize_prompt({"prompt": "abc"}, tokenizer)
    assert tokenize_prompt("abc", tokenizer).token_ids == ids("abc")
    assert tokenize_prompt("abc", tokenizer).text == "abc"


@pytest.mark.parametrize("values", [[3, 1], (3, 1), np.array([3, 1], np.int32), torch.tensor([3, 1])])
def test_token_ids_come_as_any_sequence_of_integers(values: Any) -> None:
    prompt = tokenize_prompt({"prompt_token_ids": values}, None)
    assert prompt.token_ids == [3, 1]
    assert {type(token_id) for token_id in prompt.token_ids} == {int}
    assert prompt.text is None


def test_token_ids_win_over_the_text_beside_them() -> None:
    prompt = tokenize_prompt({"prompt": "abc", "prompt_token_ids": [9]}, character_tokenizer())
    assert (prompt.text, prompt.token_ids) == ("abc", [9])


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        (5, "prompt 5: expected a text"),
        (None, "prompt None: expected a text"),
        ([1, 2], "prompt [1, 2]: expected a text"),
        ({}, "prompt {}: expected a text"),
        ({"text": "abc"}, "expected a text"),
        ({"prompt": "abc", "images": []}, "expected a text"),
        ({"prompt": 5}, "prompt 5 is not a text"),
        ({"prompt": None}, "prompt None: expected a text"),
        ({"prompt_token_ids": None}, "prompt_token_ids None: expected a sequence"),
        ({"prompt_token_ids": "12"}, "prompt_token_ids '12': expected a sequence"),
        ({"prompt_token_ids": np.array(3)}, "prompt_token_ids array(3): expected a sequence"),
        ({"prompt_token_ids": torch.tensor(3)}, "prompt_token_ids tensor(3): expected a sequence"),
        ({"prompt_token_ids": (1 // n for n in (1, 0))}, "division or modulo by zero"),
        ({"prompt_token_ids": [1, 2.0]}, "prompt_token_ids[1] is 2.0, not an integer"),
        ({"prompt_token_ids": torch.tensor([1.5])}, "prompt_token_ids[0] is tensor(1.5000), not an integer"),
        ({"prompt_token_ids": [1, "a"]}, "prompt_token_ids[1] is 'a', not an integer"),
    ],
)
def test_anything_else_is_refused_by_name(prompt: Any, words: str) -> None:
    with pytest.raises(RequestError) as caught:
        tokenize_prompt(prompt, character_tokenizer())
    assert words in str(caught.value)


def test_a_text_needs_a_tokenizer() -> None:
    with pytest.raises(RequestError, match="no tokenizer"):
        tokenize_prompt("abc", None)


def test_a_long_value_is_cut_in_the_message() -> None:
    with pytest.raises(RequestError) as caught:
        tokenize_prompt([7] * 10_000, None)
    assert len(str(caught.value)) < 300


def test_a_conversation_goes_through_the_template_and_gets_no_special_tokens_on_top() -> None:
    tokenizer = character_tokenizer()
    tokenizer.chat_template = (
        "{% for message in messages %}{{ message['role'][0] }}{{ message['content'] }}{% endfor %}"
        "{% if add_generation_prompt %}A{% endif %}"
    )
    prompt = tokenize_conversation([{"role": "user", "content": "xyz"}], tokenizer)
    assert prompt.text == "uxyzA"
    assert prompt.token_ids == ids("uxyzA")


def test_what_the_template_raises_is_the_conversations_fault() -> None:
    tokenizer = character_tokenizer()
    tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(RequestError, match="roles must alternate"):
        tokenize_conversation([{"role": "user", "content": "a"}], tokenizer)


def test_whether_there_is_a_template() -> None:
    tokenizer = character_tokenizer()
    assert not has_chat_template(None)
    assert not has_chat_template(tokenizer)
    tokenizer.chat_template = "x"
    assert has_chat_template(tokenizer)

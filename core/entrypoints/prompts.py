"""What a user calls a prompt, turned into token ids."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..api import RequestError

Message = Mapping[str, Any]
"""One message of a conversation: `{"role": "user", "content": "..."}`."""

_KEYS = ("prompt", "prompt_token_ids")


@dataclass(frozen=True, slots=True)
class TokenizedPrompt:
    """A prompt that the engine can admit.

    Attributes:
        text: what the user wrote, or None if only token ids were given.
        token_ids: what the model reads; not yet checked against its vocabulary.
    """

    text: str | None
    token_ids: list[int]


def tokenize_prompt(prompt: Any, tokenizer: Any) -> TokenizedPrompt:
    """Read a text, `{"prompt": text}` or `{"prompt_token_ids": ids}`; with both keys the ids count.

    Raises:
        RequestError: it is none of these, or a text that the tokenizer cannot encode.
    """
    if isinstance(prompt, str):
        return TokenizedPrompt(prompt, _encode(prompt, tokenizer, add_special_tokens=True))
    if not isinstance(prompt, Mapping) or not set(prompt) & set(_KEYS) or set(prompt) - set(_KEYS):
        raise RequestError(
            f"prompt {_shown(prompt)}: expected a text, {{'prompt': text}} or {{'prompt_token_ids': [ids]}}"
        )
    text = prompt.get("prompt")
    if text is not None and not isinstance(text, str):
        raise RequestError(f"prompt {_shown(text)} is not a text")
    if "prompt_token_ids" in prompt:
        return TokenizedPrompt(text, _integers(prompt["prompt_token_ids"]))
    return tokenize_prompt(text, tokenizer)


def tokenize_conversation(messages: Sequence[Message], tokenizer: Any) -> TokenizedPrompt:
    """Render messages with the tokenizer's chat template, up to where the assistant speaks.

    Raises:
        RequestError: the template refuses the messages.
    """
    try:
        text = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
    except Exception as error:  # templates are programs: they raise what they like
        raise RequestError(
            f"the chat template refuses the conversation {_shown(messages)}: {error}"
        ) from error
    return TokenizedPrompt(text, _encode(text, tokenizer, add_special_tokens=False))


def user_turn(text: str, tokenizer: Any) -> dict[str, Any]:
    """What `LLM.generate` takes for a conversation that a user opens with `text`; see `tokenize_conversation`."""
    rendered = tokenize_conversation([{"role": "user", "content": text}], tokenizer)
    return {"prompt": rendered.text, "prompt_token_ids": rendered.token_ids}


def has_chat_template(tokenizer: Any) -> bool:
    """Whether `tokenize_conversation` can work with this tokenizer."""
    return bool(getattr(tokenizer, "chat_template", None))


def _encode(text: str, tokenizer: Any, *, add_special_tokens: bool) -> list[int]:
    if tokenizer is None:
        raise RequestError(
            "this model has no tokenizer, so a prompt must be {'prompt_token_ids': [ids]}; "
            "or give LLM(tokenizer=...) a folder or hub id that has one"
        )
    try:
        return list(tokenizer.encode(text, add_special_tokens=add_special_tokens))
    except Exception as error:  # tokenizers raise bare exceptions
        raise RequestError(f"the tokenizer cannot encode the prompt {_shown(text)}: {error}") from error


def _integers(values: Any) -> list[int]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise RequestError(f"prompt_token_ids {_shown(values)}: expected a sequence of token ids")
    try:
        values = list(values)
    except Exception as error:  # an array without dimensions, or an iterator that fails
        raise RequestError(
            f"prompt_token_ids {_shown(values)}: expected a sequence of token ids ({error})"
        ) from error
    token_ids = []
    for index, value in enumerate(values):
        try:
            token_ids.append(_integer(value))
        except TypeError:
            raise RequestError(f"prompt_token_ids[{index}] is {_shown(value)}, not an integer") from None
    return token_ids


def _integer(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError
    return operator.index(value)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "..."

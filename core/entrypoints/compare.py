"""Do two ways of decoding say the same?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..engine.request_output import RequestOutput


def first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
    """Index of the first token that differs, or that only one of them has; None: they are identical."""
    for index, (our_id, their_id) in enumerate(zip(ours, theirs, strict=False)):
        if our_id != their_id:
            return index
    return None if len(ours) == len(theirs) else min(len(ours), len(theirs))


def describe_difference(name: str, ours: RequestOutput, plain: RequestOutput, tokenizer: Any) -> str | None:
    """A sentence that says where `ours` leaves `plain`, with both tokens and their texts; None: they are identical.

    Args:
        name: what to call the decoding of `ours`.
    """
    our_ids, plain_ids = ours.outputs[0].token_ids, plain.outputs[0].token_ids
    index = first_difference(our_ids, plain_ids)
    if index is not None:
        return (
            f"first difference at output token {index}: {_token(our_ids, index, tokenizer)} with {name}, "
            f"{_token(plain_ids, index, tokenizer)} in plain decoding"
        )
    reasons = ours.outputs[0].finish_reason, plain.outputs[0].finish_reason
    if reasons[0] != reasons[1]:
        return (
            f"the same tokens, but finish reason {reasons[0]!r} with {name}, {reasons[1]!r} in plain decoding"
        )
    return None


def _token(token_ids: Sequence[int], index: int, tokenizer: Any) -> str:
    if index >= len(token_ids):
        return "no token"
    token_id = token_ids[index]
    if tokenizer is None:
        return f"token {token_id}"
    return f"{tokenizer.decode([token_id], skip_special_tokens=False)!r} (token {token_id})"

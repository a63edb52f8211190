"""Whether a request can be served at all. What is wrong with it is said before it takes a place."""

from __future__ import annotations

from collections.abc import Sequence

from ..api import RequestError
from .request import Request


def check_request(
    request: Request,
    *,
    vocab_size: int,
    max_model_len: int,
    kv_capacity: int,
    has_tokenizer: bool,
) -> None:
    """Refuse a request that no step could ever serve.

    Args:
        vocab_size: token ids are in `[0, vocab_size)`.
        max_model_len: most tokens of a request, prompt and output.
        kv_capacity: tokens that fit the whole KV cache.

    Raises:
        RequestError: names the value and what to do about it.
    """
    name = f"request {request.request_id!r}"
    num_prompt_tokens = request.num_prompt_tokens
    if num_prompt_tokens == 0:
        raise RequestError(f"{name}: the prompt has no tokens; give at least one, for example the BOS token")
    _check_token_ids(f"{name}: prompt_token_ids", request.prompt_token_ids, vocab_size)
    if num_prompt_tokens >= max_model_len:
        raise RequestError(
            f"{name}: the prompt has {num_prompt_tokens} tokens, but max_model_len={max_model_len} leaves room for at "
            f"most {max_model_len - 1} and one new token; shorten the prompt or raise max_model_len"
        )
    if num_prompt_tokens >= kv_capacity:
        raise RequestError(
            f"{name}: the prompt has {num_prompt_tokens} tokens, but the whole KV cache holds {kv_capacity} "
            "(num_kv_blocks * block_size), one of them new; shorten the prompt or raise num_kv_blocks"
        )
    params = request.sampling_params
    if params.min_tokens > params.max_tokens:
        raise RequestError(
            f"{name}: min_tokens={params.min_tokens} is above max_tokens={params.max_tokens}; "
            "lower the first or raise the second"
        )
    _check_token_ids(f"{name}: stop_token_ids", params.stop_token_ids, vocab_size)
    if params.stop and not has_tokenizer:
        raise RequestError(
            f"{name}: stop={list(params.stop)!r} needs a tokenizer, and the engine was built without one; "
            "use stop_token_ids or give a tokenizer"
        )


def _check_token_ids(name: str, token_ids: Sequence[object], vocab_size: int) -> None:
    for index, token_id in enumerate(token_ids):
        if type(token_id) is not int:
            raise RequestError(
                f"{name}[{index}] is {token_id!r}, of type {type(token_id).__name__}; token ids are integers"
            )
        if not 0 <= token_id < vocab_size:
            raise RequestError(
                f"{name}[{index}] is {token_id}, outside the vocabulary; use ids from 0 to {vocab_size - 1}"
            )

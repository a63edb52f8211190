"""The only code that advances a request: the tokens of a step, taken one by one."""

from __future__ import annotations

from collections.abc import Sequence

from ..metrics.stats import SpecDecodeStats
from .request import FinishReason, Request


def commit(
    request: Request,
    sampled_token_ids: Sequence[int],
    num_draft_tokens: int,
    max_len: int,
    stats: SpecDecodeStats,
) -> int:
    """Append the step's tokens to `request`, stopping behind the first that ends it.

    Checked at each token, in this order: stop token (EOS included), stop string, length.

    Args:
        sampled_token_ids: the accepted drafts, then one recovered or bonus token, as
            `ModelRunnerOutput.sampled_token_ids`; not empty.
        num_draft_tokens: drafts that the step verified for it.
        max_len: most tokens a request may have, prompt included.
        stats: of the engine; counted up together with the request's own.

    Returns:
        How many tokens were committed; the rest is gone from text, KV and counts.
    """
    num_accepted = len(sampled_token_ids) - 1
    if not 0 <= num_accepted <= num_draft_tokens:
        raise ValueError(
            f"request {request.request_id!r}: {len(sampled_token_ids)} tokens for {num_draft_tokens} drafts; "
            f"expected 1 to {num_draft_tokens + 1}"
        )
    num_committed = 0
    for index, token_id in enumerate(sampled_token_ids):
        request.token_ids.append(token_id)
        request.token_origins.append(_origin(index, num_accepted, num_draft_tokens))
        num_committed += 1
        _check_stop(request, token_id)
        if not request.is_finished and (
            request.num_output_tokens >= request.max_tokens or request.num_tokens >= max_len
        ):
            request.finish(FinishReason.LENGTH)
        if request.is_finished:
            break
    for counts in (request.metrics, stats):
        counts.observe(
            num_draft_tokens=num_draft_tokens,
            num_accepted_tokens=min(num_accepted, num_committed),
            num_emitted_tokens=num_committed,
        )
    return num_committed


def _check_stop(request: Request, token_id: int) -> None:
    params = request.sampling_params
    # The sampler already forbids stop tokens until `min_tokens` others are out; stop strings wait just as long.
    may_stop = request.num_output_tokens > params.min_tokens
    is_stop_token = may_stop and token_id in request.stop_token_ids
    detokenizer = request.detokenizer
    if detokenizer is not None and (not is_stop_token or params.include_stop_str_in_output):
        stop_string = detokenizer.append(token_id, look_for_stop=may_stop and not is_stop_token)
        if stop_string is not None:
            request.finish(FinishReason.STOP, stop_string)
    if is_stop_token:
        request.finish(FinishReason.STOP, None if token_id in request.eos_token_ids else token_id)


def _origin(index: int, num_accepted: int, num_draft_tokens: int) -> str:
    if index < num_accepted:
        return "accepted"
    if num_draft_tokens == 0:
        return "sampled"
    return "bonus" if num_accepted == num_draft_tokens else "recovered"

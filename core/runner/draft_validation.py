"""Check what a proposer returned before anything is built from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..api import DraftRequest, DraftTokens, ProposerCapabilities


@dataclass(frozen=True, slots=True)
class ValidDrafts:
    """What is left of a proposer's answer.

    Attributes:
        token_ids: per request of the batch, in order; empty where there was nothing or something invalid.
        probs: per request `[len(token_ids), V]` float32, if the proposer gives probabilities.
        confidence: per request an estimate per token, if the proposer gives them.
        errors: a message per violation.
    """

    token_ids: list[list[int]]
    probs: list[torch.Tensor | None]
    confidence: list[list[float] | None]
    errors: list[str]


class _Violation(Exception):
    """One request's drafts break the contract."""


def validate_drafts(
    drafts: object,
    requests: Sequence[DraftRequest],
    capabilities: ProposerCapabilities,
    vocab_size: int,
) -> ValidDrafts:
    """Keep each request's drafts if they honour the contract of `propose`; drop them and say why if not.

    A fault of the answer as a whole (its type, its length) drops every draft of the step.
    """
    valid = ValidDrafts([[] for _ in requests], [None] * len(requests), [None] * len(requests), [])
    whole = _fault_of_the_whole(drafts, len(requests), capabilities)
    if whole is not None:
        valid.errors.append(whole)
        return valid
    assert isinstance(drafts, DraftTokens)
    for i, request in enumerate(requests):
        try:
            tokens = _check_tokens(drafts.token_ids[i], request, vocab_size)
            if drafts.confidence is not None:
                valid.confidence[i] = _check_confidence(drafts.confidence[i], len(tokens))
            if drafts.probs is not None:
                valid.probs[i] = _check_probs(drafts.probs[i], tokens, vocab_size)
        except _Violation as violation:
            valid.errors.append(f"request {request.request_id!r}: {violation}")
        else:
            valid.token_ids[i] = tokens
    return valid


def _fault_of_the_whole(drafts: object, num_requests: int, capabilities: ProposerCapabilities) -> str | None:
    if not isinstance(drafts, DraftTokens):
        return f"propose returned {type(drafts).__name__}; return outrider.api.DraftTokens"
    if drafts.parents is not None and not capabilities.trees:
        return "propose returned `parents` without declaring ProposerCapabilities.trees"
    for field, declared in (("probs", capabilities.probs), ("confidence", capabilities.confidence)):
        given = getattr(drafts, field) is not None
        if given is not declared:
            verb = "returned" if given else "did not return"
            return f"propose {verb} `{field}`, but its capabilities declare {field}={declared}"
    for field in ("token_ids", "probs", "confidence"):
        value = getattr(drafts, field)
        if value is None:
            continue
        try:
            length = len(value)
        except TypeError:
            return f"`{field}` is {type(value).__name__}; give one sequence per request"
        if length != num_requests:
            return (
                f"`{field}` has {length} entries for a batch of {num_requests} requests; give one per request"
            )
    return None


def _check_tokens(tokens: object, request: DraftRequest, vocab_size: int) -> list[int]:
    try:
        array = np.asarray(tokens)
    except (TypeError, ValueError, RuntimeError) as error:
        raise _Violation(f"draft {tokens!r} is not a sequence of token ids ({error})") from error
    if array.size == 0 and array.ndim == 1:
        return []
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise _Violation(f"draft {tokens!r} is not a flat sequence of integers")
    if len(array) > request.draft_budget:
        raise _Violation(f"{len(array)} tokens drafted, but the draft budget is {request.draft_budget}")
    outside = array[(array < 0) | (array >= vocab_size)]
    if outside.size:
        raise _Violation(f"token id {outside[0]} is outside the vocabulary [0, {vocab_size})")
    return [int(token) for token in array]


def _check_confidence(confidence: object, num_tokens: int) -> list[float]:
    try:
        array = np.asarray(confidence, np.float64)
    except (TypeError, ValueError) as error:
        raise _Violation(f"confidence {confidence!r} is not a sequence of numbers") from error
    if array.shape != (num_tokens,) or not ((array >= 0) & (array <= 1)).all():
        raise _Violation(f"confidence {confidence!r} must be {num_tokens} numbers in [0, 1]")
    result: list[float] = array.tolist()
    return result


def _check_probs(probs: object, tokens: list[int], vocab_size: int) -> torch.Tensor | None:
    if not tokens:
        return None
    if not isinstance(probs, torch.Tensor):
        raise _Violation(
            f"probs is {type(probs).__name__}; give a torch.Tensor [{len(tokens)}, {vocab_size}]"
        )
    if tuple(probs.shape) != (len(tokens), vocab_size):
        raise _Violation(f"probs has shape {tuple(probs.shape)}; expected [{len(tokens)}, {vocab_size}]")
    rows = probs.detach().to("cpu", torch.float32)
    if not bool((rows >= 0).all()) or not torch.allclose(rows.sum(-1), torch.ones(len(tokens)), atol=1e-3):
        raise _Violation("a row of probs is not a distribution: entries must be >= 0 and sum to 1")
    drawn = rows[torch.arange(len(tokens)), torch.tensor(tokens)]
    if not bool((drawn > 0).all()):
        raise _Violation(
            "a drafted token has probability 0 in probs: it was not drawn from that distribution"
        )
    return rows

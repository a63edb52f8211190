"""What a caller gets back for a request: after each step that advanced it, and at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..metrics.stats import SpecDecodeStats

if TYPE_CHECKING:
    from .request import Request


class RequestMetrics(SpecDecodeStats):
    """The draft and acceptance counts of one request. While it runs, the object keeps counting."""

    __slots__ = ()


@dataclass(slots=True, kw_only=True)
class CompletionOutput:
    """The generated text of a request, up to the step that made this object.

    Text that could still turn into a stop string, or into another character, is held back until it is certain.

    Attributes:
        index: always 0; a request has one completion.
        text: all text so far.
        new_text: the end of `text` that the previous output of this request did not have.
        new_token_ids: the same for `token_ids`.
        finish_reason: "stop", "length", "abort", "error", or None while it runs.
        stop_reason: the stop string or stop token id that ended it; None for EOS and for other reasons.
    """

    index: int = 0
    text: str = ""
    new_text: str = ""
    new_token_ids: Sequence[int] = ()
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    # Views of the request's own lists, which only grow: nothing is copied until somebody asks.
    _token_ids: Sequence[int] = field(default=(), repr=False)
    _start: int = field(default=0, repr=False)
    _stop: int = field(default=0, repr=False)
    _origins: Sequence[str] = field(default=(), repr=False)

    @property
    def token_ids(self) -> list[int]:
        """All output tokens so far, the one that ended the request included."""
        return list(self._token_ids[self._start : self._stop])

    @property
    def token_origins(self) -> list[str]:
        """Per output token: "accepted" (a draft), "recovered" (in place of a rejected draft), "bonus" (behind accepted
        drafts) or "sampled" (a step without drafts)."""
        return list(self._origins[: self._stop - self._start])


@dataclass(slots=True, kw_only=True)
class RequestOutput:
    """A request as its caller sees it.

    Attributes:
        outputs: one completion.
        metrics: draft and acceptance counts.
        seed: the seed its tokens were sampled with; repeat the request with it to get the same tokens.
        error: what went wrong, if `finish_reason` is "error".
        num_cached_tokens: prompt tokens that the prefix cache spared from being computed.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: Sequence[int]
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics
    seed: int | None = None
    error: str | None = None
    num_cached_tokens: int = 0

    @classmethod
    def refused(
        cls, request_id: str, error: str, *, prompt: str | None = None, prompt_token_ids: Sequence[int] = ()
    ) -> RequestOutput:
        """The output of a request that was never admitted."""
        return cls(
            request_id=request_id,
            prompt=prompt,
            prompt_token_ids=prompt_token_ids,
            outputs=[CompletionOutput(finish_reason="error")],
            finished=True,
            metrics=RequestMetrics(),
            error=error,
        )

    @classmethod
    def of(cls, request: Request, num_new_tokens: int) -> RequestOutput:
        """The state of `request` after a step that committed its last `num_new_tokens` tokens."""
        detokenizer = request.detokenizer
        text, new_text = detokenizer.release(request.is_finished) if detokenizer else ("", "")
        num_tokens = request.num_tokens
        completion = CompletionOutput(
            text=text,
            new_text=new_text,
            new_token_ids=request.token_ids[num_tokens - num_new_tokens :],
            finish_reason=None if request.finish_reason is None else request.finish_reason.value,
            stop_reason=request.stop_reason,
            _token_ids=request.token_ids,
            _start=request.num_prompt_tokens,
            _stop=num_tokens,
            _origins=request.token_origins,
        )
        return cls(
            request_id=request.request_id,
            prompt=request.prompt,
            prompt_token_ids=request.prompt_token_ids,
            outputs=[completion],
            finished=request.is_finished,
            metrics=request.metrics,
            seed=request.seed,
            error=request.error,
            num_cached_tokens=request.num_cached_tokens,
        )

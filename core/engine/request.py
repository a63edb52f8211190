"""One request: what was asked, what has been committed, how far it is computed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from ..api import SamplingParams
from .request_output import RequestMetrics

if TYPE_CHECKING:
    from .detokenizer import Detokenizer


class RequestStatus(Enum):
    """Where a request stands. `PREEMPTED` requests wait like `WAITING` ones, at the head of the queue."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class Request:
    """The engine's record of one request.

    Args:
        request_id: unique among the unfinished requests of the engine.
        prompt_token_ids: `[num_prompt_tokens]`; checked when the engine admits the request.
        sampling_params: as the user gave them.
        prompt: the prompt's text, only reported back.
        eos_token_ids: tokens that end it unless `sampling_params.ignore_eos`.

    Attributes:
        eos_token_ids: as given; empty if `sampling_params.ignore_eos`.
        stop_token_ids: every token that ends it, EOS included.
        token_ids: prompt and output. It only ever grows, and only `commit` appends to it.
        token_origins: per output token "accepted", "recovered", "bonus" or "sampled".
        seed: the user's, or drawn by the engine at admission.
        num_computed_tokens: tokens whose KV is in the cache; the step's rows start at this position.
        spec_token_ids: drafts for the next step; they live for one step.
        block_ids: its KV blocks in position order, empty unless running.
        block_hashes: chained hash of each full block of `token_ids`, computed when needed.
        num_hashed_blocks: leading blocks that the prefix cache already knows.
        state_index: its row of state slots, in `[0, max_num_seqs)`; -1 unless running.
        num_cached_tokens: prompt tokens found in the prefix cache when it first entered the batch.
        was_added: it has entered the batch at least once.
    """

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        sampling_params: SamplingParams,
        *,
        prompt: str | None = None,
        eos_token_ids: Collection[int] = (),
    ) -> None:
        self.request_id = request_id
        self.prompt = prompt
        self.sampling_params = sampling_params
        self.eos_token_ids = frozenset() if sampling_params.ignore_eos else frozenset(eos_token_ids)
        self.stop_token_ids = self.eos_token_ids | frozenset(sampling_params.stop_token_ids)
        self.seed = sampling_params.seed or 0
        self.detokenizer: Detokenizer | None = None

        self.prompt_token_ids = _plain_ints(prompt_token_ids)
        self.num_prompt_tokens = len(self.prompt_token_ids)
        self.token_ids: list[int] = list(self.prompt_token_ids)
        self.token_origins: list[str] = []

        self.status = RequestStatus.WAITING
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        self.error: str | None = None
        self.metrics = RequestMetrics()

        self.num_computed_tokens = 0
        self.spec_token_ids: list[int] = []
        self.block_ids: list[int] = []
        self.block_hashes: list[bytes] = []
        self.num_hashed_blocks = 0
        self.state_index = -1
        self.num_cached_tokens = 0
        self.was_added = False

    @property
    def num_tokens(self) -> int:
        """Prompt and committed output."""
        return len(self.token_ids)

    @property
    def num_tokens_with_spec(self) -> int:
        """Prompt, output and the drafts that wait to be verified: what a step moves `num_computed_tokens` toward."""
        return len(self.token_ids) + len(self.spec_token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Committed output tokens."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        """A copy of the committed output tokens."""
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def max_tokens(self) -> int:
        """Most output tokens the user wants."""
        return self.sampling_params.max_tokens

    @property
    def is_finished(self) -> bool:
        """Whether it has ended, for any reason."""
        return self.status is RequestStatus.FINISHED

    def finish(self, reason: FinishReason, stop_reason: int | str | None = None) -> None:
        """Mark it ended. `stop_reason` is the stop string or stop token; None for EOS and other reasons."""
        self.status = RequestStatus.FINISHED
        self.finish_reason = reason
        self.stop_reason = stop_reason


def _plain_ints(token_ids: Sequence[Any]) -> list[int]:
    # Numpy's integers become plain ones; whatever is no integer stays, to be refused at admission.
    return [int(token_id) if isinstance(token_id, np.integer) else token_id for token_id in token_ids]

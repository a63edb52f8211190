"""Ask the proposer for the next step's drafts, and keep only what is valid."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from ..api import CommonAttentionMetadata, DraftRequest, ProposeContext, ProposerCapabilities, ProposerError
from ..api.errors import describe_exception
from ..engine.outputs import DraftTokenIds
from ..plugins import ProposerHooks
from .draft_validation import validate_drafts
from .input_batch import InputBatch
from .metadata import FlatRows, describe_batch_rows
from .sampling_rows import sample_for

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FinishedForward:
    """What a target forward leaves for the proposer: `B` requests, `T` rows.

    Attributes:
        num_committed_rows: `[B]` leading rows of each request whose input token is committed.
        hidden_states: `[T, H]`, if captured; likewise each of `aux_hidden_states`.
    """

    request_ids: Sequence[str]
    rows: FlatRows
    num_committed_rows: npt.NDArray[np.int64]
    hidden_states: torch.Tensor | None
    aux_hidden_states: Sequence[torch.Tensor]


class Drafting:
    """Drives one proposer: builds its context, applies the error policy, validates its answer.

    Attributes:
        draft_probs: per request the distributions of its pending drafts, `[num_drafts, V]` float32.
    """

    def __init__(
        self,
        proposer: ProposerHooks,
        capabilities: ProposerCapabilities,
        on_error: Literal["skip", "raise"],
        batch: InputBatch,
        vocab_size: int,
        device: torch.device,
    ) -> None:
        self.capabilities = capabilities
        self.draft_probs: dict[str, torch.Tensor] = {}
        self._proposer = proposer
        self._on_error = on_error
        self._batch = batch
        self._vocab_size = vocab_size
        self._device = device

    def propose(self, forward: FinishedForward, budgets: Mapping[str, int]) -> DraftTokenIds:
        """Draft for the requests of the last forward that have a budget entry.

        A proposer with its own KV is asked even if nobody may be drafted for, since its cache follows the target's.

        Raises:
            ProposerError: the proposer broke its contract, and the policy is `raise`.
        """
        self.draft_probs = {}  # drafts live for one step
        asked = [
            i
            for i, request_id in enumerate(forward.request_ids)
            if request_id in budgets and self._within_positions(forward.rows.batch_rows[i])
        ]
        if not asked or not (self.capabilities.own_kv or any(budgets.values())):
            return DraftTokenIds()
        context = self._build_context(forward, asked, budgets)
        try:
            answer = self._proposer.propose(context)
            valid = validate_drafts(answer, context.requests, self.capabilities, self._vocab_size)
        except Exception as error:
            # Whatever a plugin raises, the requests go on; only the policy `raise` lets it out.
            self._report(f"propose raised {describe_exception(error)}", cause=error)
            return DraftTokenIds(num_errors=1)
        for message in valid.errors:
            self._report(message)
        drafts: dict[str, Sequence[int]] = {}
        confidences: dict[str, Sequence[float]] = {}
        for request, tokens, probs, confidence in zip(
            context.requests, valid.token_ids, valid.probs, valid.confidence, strict=True
        ):
            if tokens:
                drafts[request.request_id] = tokens
                if probs is not None:
                    self.draft_probs[request.request_id] = probs
                if confidence is not None:
                    confidences[request.request_id] = confidence
        return DraftTokenIds(draft_token_ids=drafts, confidence=confidences, num_errors=len(valid.errors))

    def _within_positions(self, row: int) -> bool:
        most = self.capabilities.max_positions
        return most is None or int(self._batch.num_tokens[row]) <= most

    def _report(self, message: str, cause: Exception | None = None) -> None:
        error = ProposerError(message, plugin=self._proposer.name, distribution=self._proposer.distribution)
        if self._on_error == "raise":
            raise error from cause
        logger.warning("%s; the requests go on undrafted", error)

    def _build_context(
        self,
        forward: FinishedForward,
        asked: Sequence[int],
        budgets: Mapping[str, int],
    ) -> ProposeContext:
        batch = self._batch
        batch_rows = forward.rows.batch_rows[asked]
        lengths = forward.num_committed_rows[asked]
        requests = tuple(
            self._view(forward.request_ids[i], int(row), int(n), budgets)
            for i, row, n in zip(asked, batch_rows, lengths, strict=True)
        )
        batch.num_proposed_tokens[batch_rows] = batch.num_tokens[batch_rows]
        row_start_loc = np.zeros(len(asked) + 1, np.int32)
        np.cumsum(lengths, out=row_start_loc[1:])
        hidden, aux = forward.hidden_states, forward.aux_hidden_states
        attention: CommonAttentionMetadata | None = None
        # Laying out the rows costs as much as a cheap proposer takes, which has no use for them.
        if hidden is not None or aux or self.capabilities.own_kv:
            rows = FlatRows.build(batch_rows, batch.num_computed_tokens[batch_rows], lengths)
            # Row t of the context stands this far from row t of the forward: rejected rows and ended requests are
            # left out.
            shift = forward.rows.query_start_loc[asked] - row_start_loc[:-1]
            index = torch.as_tensor(
                np.arange(len(rows.positions)) + shift[rows.request_of_row], device=self._device
            )
            hidden = None if hidden is None else hidden[index]
            aux = [states[index] for states in aux]
            if self.capabilities.own_kv:
                attention = describe_batch_rows(batch, rows, self._device)
        return ProposeContext(
            requests=requests,
            row_start_loc=row_start_loc,
            hidden_states=hidden,
            aux_hidden_states=aux,
            attention=attention,
            sample=partial(sample_for, batch, batch_rows),
        )

    def _view(self, request_id: str, row: int, num_rows: int, budgets: Mapping[str, int]) -> DraftRequest:
        batch = self._batch
        params = batch.sampling_params[row]
        assert params is not None
        return DraftRequest(
            request_id=request_id,
            token_ids=batch.view(row),
            num_prompt_tokens=int(batch.num_prompt_tokens[row]),
            num_new_tokens=int(batch.num_tokens[row] - batch.num_proposed_tokens[row]),
            num_computed_tokens=int(batch.num_computed_tokens[row]),
            num_rows=num_rows,
            draft_budget=budgets[request_id],
            sampling_params=params,
            seed=int(batch.seed[row]),
        )

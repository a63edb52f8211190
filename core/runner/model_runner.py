"""Runs one plan: a single target forward over prompt chunks, decodes and drafts together, then verification."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from ..engine.outputs import DraftTokenIds, ModelRunnerOutput, SchedulerOutput
from ..models.hidden_states import HiddenStateCapture
from ..models.routing import RoutedModel
from ..plugins import BackendHooks
from ..sampling.rejection_sampler import verify
from .drafting import Drafting, FinishedForward
from .input_batch import InputBatch
from .metadata import FlatRows, LogitsRows, describe_batch_rows, to_tensor
from .sampling_rows import sampling_rows


@dataclass(frozen=True, slots=True)
class _Step:
    """A plan laid out as arrays, `B` requests in the plan's order."""

    request_ids: list[str]
    rows: FlatRows
    drafts: list[Sequence[int]]
    logits_rows: LogitsRows


class ModelRunner:
    """Runs one engine's input batch through its routed target.

    Args:
        backends: those that claimed a layer of the target.
        capture: takes the hidden states that the proposer declared, if any.
    """

    def __init__(
        self,
        target: RoutedModel,
        backends: Sequence[BackendHooks],
        batch: InputBatch,
        *,
        device: torch.device,
        drafting: Drafting | None = None,
        verification: Literal["coupled", "rejection"] = "coupled",
        capture: HiddenStateCapture | None = None,
    ) -> None:
        self._target = target
        self._backends = [backend for backend in backends if backend.name in target.backends]
        self._batch = batch
        self._device = device
        self._drafting = drafting
        self._verification = verification
        self._capture = capture
        self._forward: FinishedForward | None = None
        self._inference_mode = torch.inference_mode()  # kept, since making one takes as long as entering it

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        """Run the step and decide its tokens."""
        with self._inference_mode:
            step = self._lay_out(plan)
            logits, model_seconds = self._run_target(step)
            return self._commit(step, self._verify(step, logits), model_seconds)

    @torch.inference_mode()
    def take_draft_token_ids(self, draft_budgets: Mapping[str, int]) -> DraftTokenIds:
        """Draft for the requests of the last step that have a budget entry; 0 is a budget."""
        forward, self._forward = self._forward, None
        if self._drafting is None or forward is None:
            return DraftTokenIds()
        return self._drafting.propose(forward, draft_budgets)

    def _lay_out(self, plan: SchedulerOutput) -> _Step:
        batch = self._batch
        for request_id in plan.finished_req_ids | plan.preempted_req_ids:
            batch.remove(request_id)
        for new in plan.scheduled_new_reqs:
            batch.add(new)
        for cached in plan.scheduled_cached_reqs:
            batch.update(cached)
        request_ids = list(plan.num_scheduled_tokens)
        batch_rows = np.array([batch.row_of[request_id] for request_id in request_ids], np.int32)
        lengths = np.array(list(plan.num_scheduled_tokens.values()), np.int64)
        drafts: list[Sequence[int]] = [()] * len(request_ids)
        if plan.scheduled_spec_decode_tokens:
            drafts = [plan.scheduled_spec_decode_tokens.get(request_id, ()) for request_id in request_ids]
            for row, draft in zip(batch_rows, drafts, strict=True):
                batch.place_drafts(row, draft)
        rows = FlatRows.build(batch_rows, batch.num_computed_tokens.take(batch_rows), lengths)
        return _Step(request_ids, rows, drafts, LogitsRows.find(drafts, rows, self._device))

    def _run_target(self, step: _Step) -> tuple[torch.Tensor, float]:
        """Return the logits `[ΣD + B, V]` of the rows that judge a draft or give a bonus token, and the seconds inside
        the target (of a GPU: until its work is queued)."""
        batch, rows, spec = self._batch, step.rows, step.logits_rows.spec
        common = describe_batch_rows(batch, rows, self._device)
        metadata = {
            backend.name: backend.build_attention_metadata(common, spec) for backend in self._backends
        }
        input_ids = batch.token_ids[rows.batch_rows[rows.request_of_row], rows.positions].astype(np.int64)
        start = time.perf_counter()
        output = self._target.forward(
            metadata,
            capture=self._capture,
            input_ids=to_tensor(input_ids, self._device)[None],
            position_ids=common.positions[None],
            use_cache=False,
            logits_to_keep=spec.logits_indices,
        )
        seconds = time.perf_counter() - start
        return output.logits[0], seconds

    def _verify(self, step: _Step, logits: torch.Tensor) -> list[list[int]]:
        sampling = sampling_rows(self._batch, step.logits_rows.batch_rows, step.logits_rows.positions + 1)
        return verify(logits, sampling, step.drafts, self._draft_probs(step), self._verification)

    def _draft_probs(self, step: _Step) -> torch.Tensor | None:
        """`[ΣD, V]`, or None if the rule has no use for them, the proposer gives none, or nothing was drafted."""
        if self._drafting is None or self._verification == "coupled" or not self._drafting.draft_probs:
            return None
        # Drafts may have been cut since they were proposed, at their end only.
        probs = [
            self._drafting.draft_probs[request_id][: len(draft)]
            for request_id, draft in zip(step.request_ids, step.drafts, strict=True)
            if draft
        ]
        return torch.cat(probs) if probs else None

    def _commit(self, step: _Step, tokens: list[list[int]], model_seconds: float) -> ModelRunnerOutput:
        """Append what was decided to the batch and keep what the proposer may want to see."""
        batch, rows = self._batch, step.rows
        num_committed_rows, has_prompt = batch.commit(
            rows.batch_rows, rows.query_start_loc, step.logits_rows.spec.num_draft_tokens, tokens
        )
        if self._drafting is not None:
            capture = self._capture
            self._forward = FinishedForward(
                request_ids=step.request_ids,
                rows=rows,
                num_committed_rows=num_committed_rows,
                hidden_states=None if capture is None else capture.hidden_states,
                aux_hidden_states=() if capture is None else capture.aux_hidden_states,
            )
        sampled: dict[str, list[int]] = {}
        errors: dict[str, str] = {}
        for request_id, emitted, decides in zip(step.request_ids, tokens, has_prompt.tolist(), strict=True):
            if decides and emitted:
                sampled[request_id] = emitted
            elif decides:
                errors[request_id] = "the model's logits are NaN, or forbid every token"
        return ModelRunnerOutput(sampled_token_ids=sampled, errors=errors, model_seconds=model_seconds)

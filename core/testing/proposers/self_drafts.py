"""The target, or its first layers, as its own drafter."""

from __future__ import annotations

import copy
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field

from ...api import DraftModel, DraftRows, DraftTokens, ProposeContext, ProposerCapabilities, TargetModel
from ...hookspecs import hookimpl


class SelfProposer:
    """Drafts with a copy of the target that keeps its own KV: must be accepted in full, always.

    Every step its first forward runs over the step's committed rows and, where it may draft, the newest token
    behind them. That overwrites whatever an earlier draft left at those positions, so its context never has a hole.
    The last row gives the first draft; each further draft is a forward of one row per request that is still within
    its budget. Tokens are drawn with the engine's own noise, so a drafter that equals its target agrees with it at
    any temperature.
    """

    outrider_api = 1

    class Options(BaseModel):
        """How much of the target drafts.

        Attributes:
            num_layers: its first layers, with its final norm and lm_head; None: all of it.
        """

        model_config = ConfigDict(extra="forbid")

        num_layers: int | None = Field(default=None, ge=1)

    def __init__(self, options: Options) -> None:
        self._num_layers = options.num_layers
        self._model: DraftModel

    @hookimpl
    def capabilities(self) -> ProposerCapabilities:
        """Own layers in the engine's block tables; the newest token is one row more than the target had."""
        return ProposerCapabilities(own_kv=True, draft_slots=1)

    @hookimpl
    def load_model(self, target: TargetModel) -> None:
        """Copy the target's modules; the weights are shared."""
        self._model = target.add_draft_model("self", _copy_sharing_weights(target.model, self._num_layers))

    @hookimpl
    def propose(self, context: ProposeContext) -> DraftTokens:
        """Catch up with the committed tokens, then draft up to each request's budget."""
        drafts: list[list[int]] = [[] for _ in context.requests]
        rows = _catch_up_rows(context)
        for draft_index in range(1 + max((r.draft_budget for r in context.requests), default=0)):
            if not rows.request_indices:
                break
            logits = self._forward(context, rows, draft_index)
            active = [
                (i, row)
                for row, i in enumerate(rows.request_indices)
                if len(drafts[i]) < context.requests[i].draft_budget
            ]
            if not active:
                break
            requests = [i for i, _ in active]
            positions = [len(context.requests[i].token_ids) + len(drafts[i]) for i in requests]
            tokens = context.sample(logits[[row for _, row in active]], requests, positions)
            for i, token in zip(requests, tokens, strict=True):
                drafts[i].append(token)
            rows = _next_rows(context, requests, drafts)
        return DraftTokens(token_ids=drafts)

    def _forward(self, context: ProposeContext, rows: DraftRows, draft_index: int) -> torch.Tensor:
        """Return the logits of each request's last row, `[N, V]`."""
        output: Any = self._model.forward(
            context,
            rows,
            draft_index=draft_index,
            use_cache=False,
            logits_to_keep=self._model.logits_rows(rows),
        )
        logits: torch.Tensor = output.logits[0]
        return logits


def _catch_up_rows(context: ProposeContext) -> DraftRows:
    """The committed rows of the step and, to draft from, the newest token behind them.

    Without a budget there may be no block for that token; it will be the first row of the next step anyway.
    """
    starts = [r.num_computed_tokens for r in context.requests]
    ends = [r.num_computed_tokens + r.num_rows + (r.draft_budget > 0) for r in context.requests]
    return DraftRows(
        request_indices=range(len(context.requests)),
        token_ids=[r.token_ids[s:e] for r, s, e in zip(context.requests, starts, ends, strict=True)],
        start_positions=starts,
    )


def _next_rows(context: ProposeContext, requests: list[int], drafts: list[list[int]]) -> DraftRows:
    """One row per request that wants another draft: its newest draft."""
    unfinished = [i for i in requests if len(drafts[i]) < context.requests[i].draft_budget]
    return DraftRows(
        request_indices=unfinished,
        token_ids=[drafts[i][-1:] for i in unfinished],
        start_positions=[len(context.requests[i].token_ids) + len(drafts[i]) - 1 for i in unfinished],
    )


def _copy_sharing_weights(model: torch.nn.Module, num_layers: int | None) -> torch.nn.Module:
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    draft = copy.deepcopy(model, memo=shared)
    if num_layers is not None:
        decoder: Any = draft.get_decoder()  # type: ignore[operator]
        decoder.layers = decoder.layers[:num_layers]
        decoder.config.num_hidden_layers = num_layers
    return draft

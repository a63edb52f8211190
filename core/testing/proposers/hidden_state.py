"""A proposer that reads the target's hidden states."""

from __future__ import annotations

from collections import defaultdict

import torch
from pydantic import BaseModel, ConfigDict

from ...api import DraftTokens, ProposeContext, ProposerCapabilities, TargetModel
from ...hookspecs import hookimpl


class HiddenStateProposer:
    """Drafts from each request's last hidden row through the target's own lm_head, and keeps the rows it got.

    Its heads are the hidden state rotated by 1, 2, ... entries: nothing good, but any change of the rows
    changes what it drafts.

    Attributes:
        hidden_states: per request id and absolute position the row `[H]` of that position.
        aux_hidden_states: the same, per declared layer.
        newest_tokens: per step and decoding request two tokens: what lm_head says about the last row, sampled
        with
            the engine's noise, and the newest one. They are equal if row, position and token belong together.
    """

    outrider_api = 1

    class Options(BaseModel):
        """Attributes: aux_hidden_layers: see `ProposerCapabilities.aux_hidden_layers`."""

        model_config = ConfigDict(extra="forbid")

        aux_hidden_layers: tuple[int, ...] = ()

    def __init__(self, options: Options) -> None:
        self._layers = options.aux_hidden_layers
        self._lm_head: torch.nn.Module
        self.hidden_states: dict[str, dict[int, torch.Tensor]] = defaultdict(dict)
        self.aux_hidden_states: dict[int, dict[str, dict[int, torch.Tensor]]] = {
            layer: defaultdict(dict) for layer in self._layers
        }
        self.newest_tokens: list[tuple[int, int]] = []

    @hookimpl
    def capabilities(self) -> ProposerCapabilities:
        """Last and inner hidden states of the committed rows."""
        return ProposerCapabilities(hidden_states=True, aux_hidden_layers=self._layers)

    @hookimpl
    def load_model(self, target: TargetModel) -> None:
        """Share the target's lm_head."""
        self._lm_head = target.lm_head

    @hookimpl
    def propose(self, context: ProposeContext) -> DraftTokens:
        """Record the rows, check the last one against the newest token, draft from it."""
        assert context.hidden_states is not None
        self._record(context.hidden_states, context, self.hidden_states)
        for layer, rows in zip(self._layers, context.aux_hidden_states, strict=True):
            self._record(rows, context, self.aux_hidden_states[layer])
        last_rows = context.hidden_states[context.row_start_loc[1:].astype("int64") - 1]
        self._check_newest_tokens(last_rows, context)
        return DraftTokens(
            token_ids=[
                self._draft(row, request.draft_budget)
                for row, request in zip(last_rows, context.requests, strict=True)
            ]
        )

    def _draft(self, row: torch.Tensor, num_tokens: int) -> list[int]:
        if not num_tokens:
            return []
        heads = torch.stack([row.roll(shift) for shift in range(1, num_tokens + 1)])
        drafts: list[int] = self._lm_head(heads).argmax(-1).tolist()
        return drafts

    def _check_newest_tokens(self, last_rows: torch.Tensor, context: ProposeContext) -> None:
        decoding = [
            i
            for i, request in enumerate(context.requests)
            if request.num_computed_tokens + request.num_rows == len(request.token_ids) - 1
            and len(request.token_ids) > request.num_prompt_tokens
        ]
        newest_positions = [len(context.requests[i].token_ids) - 1 for i in decoding]
        if decoding:
            said = context.sample(self._lm_head(last_rows[decoding]), decoding, newest_positions)
            newest = [int(context.requests[i].token_ids[-1]) for i in decoding]
            self.newest_tokens += zip(said, newest, strict=True)

    def _record(
        self, rows: torch.Tensor, context: ProposeContext, into: dict[str, dict[int, torch.Tensor]]
    ) -> None:
        for request, start in zip(context.requests, context.row_start_loc, strict=False):
            for offset in range(request.num_rows):
                row = rows[int(start) + offset].clone()
                into[request.request_id][request.num_computed_tokens + offset] = row

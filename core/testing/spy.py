"""An extension plugin that writes down what passes through the hooks."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import torch

from ..api import (
    AttentionLayer,
    CommonAttentionMetadata,
    DraftTokens,
    LayerInfo,
    ProposeContext,
    SpecDecodeMetadata,
)
from ..hookspecs import hookimpl


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardRecord:
    """One forward, of the target or (`draft_index` is not None) of a drafter; lists as in `CommonAttentionMetadata`.

    Attributes:
        num_draft_tokens, draft_token_ids: what the target forward verifies; empty for a drafter's.
    """

    draft_index: int | None
    query_start_loc: list[int]
    positions: list[int]
    slot_mapping: list[int]
    num_accepted_tokens: list[int]
    num_draft_tokens: tuple[int, ...] = ()
    draft_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalRecord:
    """One request of one `propose` call; fields as in `DraftRequest`.

    Attributes:
        call: number of the `propose` call, from 0.
        hidden_states: `[num_rows, H]`, if the proposer declared them.
        drafts: what the proposer answered for it; None if the call raised or the answer is malformed.
    """

    call: int
    request_id: str
    token_ids: list[int]
    num_new_tokens: int
    num_computed_tokens: int
    num_rows: int
    draft_budget: int
    hidden_states: torch.Tensor | None
    drafts: Any


class Spy:
    """Wraps the hooks of the plugins that do the work, and changes nothing.

    Attributes:
        claims: layer name -> class name of the implementation that a backend gave for it.
        forwards: every forward, in order; one record per backend that is asked.
        proposals: every request of every `propose` call, in order.
        events: life-cycle calls `(hook, request id, token ids)`, in order.
    """

    outrider_api = 1

    def __init__(self) -> None:
        self.claims: dict[str, str] = {}
        self.forwards: list[ForwardRecord] = []
        self.proposals: list[ProposalRecord] = []
        self.events: list[tuple[str, str, tuple[int, ...]]] = []
        self._num_calls = 0

    @hookimpl(wrapper=True)
    def claim_layer(self, layer: LayerInfo) -> Generator[None, AttentionLayer | None, AttentionLayer | None]:
        """Note who claims what."""
        claimed = yield
        if claimed is not None:
            self.claims[layer.name] = type(claimed).__name__
        return claimed

    @hookimpl(wrapper=True)
    def build_attention_metadata(
        self, common: CommonAttentionMetadata, spec: SpecDecodeMetadata
    ) -> Generator[None, Any, Any]:
        """Note where the rows of a target forward stand, and which drafts it verifies."""
        self.forwards.append(
            ForwardRecord(
                draft_index=None,
                num_draft_tokens=spec.num_draft_tokens,
                draft_token_ids=tuple(spec.draft_token_ids.tolist()),
                **_rows(common),
            )
        )
        return (yield)

    @hookimpl(wrapper=True)
    def build_for_drafting(
        self, common: CommonAttentionMetadata, draft_index: int
    ) -> Generator[None, Any, Any]:
        """Note where the rows of a drafter's forward stand."""
        self.forwards.append(ForwardRecord(draft_index=draft_index, **_rows(common)))
        return (yield)

    @hookimpl(wrapper=True)
    def propose(self, context: ProposeContext) -> Generator[None, DraftTokens, DraftTokens]:
        """Note what the proposer is shown and what it answers."""
        answer = None
        try:
            answer = yield
            return answer
        finally:
            self._record(context, answer)
            self._num_calls += 1

    @hookimpl
    def request_added(self, request_id: str, token_ids: list[int]) -> None:
        """Note it."""
        self.events.append(("request_added", request_id, tuple(token_ids)))

    @hookimpl
    def tokens_committed(self, request_id: str, token_ids: list[int]) -> None:
        """Note it."""
        self.events.append(("tokens_committed", request_id, tuple(token_ids)))

    @hookimpl
    def request_preempted(self, request_id: str) -> None:
        """Note it."""
        self.events.append(("request_preempted", request_id, ()))

    @hookimpl
    def request_finished(self, request_id: str) -> None:
        """Note it."""
        self.events.append(("request_finished", request_id, ()))

    def _record(self, context: ProposeContext, answer: DraftTokens | None) -> None:
        for i, request in enumerate(context.requests):
            rows = slice(int(context.row_start_loc[i]), int(context.row_start_loc[i + 1]))
            self.proposals.append(
                ProposalRecord(
                    call=self._num_calls,
                    request_id=request.request_id,
                    token_ids=request.token_ids.tolist(),
                    num_new_tokens=request.num_new_tokens,
                    num_computed_tokens=request.num_computed_tokens,
                    num_rows=request.num_rows,
                    draft_budget=request.draft_budget,
                    hidden_states=None
                    if context.hidden_states is None
                    else context.hidden_states[rows].clone(),
                    drafts=_drafts_of(answer, i),
                )
            )


def _drafts_of(answer: Any, index: int) -> Any:
    try:
        return answer.token_ids[index]
    except Exception:  # a malformed answer is the engine's business; a spy must not fall over it
        return None


def _rows(common: CommonAttentionMetadata) -> dict[str, Any]:
    names = ("query_start_loc", "positions", "slot_mapping", "num_accepted_tokens")
    return {name: getattr(common, name).tolist() for name in names}

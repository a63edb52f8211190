"""A backend plugin that keeps the toy recurrent model's state in the engine's state slots.

It rolls back as a gated delta net does: a step reads its first state from the slot that
`CommonAttentionMetadata.num_accepted_tokens` selects and leaves one state per draft position, so the next
step's read index *is* the roll-back. Nothing is copied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from ..api import CommonAttentionMetadata, LayerInfo, SpecDecodeMetadata, StateCacheSpec, TensorSpec
from ..hookspecs import hookimpl
from .recurrent import ToyMixer, advance, decode, encode


@dataclass(frozen=True, slots=True)
class RequestRows:
    """One request's rows of the step.

    Attributes:
        start, end: its rows of the flat batch.
        read_slot: where the state before its first row is; None: it starts from 0.
        write_slots: slots for the states after its last `len(write_slots)` rows.
    """

    start: int
    end: int
    read_slot: int | None
    write_slots: tuple[int, ...]


class ToyRecurrentLayer:
    """The mixer on the engine's state slots."""

    def __init__(self, rewindable: bool) -> None:
        self.cache_spec = StateCacheSpec(
            tensors={"state": TensorSpec((), torch.int64)}, rewindable=rewindable
        )
        self.state: torch.Tensor

    def bind_cache(self, cache: Mapping[str, torch.Tensor]) -> None:
        """Receive `[num_state_slots]` int64."""
        self.state = cache["state"]

    def forward(self, metadata: tuple[RequestRows, ...], hidden_states: torch.Tensor) -> torch.Tensor:
        """Return the state after each row of `[1, T, 2]`."""
        token_ids = decode(hidden_states)[0].tolist()
        states: list[int] = []
        for rows in metadata:
            initial = 0 if rows.read_slot is None else int(self.state[rows.read_slot])
            after = advance(initial, token_ids[rows.start : rows.end])
            for slot, state in zip(rows.write_slots, after[-len(rows.write_slots) :], strict=True):
                self.state[slot] = state
            states += after
        return encode(torch.tensor([states]))


class ToyRecurrentBackend:
    """Claims the mixers of the toy recurrent model."""

    outrider_api = 1
    rewindable: ClassVar[bool] = True

    @hookimpl
    def claim_layer(self, layer: LayerInfo) -> ToyRecurrentLayer | None:
        """Claim a mixer, whatever it is called."""
        return ToyRecurrentLayer(self.rewindable) if isinstance(layer.module, ToyMixer) else None

    @hookimpl
    def build_attention_metadata(
        self, common: CommonAttentionMetadata, spec: SpecDecodeMetadata
    ) -> tuple[RequestRows, ...]:
        """Select the slots that each request reads and writes."""
        return tuple(
            _request_rows(common, index, num_drafts) for index, num_drafts in enumerate(spec.num_draft_tokens)
        )


class ForgetfulRecurrentBackend(ToyRecurrentBackend):
    """Says that it keeps one state only, so that speculation on the model must be refused at load."""

    rewindable = False


def _request_rows(common: CommonAttentionMetadata, index: int, num_drafts: int) -> RequestRows:
    start, end = common.query_start_loc[index : index + 2].tolist()
    slots = common.state_slots[index].tolist()
    at_start = int(common.positions[start]) == 0
    return RequestRows(
        start=start,
        end=end,
        read_slot=None if at_start else slots[int(common.num_accepted_tokens[index]) - 1],
        write_slots=tuple(slots[: num_drafts + 1]),
    )

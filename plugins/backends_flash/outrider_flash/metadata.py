"""What a step's layers share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from outrider.api import CommonAttentionMetadata

from .plan import Plan, make_plan


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A `STEP`, its address, and what it points to beside the metadata's own arrays."""

    address: int
    kept: tuple[Any, ...]


@dataclass(slots=True)
class FlashMetadata:
    """Views of the engine's arrays, and the plans made from them; valid until the engine builds its next step.

    Attributes:
        query_start_loc: `[B + 1]` int32.
        positions, slot_mapping: `[T]` int64.
        block_table: `[B, max_blocks]` int32.
        steps: what the native function is told, by the form of the layer.
    """

    query_start_loc: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int64]
    slot_mapping: npt.NDArray[np.int64]
    block_table: npt.NDArray[np.int32]
    steps: dict[tuple[int, ...], StepRecord] = field(default_factory=dict)
    _plans: dict[tuple[int, int, int], Plan] = field(default_factory=dict)

    @classmethod
    def build(cls, common: CommonAttentionMetadata) -> FlashMetadata:
        """Take what attention needs from the engine's description of the step."""
        num_reqs, num_tokens = common.num_reqs, common.num_tokens
        # The compiled function exists for contiguous arrays of exactly these types.
        return cls(
            query_start_loc=np.ascontiguousarray(common.query_start_loc.numpy()[: num_reqs + 1], np.int32),
            positions=np.ascontiguousarray(common.positions.numpy()[:num_tokens], np.int64),
            slot_mapping=np.ascontiguousarray(common.slot_mapping.numpy()[:num_tokens], np.int64),
            block_table=np.ascontiguousarray(common.block_table.numpy()[:num_reqs], np.int32),
        )

    def plan(self, group: int, num_kv_heads: int, window: int) -> Plan:
        """The work of the step for layers of this form, made at the first of them."""
        key = (group, num_kv_heads, window)
        if key not in self._plans:
            self._plans[key] = make_plan(
                self.query_start_loc,
                self.positions,
                group=group,
                num_kv_heads=num_kv_heads,
                window=window,
                num_threads=numba.get_num_threads(),
            )
        return self._plans[key]

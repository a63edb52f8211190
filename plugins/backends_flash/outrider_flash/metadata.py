"""What a step's layers share."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from outrider.api import CommonAttentionMetadata


@dataclass(frozen=True, slots=True)
class Step:
    """What the layers of one form do in this step.

    Attributes:
        address: of a `STEP`.
        num_workers: threads to use, if they have to be woken for it.
        kept: the `STEP` and what it points to.
    """

    address: int
    num_workers: int
    kept: tuple[Any, ...]


@dataclass(slots=True)
class FlashMetadata:
    """Views of the engine's arrays, and what was made from them; valid until the engine builds its next step.

    Attributes:
        query_start_loc: `[B + 1]` int32.
        positions, slot_mapping: `[T]` int64.
        block_table: `[B, max_blocks]` int32.
        steps: what the compiled function is told, by the form of the layer.
    """

    query_start_loc: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int64]
    slot_mapping: npt.NDArray[np.int64]
    block_table: npt.NDArray[np.int32]
    steps: dict[Hashable, Step] = field(default_factory=dict)

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

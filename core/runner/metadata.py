"""From a plan and the input batch to the tensors that describe one forward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt
import torch

from ..api import CommonAttentionMetadata, SpecDecodeMetadata
from ..kernels.cpu.layout import find_logits_rows, lay_out_rows, map_slots
from .input_batch import InputBatch

IntArray = npt.NDArray[np.integer]


@dataclass(frozen=True, slots=True)
class FlatRows:
    """The rows of one forward, all requests one behind the other: `B` requests, `T` rows.

    Attributes:
        batch_rows: `[B]` row of each request in the input batch.
        query_start_loc: `[B + 1]`.
        positions: `[T]` absolute positions.
        request_of_row: `[T]` index in `[0, B)`.
    """

    batch_rows: npt.NDArray[np.int32]
    query_start_loc: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int64]
    request_of_row: npt.NDArray[np.int32]

    @classmethod
    def build(cls, batch_rows: Sequence[int] | IntArray, starts: IntArray, lengths: IntArray) -> FlatRows:
        """Lay out `lengths[i]` rows from position `starts[i]` on for each request."""
        query_start_loc, positions, request_of_row = lay_out_rows(
            np.ascontiguousarray(starts, np.int64), np.ascontiguousarray(lengths, np.int64)
        )
        return cls(np.asarray(batch_rows, np.int32), query_start_loc, positions, request_of_row)


@dataclass(frozen=True, slots=True)
class LogitsRows:
    """The `R` rows of a forward that judge a draft or give a bonus token.

    Attributes:
        spec: the same for backends.
        batch_rows: `[R]` row in the input batch of each row's request.
        positions: `[R]` absolute positions.
    """

    spec: SpecDecodeMetadata
    batch_rows: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int64]

    @classmethod
    def find(cls, drafts: Sequence[Sequence[int]], rows: FlatRows, device: torch.device) -> LogitsRows:
        """They are the last `D_i + 1` rows of each request.

        Args:
            drafts: `B` lists, the drafts of each request; they are its last rows.
        """
        num_draft_tokens = tuple(map(len, drafts))
        indices, requests, targets, bonuses, cumulative = find_logits_rows(
            rows.query_start_loc, np.array(num_draft_tokens, np.int64)
        )
        spec = SpecDecodeMetadata(
            draft_token_ids=to_tensor(np.array(list(chain.from_iterable(drafts)), np.int64), device),
            num_draft_tokens=num_draft_tokens,
            cu_num_draft_tokens=to_tensor(cumulative, device),
            logits_indices=to_tensor(indices, device),
            target_logits_indices=to_tensor(targets, device),
            bonus_logits_indices=to_tensor(bonuses, device),
        )
        return cls(spec, rows.batch_rows.take(requests), rows.positions.take(indices))


def describe_batch_rows(batch: InputBatch, rows: FlatRows, device: torch.device) -> CommonAttentionMetadata:
    """`build_common_metadata` for rows of requests that `batch` holds."""
    return build_common_metadata(
        rows,
        batch.block_table.take(rows.batch_rows, 0),
        batch.block_size,
        batch.state_slots.take(rows.batch_rows, 0),
        batch.num_accepted_tokens.take(rows.batch_rows),
        device,
    )


def build_common_metadata(
    rows: FlatRows,
    block_table: npt.NDArray[np.int32],
    block_size: int,
    state_slots: npt.NDArray[np.int32],
    num_accepted_tokens: npt.NDArray[np.int32],
    device: torch.device,
) -> CommonAttentionMetadata:
    """Describe `rows` to the attention backends.

    Args:
        block_table: `[B, max_blocks]`, in the order of the requests of `rows`; likewise `state_slots [B, K + 1]` and
            `num_accepted_tokens [B]`.

    Raises:
        ValueError: a row lies beyond its request's blocks.
    """
    slot_mapping, seq_lens, max_query_len, max_seq_len, without_block = map_slots(
        rows.positions, rows.query_start_loc, block_table, block_size
    )
    if without_block >= 0:
        position = rows.positions[without_block]
        limit = (
            "the longest sequence the engine allows"
            if position >= block_table.shape[1] * block_size
            else "the KV blocks that are reserved for its request"
        )
        raise ValueError(f"position {position} is beyond {limit}")
    return CommonAttentionMetadata(
        num_reqs=len(rows.batch_rows),
        num_tokens=len(rows.positions),
        max_query_len=max_query_len,
        max_seq_len=max_seq_len,
        block_size=block_size,
        query_start_loc=to_tensor(rows.query_start_loc, device),
        seq_lens=to_tensor(seq_lens, device),
        positions=to_tensor(rows.positions, device),
        block_table=to_tensor(block_table, device),
        slot_mapping=to_tensor(slot_mapping, device),
        state_slots=to_tensor(state_slots, device),
        num_accepted_tokens=to_tensor(num_accepted_tokens, device),
    )


def to_tensor(array: IntArray, device: torch.device) -> torch.Tensor:
    """The array as a tensor on `device`; on the CPU they share memory."""
    tensor = torch.from_numpy(array)
    return tensor if device.type == "cpu" else tensor.to(device)

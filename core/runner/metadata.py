"""From a plan and the input batch to the tensors that describe one forward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from ..api import CommonAttentionMetadata, SpecDecodeMetadata
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
        num_reqs = len(batch_rows)
        query_start_loc = np.zeros(num_reqs + 1, np.int32)
        np.cumsum(lengths, out=query_start_loc[1:])
        request_of_row = np.repeat(np.arange(num_reqs, dtype=np.int32), lengths)
        offsets = np.asarray(starts, np.int64) - query_start_loc[:-1]
        positions = np.arange(query_start_loc[-1], dtype=np.int64) + offsets[request_of_row]
        return cls(np.asarray(batch_rows, np.int32), query_start_loc, positions, request_of_row)


def build_spec_decode_metadata(
    drafts: Sequence[Sequence[int]], query_start_loc: IntArray, device: torch.device
) -> SpecDecodeMetadata:
    """Find the rows that judge a draft or give a bonus token: the last `D_i + 1` rows of each request.

    Args:
        drafts: `B` lists, the drafts of each request; they are its last rows.
        query_start_loc: `[B + 1]`.
    """
    num_draft_tokens = np.fromiter((len(d) for d in drafts), np.int64, len(drafts))
    num_logits = num_draft_tokens + 1
    cu_num_logits = np.cumsum(num_logits)
    # Row j of request i stands num_logits[i] - j rows before the request's end, here and in the flat batch.
    to_flat = np.repeat(query_start_loc[1:] - cu_num_logits, num_logits)
    logits_indices = np.arange(cu_num_logits[-1] if len(drafts) else 0) + to_flat
    bonus = cu_num_logits - 1
    judges_draft = np.ones(len(logits_indices), bool)
    judges_draft[bonus] = False
    flat_drafts = np.fromiter((token for d in drafts for token in d), np.int64, int(num_draft_tokens.sum()))

    def tensor(array: IntArray, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.as_tensor(array, dtype=dtype, device=device)

    return SpecDecodeMetadata(
        draft_token_ids=tensor(flat_drafts),
        num_draft_tokens=tuple(int(n) for n in num_draft_tokens),
        cu_num_draft_tokens=tensor(np.cumsum(num_draft_tokens), torch.int32),
        logits_indices=tensor(logits_indices),
        target_logits_indices=tensor(np.flatnonzero(judges_draft)),
        bonus_logits_indices=tensor(bonus),
    )


def describe_batch_rows(batch: InputBatch, rows: FlatRows, device: torch.device) -> CommonAttentionMetadata:
    """`build_common_metadata` for rows of requests that `batch` holds."""
    return build_common_metadata(
        rows,
        batch.block_table[rows.batch_rows],
        batch.block_size,
        batch.state_slots[rows.batch_rows],
        batch.num_accepted_tokens[rows.batch_rows],
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
    block_index = rows.positions // block_size
    if block_index.max(initial=0) >= block_table.shape[1]:
        raise ValueError(f"position {rows.positions.max()} is beyond the longest sequence the engine allows")
    blocks = block_table[rows.request_of_row, block_index].astype(np.int64)
    if blocks.min(initial=0) < 0:
        position = rows.positions[blocks < 0][0]
        raise ValueError(f"position {position} is beyond the KV blocks that are reserved for its request")
    slot_mapping = blocks * block_size + rows.positions % block_size
    lengths = np.diff(rows.query_start_loc)
    last_rows = rows.query_start_loc[1:] - 1
    seq_lens = rows.positions[last_rows] + 1

    def tensor(array: IntArray, dtype: torch.dtype) -> torch.Tensor:
        return torch.as_tensor(array, dtype=dtype, device=device)

    return CommonAttentionMetadata(
        num_reqs=len(rows.batch_rows),
        num_tokens=len(rows.positions),
        max_query_len=int(lengths.max(initial=0)),
        max_seq_len=int(seq_lens.max(initial=0)),
        block_size=block_size,
        query_start_loc=tensor(rows.query_start_loc, torch.int32),
        seq_lens=tensor(seq_lens, torch.int32),
        positions=tensor(rows.positions, torch.int64),
        block_table=tensor(block_table, torch.int32),
        slot_mapping=tensor(slot_mapping, torch.int64),
        state_slots=tensor(state_slots, torch.int32),
        num_accepted_tokens=tensor(num_accepted_tokens, torch.int32),
    )

"""The requests that the runner holds between steps, as arrays with one row per request."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt

from ..api import SamplingParams
from ..engine.outputs import CachedRequestData, NewRequestData
from ..kernels.cpu.layout import commit_tokens
from ..kernels.cpu.sampling import REQUEST
from ..sampling.sampler import min_length, request_numbers


class InputBatch:
    """Persistent per-request arrays; a request keeps its row (its `state_index`) while it runs.

    Shapes: `S` rows (`max_num_seqs`), `L` tokens (`max_len`).

    Attributes:
        token_ids: `[S, L]` prompt, output, and behind them the drafts that this step verifies.
        num_tokens: `[S]` committed tokens.
        num_computed_tokens: `[S]` tokens whose KV is valid at the start of the step.
        block_table: `[S, max_blocks]`, of which the first `num_blocks[row]` entries are the request's.
        num_accepted_tokens: `[S]` tokens emitted by the previous verification; 1 after a step without drafts.
        state_slots: `[S, K + 1]` slots of each row for layers that keep a state of fixed size.
        sampling: `[S]` of `REQUEST`; `seed` is its field.
        min_lengths: `[S]` tokens, prompt included, before any stop token.
        num_proposed_tokens: `[S]` committed tokens at the last call of the proposer.
    """

    def __init__(self, max_num_seqs: int, max_len: int, block_size: int, num_speculative_tokens: int) -> None:
        max_blocks = -(-max_len // block_size)
        self.block_size = block_size
        self.row_of: dict[str, int] = {}
        self.token_ids = np.zeros((max_num_seqs, max_len), np.int32)
        # What proposers see: numpy's "read-only" does not hold, `torch.from_numpy` for one gives a tensor to write to.
        self._shown_token_ids = np.zeros_like(self.token_ids)
        self.num_tokens = np.zeros(max_num_seqs, np.int32)
        self.num_prompt_tokens = np.zeros(max_num_seqs, np.int32)
        self.num_computed_tokens = np.zeros(max_num_seqs, np.int32)
        self.block_table = np.full((max_num_seqs, max_blocks), -1, np.int32)
        self.num_blocks = np.zeros(max_num_seqs, np.int32)
        slots_per_row = num_speculative_tokens + 1
        self.state_slots = np.arange(max_num_seqs * slots_per_row, dtype=np.int32).reshape(-1, slots_per_row)
        self.num_accepted_tokens = np.ones(max_num_seqs, np.int32)
        self.num_proposed_tokens = np.zeros(max_num_seqs, np.int32)
        self.sampling = np.zeros(max_num_seqs, REQUEST)
        self.min_lengths = np.zeros(max_num_seqs, np.int64)
        self.seed: npt.NDArray[np.uint64] = self.sampling["seed"]
        self.sampling_params: list[SamplingParams | None] = [None] * max_num_seqs
        self.stop_token_ids: list[frozenset[int]] = [frozenset()] * max_num_seqs

    def add(self, request: NewRequestData) -> None:
        """Take a request in at its row."""
        row = request.state_index
        self.row_of[request.request_id] = row
        tokens = len(request.token_ids)
        self.token_ids[row, :tokens] = request.token_ids
        self._shown_token_ids[row, :tokens] = request.token_ids
        self.num_tokens[row] = tokens
        self.num_prompt_tokens[row] = request.num_prompt_tokens
        self.num_computed_tokens[row] = request.num_computed_tokens
        self.num_blocks[row] = 0
        self.block_table[row] = -1
        self._append_blocks(row, request.block_ids)
        self.num_accepted_tokens[row] = 1
        self.num_proposed_tokens[row] = 0
        params = request.sampling_params
        self.sampling[row] = request_numbers(params, request.seed)
        self.min_lengths[row] = min_length(params, request.num_prompt_tokens, request.stop_token_ids)
        self.sampling_params[row] = params
        self.stop_token_ids[row] = request.stop_token_ids

    def update(self, request: CachedRequestData) -> None:
        """Bring a held request up to date with the scheduler."""
        row = self.row_of[request.request_id]
        self.num_computed_tokens[row] = request.num_computed_tokens
        if request.new_block_ids:
            self._append_blocks(row, request.new_block_ids)

    def remove(self, request_id: str) -> None:
        """Forget a request; unknown ids (never scheduled) are fine."""
        row = self.row_of.pop(request_id, None)
        if row is not None:
            self.sampling_params[row] = None

    def place_drafts(self, row: int, drafts: Sequence[int]) -> None:
        """Put the drafts to verify behind the committed tokens."""
        end = int(self.num_tokens[row])
        self.token_ids[row, end : end + len(drafts)] = drafts

    def commit(
        self,
        rows: npt.NDArray[np.int32],
        query_start_loc: npt.NDArray[np.int32],
        num_drafts: Sequence[int],
        emitted: Sequence[Sequence[int]],
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Append what a step of `B` requests decided. A request whose prompt the step did not complete gets nothing.

        A request that ends at the length limit may be handed one token more than its row holds; it is left out.

        Args:
            rows: `[B]` of this batch, whose rows of the forward begin at `query_start_loc [B + 1]`.
            num_drafts: drafts that were verified.
            emitted: tokens of each request.

        Returns:
            `[B]` leading rows of each request whose input token is committed; `[B]` whether its prompt is complete.
        """
        result: tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]] = commit_tokens(
            self.token_ids,
            self._shown_token_ids,
            self.num_tokens,
            self.num_computed_tokens,
            self.num_accepted_tokens,
            rows,
            query_start_loc,
            np.array(num_drafts, np.int64),
            np.array(list(map(len, emitted)), np.int64),
            np.array(list(chain.from_iterable(emitted)), np.int64),
        )
        return result

    def view(self, row: int) -> npt.NDArray[np.int32]:
        """View of a copy of the committed tokens, `[num_tokens]`: whatever is done to it, no forward reads it."""
        tokens = self._shown_token_ids[row, : self.num_tokens[row]]
        tokens.flags.writeable = False
        return tokens

    def _append_blocks(self, row: int, block_ids: object) -> None:
        new = np.asarray(block_ids, np.int32)
        start = int(self.num_blocks[row])
        self.block_table[row, start : start + len(new)] = new
        self.num_blocks[row] = start + len(new)

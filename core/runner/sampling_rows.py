"""How rows of logits are sampled, taken from the input batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from ..sampling.sampler import SamplingRows, sample
from .input_batch import InputBatch


def sampling_rows(
    batch: InputBatch, batch_rows: npt.NDArray[np.int32], positions: npt.NDArray[np.int64]
) -> SamplingRows:
    """Describe one row of logits per entry.

    Args:
        batch_rows: `[R]` row of the request in the batch.
        positions: `[R]` absolute position of the token to be sampled. The tokens before it must be in the batch.
    """

    return SamplingRows(
        requests=batch.sampling,
        min_lengths=batch.min_lengths,
        request_of_row=batch_rows,
        positions=positions,
        params=lambda row: batch.sampling_params[batch_rows[row]],
        stop_token_ids=lambda row: batch.stop_token_ids[batch_rows[row]],
        history=lambda row: batch.token_ids[batch_rows[row], : positions[row]],
    )


def sample_for(
    batch: InputBatch,
    requests: npt.NDArray[np.int32],
    logits: torch.Tensor,
    request_indices: Sequence[int],
    positions: Sequence[int],
) -> list[int]:
    """`api.SampleFn`, once `batch` and `requests` (`[B]` batch rows of a context's requests) are bound."""
    batch_rows = requests[np.asarray(request_indices, np.int64)]
    rows = sampling_rows(batch, batch_rows, np.asarray(positions, np.int64))
    tokens: list[int] = sample(logits, rows).tolist()
    return tokens

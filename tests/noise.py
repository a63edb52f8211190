"""The noise with which the engine samples, for tests that predict a token."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from outrider.kernels.cpu.philox import gumbel_row
from outrider.kernels.cpu.sampling import TOKEN_STREAM


def gumbel_noise(
    seed: int, position: int, vocab_size: int, stream: int = TOKEN_STREAM
) -> npt.NDArray[np.float64]:
    """Return the Gumbel noise `[vocab_size]` that is added at `position`."""
    return np.asarray(gumbel_row(np.uint64(seed), np.uint64(stream), np.uint64(position), vocab_size))

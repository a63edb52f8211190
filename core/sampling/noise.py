"""The engine's randomness as a pure function of (request seed, position, stream, token id).

There is no state that a draw could advance, so batch, chunking, preemption and speculation leave a request's tokens
alone. Positions are absolute, 0 being the first prompt token; the noise at a position chooses the token there.
Resolution is 2**-32: a token less probable than that is as good as masked.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from ..kernels.cpu.philox import gumbel_row, uniform_at
from ..kernels.cpu.sampling import ACCEPT_STREAM, RECOVERED_STREAM, TOKEN_STREAM


class Stream(IntEnum):
    """Independent noise for each purpose. Sharing one between two of them would bias what is sampled."""

    TOKEN = TOKEN_STREAM
    """Gumbel noise that chooses a token from the target, or from a drafter that samples with the engine's noise."""
    ACCEPT = ACCEPT_STREAM
    """The uniform that decides on a draft (`rejection`)."""
    RECOVERED = RECOVERED_STREAM
    """Gumbel noise that chooses the token in place of a rejected draft (`rejection`)."""


def gumbel_noise(
    seed: int, position: int, vocab_size: int, stream: Stream = Stream.TOKEN
) -> npt.NDArray[np.float64]:
    """Return the Gumbel noise `[vocab_size]` that the sampler adds at `position`.

    The sampler itself evaluates it only where it can matter; this is for tests.
    """
    return np.asarray(gumbel_row(np.uint64(seed), np.uint64(stream), np.uint64(position), vocab_size))


def accept_uniform(seed: int, position: int) -> float:
    """Return the uniform in (0, 1) that decides on the draft at `position` under `rejection`."""
    return float(uniform_at(np.uint64(seed), np.uint64(Stream.ACCEPT), np.uint64(position)))

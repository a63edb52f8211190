"""Logits processors: what changes a row of logits before anything is sampled from it.

A new one (penalty, logit bias, bad words, allowed tokens, grammar) is a class with two methods and an entry in
`PROCESSORS`. Each is applied at every row, the rows that judge a draft included, with the history that the row really
has. Temperature, top-k, top-p and min_p are no processors: the sampling kernel does them while it reads the row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from .sampler import SamplingRows


class LogitsProcessor(Protocol):
    """Changes some rows of the logits."""

    def applies(self, rows: SamplingRows) -> npt.NDArray[np.intp]:
        """Return the indices of the rows that it changes; if there are none, the step costs nothing more."""
        ...

    def apply(
        self, logits: npt.NDArray[np.float32], rows: SamplingRows, indices: npt.NDArray[np.intp]
    ) -> None:
        """Change `logits[indices]` in place; -inf forbids a token.

        Args:
            logits: `[R, V]`, a copy that belongs to the sampler.
            rows: parameters per row; `rows.history(r)` gives the tokens before row `r`, drafts included.
            indices: what `applies` returned.
        """
        ...


class MinTokens:
    """Forbids every stop token while a request has fewer than `min_tokens` output tokens."""

    def applies(self, rows: SamplingRows) -> npt.NDArray[np.intp]:
        """Rows that are short of their minimum and have something to forbid."""
        early: npt.NDArray[np.bool_] = rows.positions < rows.min_lengths.take(rows.request_of_row)
        return early.nonzero()[0]

    def apply(
        self, logits: npt.NDArray[np.float32], rows: SamplingRows, indices: npt.NDArray[np.intp]
    ) -> None:
        """Mask the rows' stop tokens; ids outside the vocabulary are nobody's."""
        for r in indices:
            for token in rows.stop_token_ids(r):
                if 0 <= token < logits.shape[1]:
                    logits[r, token] = -np.inf


PROCESSORS: tuple[LogitsProcessor, ...] = (MinTokens(),)
"""Applied in this order."""

"""Rotary embeddings by position, computed once by the model's own module."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

_Tables = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]

_LEAST_POSITIONS = 1024
_MOST_BYTES = (
    16 << 20
)  # of a table; where contexts are longer, a step takes longer than computing its own rows
_FAR = 1 << 24
"""A position beyond what any model was trained on."""


class RotaryTables:
    """Cosines and sines of a `rotary_emb` module.

    Where the numbers of a position do not depend on other positions they are computed once and kept; a module that
    scales with the longest sequence at hand (dynamic NTK, LongRoPE) is asked each time.
    """

    def __init__(self, rotary: nn.Module) -> None:
        self._rotary = rotary
        near = np.arange(4)
        together = self._compute(np.append(near, _FAR))
        self._is_static = all(
            np.array_equal(one, other[:4]) for one, other in zip(self._compute(near), together, strict=True)
        )
        self._tables = self._compute(near)

    def rows(self, positions: npt.NDArray[np.int64]) -> _Tables:
        """Cosines and sines `[T, R]` of positions `[T]`."""
        if not self._is_static:
            return self._compute(positions)
        highest = int(positions.max(initial=0))
        if highest >= len(self._tables[0]):
            wanted = max(_LEAST_POSITIONS, 2 * highest)
            if wanted * self._tables[0].itemsize * self._tables[0].shape[1] > _MOST_BYTES:
                return self._compute(positions)
            self._tables = self._compute(np.arange(wanted))
        cos, sin = self._tables
        return cos.take(positions, 0), sin.take(positions, 0)

    def _compute(self, positions: npt.NDArray[np.int64]) -> _Tables:
        like = torch.zeros(1, 1, 1)
        cos, sin = self._rotary(like, torch.from_numpy(positions)[None])
        return np.ascontiguousarray(cos[0].float().numpy()), np.ascontiguousarray(sin[0].float().numpy())

"""The rows of a forward on their way through decoder layers, and the scratch around them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import config

from .decoder import decoder_boards
from .decoder_records import STEP
from .linear import workers_for
from .weights import empty_aligned, padded

_Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Of a layer: heads of queries, heads of keys and values, `D`, `H`, `I`."""

    num_heads: int
    num_kv_heads: int
    head_size: int
    hidden_size: int
    intermediate_size: int


class DecoderWorkspace:
    """Room for as many rows as a forward had so far. Layers of one size share it: they run one after another.

    Args:
        sizes: of the layers.
        num_layers: most layers that run in one call.
        max_workers: most threads that work on them.

    Attributes:
        step: address of a `STEP` that describes the rows of the latest `begin`.
    """

    def __init__(self, sizes: Sizes, num_layers: int, max_workers: int = config.NUMBA_NUM_THREADS) -> None:
        self._sizes = sizes
        self._board, self._counters = decoder_boards(num_layers, max_workers)
        self._step = np.zeros(1, STEP)
        self._arrays: dict[str, _Array] = {}
        self._capacity = self._rotary_size = 0
        self.step: int = self._step.ctypes.data

    def begin(
        self, num_rows: int, rotary: tuple[_Array, _Array] | None, num_workers: int | None = None
    ) -> None:
        """Prepare for `num_rows` rows.

        Args:
            rotary: cosines and sines `[T, R]` of the rotary embedding.
            num_workers: None: as many as the work is worth.
        """
        rotary_size = 0 if rotary is None else rotary[0].shape[1]
        if num_rows > self._capacity or rotary_size > self._rotary_size:
            self._make_room(max(num_rows, self._capacity), max(rotary_size, self._rotary_size))
        if num_workers is None:
            hidden, intermediate = self._sizes.hidden_size, self._sizes.intermediate_size
            num_workers = workers_for(num_rows * hidden * (4 * hidden + 3 * intermediate))
        step = self._step[0]
        step["num_rows"], step["num_workers"], step["rotary_size"] = num_rows, num_workers, rotary_size
        if rotary is not None:
            self.rows("cos", num_rows, rotary_size)[:], self.rows("sin", num_rows, rotary_size)[:] = rotary

    def rows(self, name: str, num_rows: int, size: int) -> _Array:
        """The array `[num_rows, size]` of that name in `STEP`; valid until `begin` with more rows."""
        return self._arrays[name][: num_rows * size].reshape(num_rows, size)

    def attended(self, num_rows: int) -> _Array:
        """`[num_rows, heads * D]`, where attention's output belongs; zeros behind it up to a whole step."""
        size = self._sizes.num_heads * self._sizes.head_size
        array = self.rows("attended", num_rows, padded(size))
        array[:, size:] = 0
        return array[:, :size]

    def _make_room(self, capacity: int, rotary_size: int) -> None:
        sizes = self._sizes
        hidden, wide = sizes.hidden_size, padded(sizes.intermediate_size)
        queries, keys = (heads * sizes.head_size for heads in (sizes.num_heads, sizes.num_kv_heads))
        widths = {
            "cos": rotary_size,
            "sin": rotary_size,
            "hidden": hidden,
            "normed": padded(hidden),
            "query": queries,
            "key": keys,
            "value": keys,
            "attended": padded(queries),
            "middle": hidden,
            "gates": wide,
            "ups": wide,
        }
        self._arrays = {
            name: empty_aligned((capacity * width,), np.float32) for name, width in widths.items()
        }
        self._capacity, self._rotary_size = capacity, rotary_size
        arrays: dict[str, npt.NDArray[Any]] = {
            **self._arrays,
            "board": self._board,
            "counters": self._counters,
        }
        step = self._step[0]
        for name, array in arrays.items():
            step[name] = array.ctypes.data
        for name in ("num_heads", "num_kv_heads", "head_size", "hidden_size", "intermediate_size"):
            step[name] = getattr(sizes, name)

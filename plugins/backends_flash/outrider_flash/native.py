"""The compiled function behind a C interface, for callers that stay in compiled code from layer to layer."""

from __future__ import annotations

from functools import cache
from typing import Any

from numba import cfunc, types

from .attention import attend_together
from .fingerprint import source_fingerprint
from .memory import record
from .records import LAYER, Call
from .simd import compiled


@compiled
def _contiguous(layer: Any, query: int, key: int, value: int, output: int) -> Any:
    key_head, value_head = 4 * layer.key_size, 4 * layer.value_size
    query_row, key_row, value_row = (
        layer.num_heads * key_head,
        layer.num_kv_heads * key_head,
        layer.num_kv_heads * value_head,
    )
    return Call(query, query_row, key_head, key, key_row, key_head, value, value_row, value_head, output)


def _compile(fingerprint: int) -> Any:
    @cfunc(types.void(*[types.int64] * 9), cache=True, error_model="numpy")
    def attend_native(
        layer: int, step: int, query: int, key: int, value: int, output: int, counters: int, worker: int,
        num_workers: int,
    ) -> None:  # fmt: skip
        """See `outrider.api.NativeAttention`; `layer` and `step` are addresses of a `LAYER` and a `STEP`."""
        if fingerprint < 0:  # never: but what the function captures is part of its key in numba's cache
            return
        call = _contiguous(record(layer, LAYER), query, key, value, output)
        attend_together(layer, step, call, counters, worker)

    return attend_native


@cache
def native_address() -> int:
    """Address of the compiled function; compiles it, or loads it from numba's cache."""
    address: int = _compile(source_fingerprint()).address
    return address

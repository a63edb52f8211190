"""The compiled function behind a C interface, for callers that stay in compiled code from layer to layer."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import carray, cfunc, types

from .attention import attend, source_fingerprint, warm_up
from .records import CALL, ITEM, LAYER, STEP
from .simd import compiled, pointer


@compiled
def _at(address: int, size: int, kind: Any) -> Any:
    return carray(pointer(address), (size,), kind)


def _compile(fingerprint: int) -> Any:
    warm_up()

    @cfunc(types.void(*[types.int64] * 6), cache=True, error_model="numpy")
    def attend_native(layer: int, step: int, query: int, key: int, value: int, output: int) -> None:
        """See `outrider.api.NativeCall`; `layer` and `step` are addresses of a `LAYER` and a `STEP`."""
        if fingerprint < 0:  # never: but what the function captures is part of its key in numba's cache
            return
        layers, this = _at(layer, 1, LAYER), _at(step, 1, STEP)[0]
        rows, heads, kv_heads = this.num_rows, layers[0].num_heads, layers[0].num_kv_heads
        calls = _at(this.call, 1, CALL)
        call = calls[0]
        call.query, call.key, call.value = query, key, value
        call.query_head = call.key_head = 4 * layers[0].key_size
        call.value_head = 4 * layers[0].value_size
        call.query_row, call.key_row = heads * call.query_head, kv_heads * call.key_head
        call.value_row = kv_heads * call.value_head
        call.partials = this.partials
        attend(
            layers,
            calls,
            _at(this.positions, rows, np.int64),
            _at(this.slots, rows, np.int64),
            carray(pointer(this.block_table), (this.num_requests, this.max_blocks), np.int32),
            _at(this.items, this.num_items, ITEM),
            _at(this.merges, this.num_merges, ITEM),
            carray(pointer(this.scratch), (this.num_threads, this.scratch_size), np.float32),
            _at(this.ticket, 1, np.int64),
            this.num_workers,
            carray(pointer(output), (rows, heads, layers[0].value_size), np.float32),
        )

    return attend_native


@cache
def native_address() -> int:
    """Address of the compiled function; compiles it, or loads it from numba's cache."""
    address: int = _compile(source_fingerprint()).address
    return address

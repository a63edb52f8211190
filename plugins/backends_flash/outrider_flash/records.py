"""What the compiled code is told about a layer and a step, and how much room it needs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import register_jitable

from .simd import LANES

AHEAD = 32
"""Entries between the one that is computed and the one that is asked for."""
FLOAT32, BFLOAT16, FLOAT16 = 0, 1, 2
PARTITION = 128
"""Positions that are reduced together; part of the definition of a row's bits."""

LAYER = np.dtype(
    [
        ("num_heads", np.int64),
        ("num_kv_heads", np.int64),
        ("key_size", np.int64),
        ("value_size", np.int64),
        ("block_size", np.int64),
        ("window", np.int64),  # positions a query sees, itself included; 0: all
        ("scaling", np.float32),
        ("softcap", np.float32),  # 0: none
        ("sinks", np.int64),  # address of [num_heads] float32; 0: none
        ("cache_type", np.int64),  # FLOAT32, BFLOAT16 or FLOAT16
        ("key_cache", np.int64),  # addresses; strides of a block, of a token and of a head in bytes
        ("key_block", np.int64),
        ("key_token", np.int64),
        ("key_head", np.int64),
        ("value_cache", np.int64),
        ("value_block", np.int64),
        ("value_token", np.int64),
        ("value_head", np.int64),
    ]
)
"""What the kernel knows of a layer once its cache is bound."""


STEP = np.dtype(
    [
        (name, np.int64)
        for name in (
            *("num_rows", "num_requests", "max_blocks", "num_items", "num_merges", "scratch_size"),
            # addresses
            *("positions", "slots", "block_table", "items", "merges", "scratch", "partials"),
        )
    ]
)
"""What the layers of one form share in a step. `scratch` has `scratch_size` floats for each thread."""


ITEM = np.dtype(
    [
        ("first_row", np.int64),
        ("last_row", np.int64),
        ("request", np.int64),
        ("head", np.int64),
        ("first_partition", np.int64),
        ("last_partition", np.int64),
        (
            "partials",
            np.int64,
        ),  # index of its first state among the partial ones; -1: finishes its tile alone
    ]
)
"""A piece of work for one thread: rows of a request, one key/value head, a range of partitions."""


@register_jitable
def padded(size: int) -> Any:
    """Round up to whole vectors of lanes."""
    return (size + LANES - 1) // LANES * LANES


@register_jitable
def state_size(value_size: int) -> Any:
    """Floats of a query's softmax state: weighted sum of values; largest score and sum of weights in all lanes."""
    return padded(value_size) + 2 * LANES


@register_jitable
def scratch_size(num_queries: int, key_size: int, value_size: int) -> Any:
    """Floats that one thread needs for tiles of `num_queries`; `lay_out` in `tile` says what lies where."""
    keys, values = padded(key_size), padded(value_size)
    per_query = keys + PARTITION + 2 * state_size(value_size) + 4
    return (
        num_queries * per_query + LANES * max(keys, values) + keys + 2 * (2 * LANES + 2 * PARTITION + AHEAD)
    )

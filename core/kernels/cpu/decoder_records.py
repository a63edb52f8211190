"""What the kernels of a decoder are told: addresses and sizes, so that one call serves layers of every size."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic

from .simd import inlined


def _matrix_fields(*names: str) -> list[tuple[str, Any]]:
    return [(name + part, np.int64) for name in names for part in ("", "_scales", "_bias")]


LAYER = np.dtype(
    [
        *[("input_norm", np.int64), ("input_epsilon", np.float32), *_matrix_fields("q", "k", "v")],
        *[("q_norm", np.int64), ("k_norm", np.int64), ("head_epsilon", np.float32)],
        *_matrix_fields("output"),
        *[("output_norm", np.int64), ("output_epsilon", np.float32), *_matrix_fields("gate", "up", "down")],
        ("uses_rotary", np.bool_),
    ],
    align=True,
)
"""Addresses of a layer's arrays, 0 for one that is empty.

`q [heads * D, padded(H)]`, `k` and `v [kv_heads * D, padded(H)]`, `output [H, padded(heads * D)]`, `gate` and `up
[I, padded(H)]`, `down [H, padded(I)]`, each with scales and bias as `product.columns` takes them; weights of RMSNorms
`input_norm` and `output_norm [H]`, of those over heads `q_norm` and `k_norm [D]`, and what they add to the mean square.
"""

CALL = np.dtype([("function", np.int64), ("layer", np.int64), ("step", np.int64)])
"""Attention of a layer: the function of an `api.NativeAttention` and its first two arguments."""

STEP = np.dtype(
    [
        (name, np.int64)
        for name in (
            *("num_rows", "num_workers", "rotary_size"),
            *("hidden_size", "intermediate_size", "num_heads", "num_kv_heads", "head_size"),
            *(
                "cos",
                "sin",
                "hidden",
                "normed",
                "query",
                "key",
                "value",
                "attended",
                "middle",
                "gates",
                "ups",
            ),
            *("board", "counters"),
        )
    ]
)
"""`T` rows in one forward: sizes, and addresses of float32 arrays in C order.

`cos` and `sin [T, R]` of the rotary embedding; `hidden [T, H]`, what enters the layers, and then what leaves them;
`query [T, heads, D]`, `key` and `value [T, kv_heads, D]`, `attended [T, padded(heads * D)]`: what attention takes and
gives; scratch `normed [T, padded(H)]`, `middle [T, H]`, `gates` and `ups [T, padded(I)]`; and what workers count on,
`board` and `counters`.
"""


def layer_record(arguments: Iterable[Any]) -> tuple[Any, ...]:
    """A `LAYER` from arrays and numbers; the arrays must outlive it."""
    return tuple(
        (one.ctypes.data if one.size else 0) if isinstance(one, np.ndarray) else one for one in arguments
    )


@intrinsic
def pointer(typingctx: Any, address: Any) -> Any:
    """The address as a pointer, for `numba.carray`."""

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), codegen


@inlined
def floats(address: int, size: int) -> Any:
    """`[size]` float32; `[0]` for the address 0."""
    return carray(pointer(address), (size if address else 0,), np.float32)


@inlined
def rows(address: int, num_rows: int, size: int) -> Any:
    """`[num_rows, size]` float32."""
    return carray(pointer(address), (num_rows, size), np.float32)


class Matrix(NamedTuple):
    """A weight `[N, K]` with scales and bias `[N]` or `[0]`, as `product.columns` takes them."""

    values: Any
    scales: Any
    bias: Any


@inlined
def matrix(values: int, scales: int, bias: int, num_rows: int, num_columns: int, like: Any) -> Any:
    """The matrix at these addresses, of the type of the array `like`."""
    array = carray(pointer(values), (num_rows, num_columns), like.dtype)
    return Matrix(array, floats(scales, num_rows), floats(bias, num_rows))

"""What the kernels of a decoder are told: addresses and sizes, so that one call serves layers of every size."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic, overload

from .packed_bfloat16 import BLOCK_BYTES, EXCEPTION
from .product import Matrix
from .simd import STEP as WIDTH
from .simd import inlined

MATRIX = np.dtype([(name, np.int64) for name in Matrix._fields])
"""Addresses of the arrays of a `Matrix`, 0 for one that is empty."""

LAYER = np.dtype(
    [
        *[("input_norm", np.int64), ("input_epsilon", np.float32)],
        *[("q", MATRIX), ("k", MATRIX), ("v", MATRIX)],
        *[("q_norm", np.int64), ("k_norm", np.int64), ("head_epsilon", np.float32)],
        *[("output", MATRIX), ("output_norm", np.int64), ("output_epsilon", np.float32)],
        *[("gate", MATRIX), ("up", MATRIX), ("down", MATRIX), ("uses_rotary", np.bool_)],
    ],
    align=True,
)
"""A layer: matrices, addresses of the weights of RMSNorms (0: none), and what they add to the mean square.

`q [heads * D, H]`, `k` and `v [kv_heads * D, H]`, `output [H, heads * D]`, `gate` and `up [I, H]`, `down [H, I]`, each
with its rows padded; `input_norm` and `output_norm [H]`; `q_norm` and `k_norm [D]`, over heads.
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


def layer_record(**fields: Any) -> npt.NDArray[np.void]:
    """A `LAYER [1]` from arrays, matrices and numbers, by name; the arrays must outlive it.

    Raises:
        TypeError: a name is missing or unknown.
    """
    if fields.keys() != set(LAYER.names or ()):
        raise TypeError(
            f"of a layer these names are missing or unknown: {fields.keys() ^ set(LAYER.names or ())}"
        )
    record = np.zeros(1, LAYER)
    for name, value in fields.items():
        record[name] = tuple(map(_address, value)) if isinstance(value, Matrix) else _address(value)
    return record


def _address(value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    return value.ctypes.data if value.size else 0


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


def _row_length(like: Any, depth: int) -> int:
    """Entries of an array of the type of `like` that hold `depth` numbers."""
    raise NotImplementedError("compiled only")


@overload(_row_length, jit_options={"error_model": "numpy"})
def _row_length_of(like: Any, depth: int) -> Any:
    def packed(like: Any, depth: int) -> Any:
        return depth // WIDTH * BLOCK_BYTES

    def plain(like: Any, depth: int) -> Any:
        return depth

    return packed if like.dtype == types.uint8 else plain


@inlined
def matrix(addresses: Any, num_rows: int, depth: int, like: Any) -> Any:
    """The `Matrix [num_rows, depth]` at the addresses of a `MATRIX`, of the type of the array `like`."""
    values = carray(pointer(addresses.values), (num_rows, _row_length(like, depth)), like.dtype)
    # How many exceptions there are, they say themselves.
    exceptions = carray(pointer(addresses.exceptions), (1 if addresses.exceptions else 0,), EXCEPTION)
    return Matrix(values, floats(addresses.scales, num_rows), exceptions, floats(addresses.bias, num_rows))

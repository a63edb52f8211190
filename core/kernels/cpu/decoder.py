"""All decoder layers of a model in one call, attention included: between two layers nobody has to ask Python.

Attention is a C function of the backend; see `api.attention.NativeCall`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic

from .decoder_layer import after_attention, before_attention
from .simd import inlined, kernel


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
"""Addresses of a layer's arrays, 0 for one that is empty, in the order in which the kernels of a layer take them."""


def layer_record(arguments: Iterable[Any]) -> tuple[Any, ...]:
    """A `LAYER` from arrays and numbers; the arrays must outlive it."""
    return tuple(
        (one.ctypes.data if one.size else 0) if isinstance(one, np.ndarray) else one for one in arguments
    )


@intrinsic
def _pointer(typingctx: Any, address: Any) -> Any:
    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), codegen


@intrinsic
def _attend(
    typingctx: Any, function: Any, layer: Any, step: Any, query: Any, key: Any, value: Any, output: Any
) -> Any:
    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(64)] * 6)
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 7), codegen


@inlined
def _floats(address: int, size: int) -> Any:
    """`[size]` float32; `[0]` for the address 0."""
    return carray(_pointer(address), (size if address else 0,), np.float32)


@inlined
def _matrix(address: int, num_rows: int, num_columns: int, like: Any) -> Any:
    return carray(_pointer(address), (num_rows, num_columns), like.dtype)


def _build(fingerprint: int) -> Callable[..., Any]:
    def run_layers(
        layers: Any, calls: Any, like: Any, hidden: Any, even: Any, odd: Any, cos: Any, sin: Any, no_rotary: Any,
        query: Any, key: Any, value: Any, attended: Any, middle: Any, normed: Any, gates: Any, ups: Any, board: Any,
        intermediate: int, num_workers: int,
    ) -> int:  # fmt: skip
        """Run `T` rows through all layers.

        Args:
            layers: `[L]` of `LAYER`, all of the same sizes.
            calls: `[L, 3]` int64: function, layer and step of each layer's `NativeCall`.
            like: an array of the weights' type.
            hidden: `[T, H]`, what enters the first layer.
            even, odd: `[T, H]`, what leaves the layers of even and of odd number.
            cos, sin, query, key, value, middle, normed, gates, ups, board: as the kernels of a layer take them;
                no_rotary: `[T, 0]`.
            attended: `[T, heads * D]`, a multiple of `STEP` wide.
            intermediate: `I`.
        """
        size = hidden.shape[1]
        depth = normed.shape[1]
        head = query.shape[2]
        queries, keys = query.shape[1] * head, key.shape[1] * head
        for i in range(len(layers)):
            layer = layers[i]
            x, y = (odd, even) if i % 2 == 0 else (even, odd)
            if i == 0:
                x = hidden
            cosines, sines = (cos, sin) if layer.uses_rotary else (no_rotary, no_rotary)
            before_attention(
                x, _floats(layer.input_norm, size), layer.input_epsilon,
                _matrix(layer.q, queries, depth, like), _floats(layer.q_scales, queries),
                _floats(layer.q_bias, queries),
                _matrix(layer.k, keys, depth, like), _floats(layer.k_scales, keys), _floats(layer.k_bias, keys),
                _matrix(layer.v, keys, depth, like), _floats(layer.v_scales, keys), _floats(layer.v_bias, keys),
                _floats(layer.q_norm, head), _floats(layer.k_norm, head), layer.head_epsilon,
                cosines, sines, normed, query, key, value, board, num_workers,
            )  # fmt: skip
            _attend(
                calls[i, 0], calls[i, 1], calls[i, 2],
                query.ctypes.data, key.ctypes.data, value.ctypes.data, attended.ctypes.data,
            )  # fmt: skip
            after_attention(
                attended, x,
                _matrix(layer.output, size, queries, like), _floats(layer.output_scales, size),
                _floats(layer.output_bias, size), _floats(layer.output_norm, size), layer.output_epsilon,
                _matrix(layer.gate, intermediate, depth, like), _floats(layer.gate_scales, intermediate),
                _floats(layer.gate_bias, intermediate),
                _matrix(layer.up, intermediate, depth, like), _floats(layer.up_scales, intermediate),
                _floats(layer.up_bias, intermediate),
                _matrix(layer.down, size, gates.shape[1], like), _floats(layer.down_scales, size),
                _floats(layer.down_bias, size),
                middle, normed, gates, ups, y, board, num_workers,
            )  # fmt: skip
        return fingerprint

    return run_layers


run_layers = kernel(_build, parallel=False)

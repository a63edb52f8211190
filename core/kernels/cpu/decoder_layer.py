"""A decoder layer of the Llama shape in two parallel regions, one before attention and one after it.

Before: RMSNorm, the products that give queries, keys and values, normalisation of heads, rotary embedding. After:
output product and residual, RMSNorm, gated MLP, residual. Between the products of a region the threads meet as `work`
describes. Every row is computed as if it were alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import prange

from .linear import TASKS_PER_WORKER, chunk_of_columns
from .product import columns
from .rows import gate_columns, normalize_head, normalize_row, rotate_head
from .simd import inlined, kernel
from .work import done, draw, wait

NUM_STAGES = 4
"""Stages of the longer region: what its board has to count."""

_ROWS = 16  # rows of a task that normalises


@inlined
def _normalize(x: Any, weight: Any, epsilon: Any, out: Any, board: Any, stage: int) -> None:
    """One stage: the norm of every row."""
    square = np.empty((1, 1), np.float32)
    num_rows = len(x)
    first = draw(board, stage) * _ROWS
    while first < num_rows:
        for row in range(first, min(num_rows, first + _ROWS)):
            normalize_row(x, weight, epsilon, out, square, row)
        done(board, stage)
        first = draw(board, stage) * _ROWS
    wait(board, stage, -(-num_rows // _ROWS))


@inlined
def _head(
    x: Any, weight: Any, scales: Any, bias: Any, out: Any, head: int, size: int, norm: Any, epsilon: Any, cos: Any,
    sin: Any,
) -> None:  # fmt: skip
    """The columns of one head of `weight`, written to `out [M, heads * D]`, normalised and rotated."""
    begin = head * size
    columns(x, weight, scales, bias, out, begin, begin + size)
    for row in range(len(x)):
        entries = out[row, begin : begin + size]
        if len(norm):
            normalize_head(entries, norm, epsilon)
        if cos.shape[1]:
            rotate_head(entries, cos[row], sin[row])


@inlined
def _before(
    hidden: Any, norm: Any, epsilon: Any, q: Any, q_scales: Any, q_bias: Any, k: Any, k_scales: Any, k_bias: Any,
    v: Any, v_scales: Any, v_bias: Any, q_norm: Any, k_norm: Any, head_epsilon: Any, cos: Any, sin: Any, normed: Any,
    query: Any, key: Any, value: Any, board: Any, num_workers: int,
) -> None:  # fmt: skip
    """What one worker does of `before_attention`."""
    num_rows, num_heads, size = query.shape
    num_kv_heads = key.shape[1]
    queries = query.reshape(num_rows, num_heads * size)
    keys = key.reshape(num_rows, num_kv_heads * size)
    values = value.reshape(num_rows, num_kv_heads * size)
    total = num_heads + 2 * num_kv_heads
    chunk = -(-total // (num_workers * TASKS_PER_WORKER))
    _normalize(hidden, norm, epsilon, normed, board, 0)
    first = draw(board, 1) * chunk
    while first < total:
        for head in range(first, min(total, first + chunk)):
            other = head - num_heads
            if other < 0:
                _head(normed, q, q_scales, q_bias, queries, head, size, q_norm, head_epsilon, cos, sin)
            elif other < num_kv_heads:
                _head(normed, k, k_scales, k_bias, keys, other, size, k_norm, head_epsilon, cos, sin)
            else:
                begin = (other - num_kv_heads) * size
                columns(normed, v, v_scales, v_bias, values, begin, begin + size)
        first = draw(board, 1) * chunk


def _build_before(fingerprint: int) -> Callable[..., Any]:
    def before_attention(
        hidden: Any, norm: Any, epsilon: Any, q: Any, q_scales: Any, q_bias: Any, k: Any, k_scales: Any, k_bias: Any,
        v: Any, v_scales: Any, v_bias: Any, q_norm: Any, k_norm: Any, head_epsilon: Any, cos: Any, sin: Any,
        normed: Any, query: Any, key: Any, value: Any, board: Any, num_workers: int,
    ) -> int:  # fmt: skip
        """Compute queries, keys and values of `T` rows.

        Args:
            hidden: `[T, H]`.
            norm: `[H]`, weight of the first RMSNorm; `epsilon` belongs to it.
            q, k, v: `[heads * D, padded(H)]`, `[kv_heads * D, padded(H)]` twice; each with scales and bias as
                `product.columns` takes them.
            q_norm, k_norm: `[D]`, weights of the norms over heads, or `[0]`; `head_epsilon` belongs to them.
            cos, sin: `[T, R]` of the rotary embedding; `R` is 0 for none.
            normed: `[T, padded(H)]`, scratch.
            query, key, value: `[T, heads, D]`, `[T, kv_heads, D]` twice: the result.
            board: from `work.new_board`.
        """
        board[:] = 0
        if num_workers == 1:
            _before(
                hidden, norm, epsilon, q, q_scales, q_bias, k, k_scales, k_bias, v, v_scales, v_bias, q_norm, k_norm,
                head_epsilon, cos, sin, normed, query, key, value, board, num_workers,
            )  # fmt: skip
            return fingerprint
        for _ in prange(num_workers):
            _before(
                hidden, norm, epsilon, q, q_scales, q_bias, k, k_scales, k_bias, v, v_scales, v_bias, q_norm, k_norm,
                head_epsilon, cos, sin, normed, query, key, value, board, num_workers,
            )  # fmt: skip
        return fingerprint

    return before_attention


before_attention = kernel(_build_before)


@inlined
def _add_product(
    x: Any,
    weight: Any,
    scales: Any,
    bias: Any,
    residual: Any,
    out: Any,
    board: Any,
    stage: int,
    num_workers: int,
) -> None:
    """One stage: `out = residual + x @ weight.T + bias`; nobody is waited for."""
    num_columns = len(weight)
    chunk = chunk_of_columns(num_columns, num_workers)
    first = draw(board, stage) * chunk
    while first < num_columns:
        last = min(num_columns, first + chunk)
        columns(x, weight, scales, bias, out, first, last)
        for row in range(len(x)):
            for n in range(first, last):
                out[row, n] = residual[row, n] + out[row, n]
        done(board, stage)
        first = draw(board, stage) * chunk


@inlined
def _gated(
    x: Any, gate: Any, gate_scales: Any, gate_bias: Any, up: Any, up_scales: Any, up_bias: Any, gates: Any, ups: Any,
    board: Any, stage: int, num_workers: int,
) -> None:  # fmt: skip
    """One stage: `gates = silu(x @ gate.T) * (x @ up.T)`, zeros behind the last column of the products."""
    num_columns, width = len(gate), gates.shape[1]
    chunk = chunk_of_columns(width, num_workers)
    first = draw(board, stage) * chunk
    while first < width:
        last, end = min(num_columns, first + chunk), min(width, first + chunk)
        columns(x, gate, gate_scales, gate_bias, gates, first, last)
        columns(x, up, up_scales, up_bias, ups, first, last)
        for row in range(len(x)):
            for n in range(last, end):
                gates[row, n] = ups[row, n] = np.float32(0.0)
        gate_columns(gates, ups, first, end)
        done(board, stage)
        first = draw(board, stage) * chunk
    wait(board, stage, -(-width // chunk))


@inlined
def _after(
    attended: Any, residual: Any, output: Any, output_scales: Any, output_bias: Any, norm: Any, epsilon: Any,
    gate: Any, gate_scales: Any, gate_bias: Any, up: Any, up_scales: Any, up_bias: Any, down: Any, down_scales: Any,
    down_bias: Any, middle: Any, normed: Any, gates: Any, ups: Any, out: Any, board: Any, num_workers: int,
) -> None:  # fmt: skip
    """What one worker does of `after_attention`."""
    _add_product(attended, output, output_scales, output_bias, residual, middle, board, 0, num_workers)
    wait(board, 0, -(-len(output) // chunk_of_columns(len(output), num_workers)))
    _normalize(middle, norm, epsilon, normed, board, 1)
    _gated(normed, gate, gate_scales, gate_bias, up, up_scales, up_bias, gates, ups, board, 2, num_workers)
    _add_product(gates, down, down_scales, down_bias, middle, out, board, 3, num_workers)


def _build_after(fingerprint: int) -> Callable[..., Any]:
    def after_attention(
        attended: Any, residual: Any, output: Any, output_scales: Any, output_bias: Any, norm: Any, epsilon: Any,
        gate: Any, gate_scales: Any, gate_bias: Any, up: Any, up_scales: Any, up_bias: Any, down: Any,
        down_scales: Any, down_bias: Any, middle: Any, normed: Any, gates: Any, ups: Any, out: Any, board: Any,
        num_workers: int,
    ) -> int:  # fmt: skip
        """Turn attention's output for `T` rows into the layer's output.

        Args:
            attended: `[T, padded(heads * D)]`.
            residual: `[T, H]`, what entered the layer.
            output: `[H, padded(heads * D)]`; like `gate` and `up [I, padded(H)]` and `down [H, padded(I)]` with
                scales and bias as `product.columns` takes them.
            norm: `[H]`, weight of the second RMSNorm; `epsilon` belongs to it.
            middle: `[T, H]`, scratch; `normed`: `[T, padded(H)]`; `gates`, `ups`: `[T, padded(I)]`.
            out: `[T, H]`: the result.
            board: from `work.new_board`.
        """
        board[:] = 0
        if num_workers == 1:
            _after(
                attended, residual, output, output_scales, output_bias, norm, epsilon, gate, gate_scales, gate_bias,
                up, up_scales, up_bias, down, down_scales, down_bias, middle, normed, gates, ups, out, board,
                num_workers,
            )  # fmt: skip
            return fingerprint
        for _ in prange(num_workers):
            _after(
                attended, residual, output, output_scales, output_bias, norm, epsilon, gate, gate_scales, gate_bias,
                up, up_scales, up_bias, down, down_scales, down_bias, middle, normed, gates, ups, out, board,
                num_workers,
            )  # fmt: skip
        return fingerprint

    return after_attention


after_attention = kernel(_build_after)

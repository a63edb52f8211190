"""What one worker does of a decoder layer of the Llama shape, before and after its attention.

Before: RMSNorm, the products that give queries, keys and values, normalisation of heads, rotary embedding. After:
output product and residual, RMSNorm, gated MLP, residual. Between the stages the workers meet as `work` describes, and
each asks for the first weights of its next product before it waits. Every row is computed as if it were alone.

`layer` and `step` are a `LAYER` and a `STEP` of `decoder_records`, `like` is an array of the weights' type, and the
stages of the layer are numbered from `stage` on.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .decoder_records import floats, matrix, rows
from .linear import TASKS_PER_WORKER, chunk_of_columns
from .product import columns
from .rows import gate_columns, normalize_head, normalize_row, rotate_head
from .simd import inlined, spliced
from .tile import fetch_rows
from .weights import padded_size
from .work import done, draw, wait

NUM_STAGES = 6
"""Of a layer: two before attention and four after it."""

_FETCH_BYTES = 8192  # over a stage's end: what memory gives in the time that waiting and a norm take
_FETCH_BYTES_OVER_ATTENTION = 65536


@spliced
def _normalize(x: Any, weight: Any, epsilon: Any, out: Any, team: Any, stage: int) -> None:
    """One stage: the norm of every row."""
    square = np.empty((1, 1), np.float32)
    chunk = -(-len(x) // team.num_workers)
    task = draw(team, stage, 1)
    while task >= 0:
        for row in range(task * chunk, min(len(x), (task + 1) * chunk)):
            normalize_row(x, weight, epsilon, out, square, row)
        done(team, stage)
        task = draw(team, stage, 1)
    wait(team, stage, 1)


@inlined
def _head(
    x: Any, weight: Any, out: Any, head: int, size: int, norm: Any, epsilon: Any, cos: Any, sin: Any
) -> None:
    """The columns of one head of `weight`, written to `out [M, heads * D]`, normalised and rotated."""
    begin = head * size
    columns(x, weight, out, begin, begin + size)
    for row in range(len(x)):
        entries = out[row, begin : begin + size]
        if len(norm):
            normalize_head(entries, norm, epsilon)
        if cos.shape[1]:
            rotate_head(entries, cos[row], sin[row])


@inlined
def _heads_per_task(step: Any) -> int:
    return -(-(step.num_heads + 2 * step.num_kv_heads) // (step.num_workers * TASKS_PER_WORKER))


@inlined
def _fetch(weight: Any, team: Any, num_bytes: int) -> None:
    """Ask for the first weights that this worker will need of a product."""
    first = team.worker * TASKS_PER_WORKER * chunk_of_columns(len(weight), team.num_workers)
    fetch_rows(weight, min(first, len(weight)), num_bytes)


@inlined
def fetch_layer(layer: Any, step: Any, like: Any, team: Any) -> None:
    """Ask for the first weights that this worker will need of a layer."""
    head = team.worker * TASKS_PER_WORKER * _heads_per_task(step)
    depth = padded_size(step.hidden_size)
    if head < step.num_heads:
        q = matrix(layer.q, step.num_heads * step.head_size, depth, like)
        fetch_rows(q.values, head * step.head_size, _FETCH_BYTES)


@spliced
def before_attention(layer: Any, step: Any, like: Any, team: Any, stage: int) -> None:
    """From `hidden` to `query`, `key` and `value`."""
    num_rows, size, num_heads, num_kv_heads = step.num_rows, step.head_size, step.num_heads, step.num_kv_heads
    depth, num_queries, num_keys = padded_size(step.hidden_size), num_heads * size, num_kv_heads * size
    x, norm = rows(step.hidden, num_rows, step.hidden_size), floats(layer.input_norm, step.hidden_size)
    normed = rows(step.normed, num_rows, depth)
    _normalize(x, norm, layer.input_epsilon, normed, team, stage)

    q = matrix(layer.q, num_queries, depth, like)
    k = matrix(layer.k, num_keys, depth, like)
    v = matrix(layer.v, num_keys, depth, like)
    query, key = rows(step.query, num_rows, num_queries), rows(step.key, num_rows, num_keys)
    value = rows(step.value, num_rows, num_keys)
    q_norm, k_norm, epsilon = floats(layer.q_norm, size), floats(layer.k_norm, size), layer.head_epsilon
    rotary_size = step.rotary_size if layer.uses_rotary else 0
    cos, sin = rows(step.cos, num_rows, rotary_size), rows(step.sin, num_rows, rotary_size)
    chunk = _heads_per_task(step)
    task = draw(team, stage + 1, TASKS_PER_WORKER)
    while task >= 0:
        for head in range(task * chunk, min(num_heads + 2 * num_kv_heads, (task + 1) * chunk)):
            other = head - num_heads
            if other < 0:
                _head(normed, q, query, head, size, q_norm, epsilon, cos, sin)
            elif other < num_kv_heads:
                _head(normed, k, key, other, size, k_norm, epsilon, cos, sin)
            else:
                begin = (other - num_kv_heads) * size
                columns(normed, v, value, begin, begin + size)
        done(team, stage + 1)
        task = draw(team, stage + 1, TASKS_PER_WORKER)
    output = matrix(layer.output, step.hidden_size, padded_size(num_queries), like)
    _fetch(output.values, team, _FETCH_BYTES_OVER_ATTENTION)
    wait(team, stage + 1, TASKS_PER_WORKER)


@spliced
def _add_product(x: Any, weight: Any, residual: Any, out: Any, team: Any, stage: int) -> None:
    """The tasks of one stage: `out = residual + x @ weight.T + bias`."""
    num_columns = len(weight.values)
    chunk = chunk_of_columns(num_columns, team.num_workers)
    task = draw(team, stage, TASKS_PER_WORKER)
    while task >= 0:
        first, last = min(num_columns, task * chunk), min(num_columns, (task + 1) * chunk)
        columns(x, weight, out, first, last)
        for row in range(len(x)):
            for n in range(first, last):
                out[row, n] = residual[row, n] + out[row, n]
        done(team, stage)
        task = draw(team, stage, TASKS_PER_WORKER)


@spliced
def _gated(x: Any, gate: Any, up: Any, gates: Any, ups: Any, team: Any, stage: int) -> None:
    """The tasks of one stage: `gates = silu(x @ gate.T) * (x @ up.T)`, zeros behind the last column of the products."""
    num_columns, width = len(gate.values), gates.shape[1]
    chunk = chunk_of_columns(width, team.num_workers)
    task = draw(team, stage, TASKS_PER_WORKER)
    while task >= 0:
        first, end = min(width, task * chunk), min(width, (task + 1) * chunk)
        last = max(first, min(num_columns, end))
        columns(x, gate, gates, first, last)
        columns(x, up, ups, first, last)
        for row in range(len(x)):
            for n in range(last, end):
                gates[row, n] = ups[row, n] = np.float32(0.0)
        gate_columns(gates, ups, first, end)
        done(team, stage)
        task = draw(team, stage, TASKS_PER_WORKER)


@spliced
def after_attention(layer: Any, following: Any, step: Any, like: Any, team: Any, stage: int) -> None:
    """From `attended` and `hidden` to the layer's output, in `hidden`; `following` is the next layer, or this one."""
    num_rows, hidden_size, intermediate_size = step.num_rows, step.hidden_size, step.intermediate_size
    depth, width = padded_size(hidden_size), padded_size(intermediate_size)
    num_attended = padded_size(step.num_heads * step.head_size)
    hidden, middle = rows(step.hidden, num_rows, hidden_size), rows(step.middle, num_rows, hidden_size)
    gates, ups = rows(step.gates, num_rows, width), rows(step.ups, num_rows, width)
    attended, normed = rows(step.attended, num_rows, num_attended), rows(step.normed, num_rows, depth)
    output = matrix(
        layer.output,
        hidden_size,
        num_attended,
        like,
    )
    gate = matrix(layer.gate, intermediate_size, depth, like)
    up = matrix(layer.up, intermediate_size, depth, like)
    down = matrix(layer.down, hidden_size, width, like)

    _add_product(attended, output, hidden, middle, team, stage)
    _fetch(gate.values, team, _FETCH_BYTES)
    wait(team, stage, TASKS_PER_WORKER)
    _normalize(middle, floats(layer.output_norm, hidden_size), layer.output_epsilon, normed, team, stage + 1)
    _gated(normed, gate, up, gates, ups, team, stage + 2)
    _fetch(down.values, team, _FETCH_BYTES)
    wait(team, stage + 2, TASKS_PER_WORKER)
    _add_product(gates, down, middle, hidden, team, stage + 3)
    fetch_layer(following, step, like, team)
    wait(team, stage + 3, TASKS_PER_WORKER)

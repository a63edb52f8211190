"""Decoder layers in one parallel region: between two layers nobody has to ask Python, and no thread has to be woken.

Attention is a function of the backend, called by all workers; see `api.NativeAttention`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import carray, prange, types
from numba.extending import intrinsic

from ...api import NATIVE_COUNTERS
from .decoder_layer import NUM_STAGES, after_attention, before_attention
from .decoder_records import CALL, LAYER, STEP, pointer
from .simd import inlined, kernel, spliced
from .weights import empty_aligned
from .work import LINE, Team, lines_of, new_board

BEFORE, ATTENTION, AFTER = range(3)
"""The parts of a layer."""

_COUNTER_BYTES = 8 * NATIVE_COUNTERS


def decoder_boards(num_layers: int, max_workers: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """`board` and `counters` of a `STEP` over that many layers."""
    counters = empty_aligned((num_layers, NATIVE_COUNTERS), np.int64)
    return new_board(num_layers * NUM_STAGES, max_workers), counters


@intrinsic
def _attend(
    typingctx: Any, function: Any, layer: Any, step: Any, query: Any, key: Any, value: Any, output: Any,
    counters: Any, worker: Any, num_workers: Any,
) -> Any:  # fmt: skip
    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(64)] * 9)
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 10), codegen


@inlined
def _board(address: int, num_layers: int, num_workers: int) -> Any:
    return carray(pointer(address), (num_layers * NUM_STAGES, lines_of(num_workers), LINE), np.int64)


@spliced
def _work(
    layers_address: int, num_layers: int, calls_address: int, step_address: int, like: Any, first_part: int,
    last_part: int, worker: int,
) -> None:  # fmt: skip
    """What one worker does of `run_layers`."""
    layers = carray(pointer(layers_address), (num_layers,), LAYER)
    calls = carray(pointer(calls_address), (num_layers,), CALL)
    step = carray(pointer(step_address), (1,), STEP)[0]
    team = Team(_board(step.board, num_layers, step.num_workers), worker, step.num_workers)
    for i in range(num_layers):
        stage = i * NUM_STAGES
        if first_part == BEFORE:
            before_attention(layers[i], step, like, team, stage)
        if first_part <= ATTENTION <= last_part:
            counters = step.counters + i * _COUNTER_BYTES
            _attend(
                calls[i].function, calls[i].layer, calls[i].step, step.query, step.key, step.value, step.attended,
                counters, worker, step.num_workers,
            )  # fmt: skip
        if last_part == AFTER:
            after_attention(layers[i], layers[min(i + 1, num_layers - 1)], step, like, team, stage + 2)


def _build(fingerprint: int) -> Callable[..., Any]:
    def run_layers(
        layers: int, num_layers: int, calls: int, step: int, like: Any, first_part: int, last_part: int
    ) -> int:
        """Run rows through layers of one size and format.

        Args:
            layers: address of `[num_layers]` of `LAYER`.
            calls: address of `[num_layers]` of `CALL`; without the part `ATTENTION`, anything.
            step: address of a `STEP`.
            like: `[.]`, an array of the weights' type.
            first_part, last_part: what is done of each layer; all parts, unless there is one layer only.
        """
        this = carray(pointer(step), (1,), STEP)[0]
        num_workers = this.num_workers
        _board(this.board, num_layers, num_workers)[:] = 0
        carray(pointer(this.counters), (num_layers, NATIVE_COUNTERS), np.int64)[:] = 0
        if num_workers == 1:
            _work(layers, num_layers, calls, step, like, first_part, last_part, 0)
            return fingerprint
        for worker in prange(num_workers):
            _work(layers, num_layers, calls, step, like, first_part, last_part, worker)
        return fingerprint

    return run_layers


run_layers = kernel(_build)

"""Layers in one region: as if they ran one by one, whoever works, and attention is asked for each in its turn."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np
import pytest
from numba import carray, cfunc, types

from outrider.kernels.cpu.decoder import AFTER, BEFORE, run_layers
from outrider.kernels.cpu.decoder_records import CALL, pointer
from outrider.kernels.cpu.work import Team, done, draw, wait

from .test_decoder_layer import LARGE, MOST_ROWS, WIDE, Layer, Sizes

DEEP = Sizes(96, 64, 100, 1, 64, 64)  # its attention gives much, and few columns are made of it

NUM_LAYERS = 3


def attention_of(sizes: Sizes) -> Any:
    """`(query * layer + key) * value` of each head, as one task; the others wait for it. `step`: number of rows."""
    heads, kv_heads, size = sizes.heads, sizes.kv_heads, sizes.head

    @cfunc(types.void(*[types.int64] * 9))
    def attend(
        layer: int, step: int, query: int, key: int, value: int, output: int, counters: int, worker: int,
        num_workers: int,
    ) -> None:  # fmt: skip
        team = Team(carray(pointer(counters), (1, 2, 8), np.int64), 0, 1)
        if draw(team, 0, 1) >= 0:
            queries = carray(pointer(query), (step, heads, size), np.float32)
            keys = carray(pointer(key), (step, kv_heads, size), np.float32)
            values = carray(pointer(value), (step, kv_heads, size), np.float32)
            out = carray(pointer(output), (step, heads, size), np.float32)
            for row in range(step):
                for head in range(heads):
                    other = head * kv_heads // heads
                    for i in range(size):
                        out[row, head, i] = queries[row, head, i] * np.float32(layer) + keys[row, other, i]
                        out[row, head, i] *= values[row, other, i]
            done(team, 0)
        wait(team, 0, 1)

    return attend


def attended(sizes: Sizes, layer: int, query: Any, key: Any, value: Any) -> Any:
    """The same with numpy."""
    q = query.reshape(len(query), sizes.heads, sizes.head)
    k, v = (
        np.repeat(array.reshape(len(query), sizes.kv_heads, sizes.head), sizes.heads // sizes.kv_heads, 1)
        for array in (key, value)
    )
    return ((q * np.float32(layer) + k) * v).reshape(len(query), -1)


class Stack:
    """Layers of random numbers."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.layers = [Layer(sizes, "bfloat16", bias=True, seed=seed) for seed in range(NUM_LAYERS)]
        self.attention = attention_of(sizes)

    def one_by_one(self, num_rows: int) -> Any:
        rows, first = slice(num_rows), self.layers[0]
        hidden = first.hidden[rows]
        for number, layer in enumerate(map(copy, self.layers), 1):
            layer.hidden, layer.cos, layer.sin = hidden, first.cos[rows], first.sin[rows]
            layer.attended = layer.attended[rows]
            layer.attended = attended(self.sizes, number, *layer.before())
            hidden = layer.after()
        return hidden

    def together(self, num_rows: int, num_workers: int) -> Any:
        records = np.concatenate([layer.record() for layer in self.layers])
        calls = np.array([(self.attention.address, i + 1, num_rows) for i in range(NUM_LAYERS)], CALL)
        space, _ = self.layers[0].space(slice(num_rows), num_workers, NUM_LAYERS)
        addresses = records.ctypes.data, NUM_LAYERS, calls.ctypes.data, space.step
        run_layers(*addresses, self.layers[0].like, BEFORE, AFTER)
        return space.rows("hidden", num_rows, self.sizes.width).copy()


@pytest.fixture(scope="module")
def stack() -> Stack:
    return Stack(LARGE)


@pytest.mark.parametrize("num_workers", [1, 2, 3, 8, 50])
@pytest.mark.parametrize("num_rows", [1, 5, MOST_ROWS])
def test_layers_in_one_region_give_what_they_give_one_by_one(
    stack: Stack, num_rows: int, num_workers: int
) -> None:
    expected = stack.one_by_one(num_rows)
    for _ in range(10):
        assert (stack.together(num_rows, num_workers) == expected).all()


@pytest.mark.parametrize("sizes", [WIDE, DEEP])
def test_no_stage_begins_before_the_one_ahead_of_it_is_done(sizes: Sizes) -> None:
    """Tasks that take long, so that who does not wait for them reads too early."""
    stack = Stack(sizes)
    expected = stack.one_by_one(7)
    for _ in range(40):
        assert (stack.together(7, num_workers=2) == expected).all()

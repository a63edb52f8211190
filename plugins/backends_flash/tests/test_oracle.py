"""Results against the definition of attention, computed in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from outrider_flash import FlashOptions
from outrider_flash.records import PARTITION

from outrider.testing.torch_attention import attend_row

UNIT = 2.0**-24
"""Largest relative error of one float32 operation."""

sizes = st.sampled_from([16, 17, 24, 32, 48, 64, 80, 96, 100, 128, 192, 255, 256])
shapes = st.fixed_dictionaries(
    {
        "num_kv_heads": st.integers(1, 3),
        "group": st.sampled_from([1, 2, 3, 4, 5, 7, 8, 33]),
        "key_size": sizes,
        "value_size": sizes,
        "sliding_window": st.none() | st.integers(1, 200),
        "softcap": st.none() | st.floats(0.5, 50.0),
        "sinks": st.booleans(),
    }
)
# A decode, a verification, a prompt or a part of one: rows that follow on tokens already computed.
requests = st.tuples(st.integers(0, 300), st.integers(1, 30))


def expected_and_bound(
    shape: Any, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
) -> tuple[Any, Any]:
    """The exact result of one row, and the largest error that float32 arithmetic in the kernel's order can make.

    A score is `key_size / 2` fused operations on each of two chains. An error `e` in the scores changes each weight by
    a factor of at most `exp(2 e)`, and so does what rounding a score less the largest one makes of it. A partition's
    values are accumulated in `PARTITION` operations, and each merge adds four.
    """
    group = shape.num_heads // shape.num_kv_heads
    spread = keys.double().repeat_interleave(group, dim=1)
    sizes_of_scores = (query.double() * spread).abs().sum(dim=2).amax(dim=0) * shape.scaling
    if shape.softcap is not None:
        sizes_of_scores += 8 * shape.softcap
    if shape.sinks is not None:
        sizes_of_scores += shape.sinks.abs()
    num_operations = (
        (shape.key_size + 8) * sizes_of_scores
        + 4 * sizes_of_scores
        + PARTITION
        + 4 * (len(keys) / PARTITION + 2)
        + 16
    )
    exact = attend_row(shape, query, keys, values)
    weighted_sizes = attend_row(shape, query, keys, values.abs())
    return exact, UNIT * num_operations.unsqueeze(1) * weighted_sizes


def check(kit: Any, pages: Any, shape: Any, steps: list[tuple[int, int]], sequences: Any) -> None:
    computed = [(request, 0, n) for request, (n, _) in enumerate(steps) if n]
    if computed:
        pages.forward(sequences, computed)
    spans = [(request, n, n + rows) for request, (n, rows) in enumerate(steps)]
    outputs = pages.forward(sequences, spans)
    cache_type = pages.cache["key"].dtype
    for (request, first, last), output in zip(spans, outputs, strict=True):
        query, key, value = sequences[request]
        for row in {first, (first + last) // 2, last - 1}:
            low = 0 if shape.sliding_window is None else max(0, row + 1 - shape.sliding_window)
            keys, values = key[low : row + 1].to(cache_type), value[low : row + 1].to(cache_type)
            exact, bound = expected_and_bound(shape, query[row], keys, values)
            error = (output[row - first].double() - exact).abs()
            if output.dtype != torch.float32:
                bound += exact.abs() * torch.finfo(output.dtype).eps / 2 + torch.finfo(output.dtype).tiny
            assert bool((error <= bound).all()), (
                f"request {request} row {row}: {(error / bound).max()} of the bound"
            )


@settings(max_examples=120, deadline=None)
@given(
    form=shapes,
    steps=st.lists(requests, min_size=1, max_size=4),
    block_size=st.sampled_from([1, 3, 4, 16, 32, 100]),
    cache_type=st.sampled_from(["float32", "bfloat16", "float16"]),
    seed=st.integers(0, 100),
)
def test_any_mix_of_any_form_is_attention(
    kit: Any, form: Any, steps: Any, block_size: int, cache_type: Any, seed: int
) -> None:
    form = dict(form)
    shape = kit.shape(num_heads=form.pop("group") * form["num_kv_heads"], **form)
    lengths = [n + rows for n, rows in steps]
    options = FlashOptions(kv_cache_dtype=cache_type)
    pages = kit.Pages(shape, lengths, block_size=block_size, order=seed, options=options)
    check(kit, pages, shape, steps, kit.sequences(shape, lengths, seed=seed))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_activations_of_sixteen_bits_are_computed_in_float32(kit: Any, dtype: torch.dtype) -> None:
    shape, steps = kit.shape(9, 3, 64, 64), [(40, 3), (0, 7), (200, 1)]
    lengths = [n + rows for n, rows in steps]
    pages = kit.Pages(shape, lengths, dtype=dtype)
    assert pages.cache["key"].dtype == dtype
    sequences = kit.sequences(shape, lengths, dtype)
    assert pages.forward(sequences, [(0, 0, 1)])[0].dtype == dtype
    check(kit, pages, shape, steps, sequences)


def test_large_scores_neither_overflow_nor_vanish(kit: Any) -> None:
    """Scores of several thousands: only differences from the largest may be exponentiated."""
    shape = kit.shape(2, 1, 16, 16)
    ((query, key, value),) = kit.sequences(shape, [300])
    sequences = [(query * 300, key * 300, value)]
    output = kit.Pages(shape, [300]).forward(sequences, [(0, 0, 300)])[0]
    for row in (1, 150, 299):
        exact = attend_row(shape, query[row] * 300, key[: row + 1] * 300, value[: row + 1])
        # At such scores the softmax is a maximum, so the result is one of the values.
        assert torch.allclose(output[row].double(), exact, rtol=1e-2, atol=1e-2)


def test_sinks_alone_take_weight_when_scores_are_low(kit: Any) -> None:
    """A sink far above all scores leaves nothing for the values; one far below changes no bit."""
    plain = kit.shape(2, 1, 16, 16)
    sequences = kit.sequences(plain, [200])
    (without,) = kit.Pages(plain, [200]).forward(sequences, [(0, 0, 200)])
    outputs = {}
    for sink in (-300.0, 300.0):
        shape = kit.shape(2, 1, 16, 16, sinks=True)
        shape.sinks.fill_(sink)
        (outputs[sink],) = kit.Pages(shape, [200]).forward(sequences, [(0, 0, 200)])
    assert kit.same_bits(outputs[-300.0], without)
    assert bool((outputs[300.0] == 0).all())

"""A row's bits depend on the row alone: compared with `==`, never with a tolerance."""

from __future__ import annotations

from typing import Any

import numba
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from outrider_flash import FlashOptions

# Longer than two partitions, with an odd end.
LENGTH = 300
FORMS: dict[str, dict[str, Any]] = {
    "grouped": {"num_heads": 9, "num_kv_heads": 3, "key_size": 64, "value_size": 64},
    "one head per key head": {"num_heads": 2, "num_kv_heads": 2},
    "one key head": {"num_heads": 7, "num_kv_heads": 1, "value_size": 48},
    "odd sizes": {"key_size": 50, "value_size": 19},
    "window": {"sliding_window": 70},
    "narrow window": {"num_heads": 3, "num_kv_heads": 1, "sliding_window": 5},
    "softcap and sinks": {"softcap": 3.0, "sinks": True},
    "everything": {"num_heads": 6, "num_kv_heads": 2, "sliding_window": 150, "softcap": 2.0, "sinks": True},
}


@pytest.fixture(params=FORMS.values(), ids=FORMS.keys(), scope="module")
def case(request: pytest.FixtureRequest, kit: Any) -> Any:
    """A form, one request's rows, and its results computed row by row with nothing beside it."""
    shape = kit.shape(**request.param)
    sequences = kit.sequences(shape, [LENGTH])
    return shape, sequences, kit.Pages(shape, [LENGTH], order=None).one_by_one(sequences)


def in_chunks(pages: Any, sequences: Any, sizes: list[int]) -> torch.Tensor:
    outputs, first = [], 0
    while first < LENGTH:
        last = min(first + sizes[len(outputs) % len(sizes)], LENGTH)
        outputs.extend(pages.forward(sequences, [(0, first, last)]))
        first = last
    return torch.cat(outputs)


@pytest.mark.parametrize("sizes", [[LENGTH], [2], [3], [5, 1], [16], [17, 130], [128], [299, 1]])
def test_chunks(kit: Any, case: Any, sizes: list[int]) -> None:
    shape, sequences, alone = case
    assert kit.same_bits(in_chunks(kit.Pages(shape, [LENGTH]), sequences, sizes), alone)


@settings(max_examples=15, deadline=None)
@given(sizes=st.lists(st.integers(1, LENGTH), min_size=1, max_size=8))
def test_any_chunks(kit: Any, sizes: list[int]) -> None:
    shape = kit.shape(**FORMS["everything"])
    sequences = kit.sequences(shape, [LENGTH])
    pages = kit.Pages(shape, [LENGTH])
    whole = torch.cat(pages.forward(sequences, [(0, 0, LENGTH)]))
    assert kit.same_bits(in_chunks(kit.Pages(shape, [LENGTH]), sequences, sizes), whole)


@pytest.mark.parametrize("block_size", [1, 4, 7, 16, 64, 512])
@pytest.mark.parametrize("order", [None, 1, 2])
def test_block_size_and_order(kit: Any, case: Any, block_size: int, order: int | None) -> None:
    shape, sequences, alone = case
    pages = kit.Pages(shape, [LENGTH], block_size=block_size, order=order)
    assert kit.same_bits(in_chunks(pages, sequences, [100, 1, 8]), alone)


@settings(max_examples=25, deadline=None)
@given(
    steps=st.lists(st.tuples(st.integers(0, LENGTH - 1), st.integers(1, 40)), min_size=1, max_size=6),
    form=st.sampled_from(sorted(FORMS)),
    cache_type=st.sampled_from(["float32", "bfloat16", "float16"]),
    seed=st.integers(0, 50),
)
def test_any_batch(kit: Any, steps: Any, form: str, cache_type: Any, seed: int) -> None:
    """Decodes, verifications and chunks of prompts in one call give what each request gets row by row, alone."""
    shape, options = kit.shape(**FORMS[form]), FlashOptions(kv_cache_dtype=cache_type)
    spans = [(i, first, min(first + rows, LENGTH)) for i, (first, rows) in enumerate(steps)]
    lengths = [last for _, _, last in spans]
    sequences = kit.sequences(shape, lengths, seed=seed)
    pages = kit.Pages(shape, lengths, order=seed, options=options)
    computed = [(i, 0, first) for i, first, _ in spans if first]
    if computed:
        pages.forward(sequences, computed)
    outputs = pages.forward(sequences, spans)
    for (i, first, last), output in zip(spans, outputs, strict=True):
        own = kit.Pages(shape, [lengths[i]], block_size=5, order=None, options=options)
        if first:
            own.forward([sequences[i]], [(0, 0, first)])
        alone = [own.forward([sequences[i]], [(0, p, p + 1)])[0] for p in range(first, last)]
        assert kit.same_bits(output, torch.cat(alone))


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("spans", [[(0, LENGTH - 1, LENGTH)], [(0, LENGTH - 8, LENGTH)], [(0, 0, LENGTH)]])
def test_threads(kit: Any, case: Any, spans: Any) -> None:
    """One thread does a tile's partitions in one go; for two they are spread over items and merged afterwards."""
    shape, sequences, alone = case
    pages = kit.Pages(shape, [LENGTH])
    pages.forward(sequences, [(0, 0, LENGTH)])
    outputs = []
    for num_threads in (1, 2):
        numba.set_num_threads(num_threads)
        outputs.append(pages.forward(sequences, spans)[0])
    assert kit.same_bits(outputs[0], outputs[1])
    assert kit.same_bits(outputs[0], alone[spans[0][1] :])


def test_repeated_calls(kit: Any, case: Any) -> None:
    """What an earlier call left in the scratch memory does not matter."""
    shape, sequences, alone = case
    pages = kit.Pages(shape, [LENGTH])
    poison = [tuple(torch.full_like(part, float("nan")) for part in sequences[0])]
    pages.forward(poison, [(0, 0, LENGTH)])
    assert kit.same_bits(pages.forward(sequences, [(0, 0, LENGTH)])[0], alone)

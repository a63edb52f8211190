"""What lies in slots that a row does not see never reaches it. (All other tests start from caches full of NaN, too.)"""

from __future__ import annotations

from typing import Any

import pytest
import torch

LENGTH = 280


@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("last", [1, 15, 16, 17, 128, 129, 250])
def test_rows_behind_are_not_seen(kit: Any, last: int, rows: int) -> None:
    """Rejected drafts leave entries behind the last row, in blocks that the request owns."""
    shape = kit.shape(num_heads=3, num_kv_heads=1)
    sequences = kit.sequences(shape, [LENGTH])
    span = (0, max(0, last - rows), last)
    pages = kit.Pages(shape, [LENGTH])
    pages.forward(sequences, [(0, 0, last)])
    (clean,) = pages.forward(sequences, [span])
    assert bool(clean.isfinite().all())
    slots = pages.slots(0, torch.arange(last, LENGTH))
    pages.spoil(slots, float("inf"))
    assert kit.same_bits(pages.forward(sequences, [span])[0], clean)


@pytest.mark.parametrize("window", [1, 2, 16, 100])
def test_entries_before_the_window_are_not_seen(kit: Any, window: int) -> None:
    shape = kit.shape(num_heads=3, num_kv_heads=1, sliding_window=window)
    sequences = kit.sequences(shape, [LENGTH])
    pages = kit.Pages(shape, [LENGTH])
    (clean,) = pages.forward(sequences, [(0, 0, LENGTH)])
    for first in (200, 256, 270):
        slots = pages.slots(0, torch.arange(first - window + 1))
        pages.spoil(slots, float("nan"))
        (output,) = pages.forward(sequences, [(0, first, LENGTH)])
        assert kit.same_bits(output, clean[first:])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("part", ["query", "key", "value"])
def test_a_broken_row_breaks_no_row_before_it(kit: Any, part: str, bad: float) -> None:
    """Rows of a draft stand beside each other in one tile; the later ones must not leak into the earlier ones."""
    shape = kit.shape(num_heads=3, num_kv_heads=1)
    sequences = kit.sequences(shape, [150])
    (clean,) = kit.Pages(shape, [150]).forward(sequences, [(0, 0, 150)])
    tensor = sequences[0][("query", "key", "value").index(part)]
    for broken in (3, 128, 130, 149):  # 128 is alone in its partition
        before = tensor[broken].clone()
        tensor[broken] = bad
        pages = kit.Pages(shape, [150])
        (output,) = pages.forward(sequences, [(0, 0, 150)])
        assert kit.same_bits(output[:broken], clean[:broken])
        assert not bool(output[broken].isfinite().all())
        tensor[broken] = before


def test_padding_of_odd_sizes_is_not_left_to_chance(kit: Any) -> None:
    """Entries are kept in whole vectors; what is beyond the head's size is written, not inherited."""
    shape = kit.shape(2, 1, key_size=17, value_size=33)
    pages = kit.Pages(shape, [20])
    (output,) = pages.forward(kit.sequences(shape, [20]), [(0, 0, 20)])
    assert bool(output.isfinite().all())
    slots = pages.slots(0, torch.arange(20))
    for name, size in (("key", 17), ("value", 33)):
        assert bool((pages.stored(name, slots)[:, :, size:] == 0).all())

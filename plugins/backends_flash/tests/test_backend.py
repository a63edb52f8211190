"""The plugin as the engine meets it."""

from __future__ import annotations

import importlib.metadata
import logging
from typing import Any

import numpy as np
import pluggy
import pydantic
import pytest
import torch
from outrider_flash import FlashBackend, FlashOptions
from outrider_flash.plan import _cut
from outrider_flash.team import attend_in_parallel, warm_up

from outrider import hookspecs
from outrider.api import PluginError


def test_the_entry_point_names_the_backend() -> None:
    (entry,) = importlib.metadata.entry_points(group="outrider.attention_backends", name="flash")
    assert entry.load() is FlashBackend
    assert entry.dist is not None
    assert entry.dist.name == "outrider-flash"


def test_every_hook_is_known() -> None:
    manager = pluggy.PluginManager(hookspecs.PROJECT_NAME)
    manager.add_hookspecs(hookspecs)
    backend = FlashBackend(FlashBackend.Options())
    manager.register(backend)
    manager.check_pending()
    hooks = {caller.name for caller in manager.get_hookcallers(backend) or []}
    assert hooks == {"claim_layer", "build_attention_metadata", "build_for_drafting"}
    assert FlashBackend.outrider_api == hookspecs.API_VERSION


def test_options_are_checked() -> None:
    with pytest.raises(pydantic.ValidationError, match="block_size"):
        FlashOptions(block_size=16)  # type: ignore[call-arg]
    with pytest.raises(pydantic.ValidationError, match="kv_cache_dtype"):
        FlashOptions(kv_cache_dtype="int8")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        ({"key_size": 15}, "key heads of size 15"),
        ({"key_size": 257}, "key heads of size 257"),
        ({"value_size": 8}, "value heads of size 8"),
        ({"value_size": 512}, "value heads of size 512"),
        ({"num_heads": 5, "num_kv_heads": 2}, "5 query heads cannot share 2"),
        ({"sliding_window": 0}, "a sliding window of 0"),
        ({"softcap": 0.0}, "a softcap of 0.0"),
        ({"unknown": {"block_mask": object(), "position_bias": None}}, "with block_mask, which"),
    ],
)
def test_layers_it_declines(kit: Any, caplog: pytest.LogCaptureFixture, form: Any, reason: str) -> None:
    caplog.set_level(logging.DEBUG, "outrider_flash")
    assert FlashBackend(FlashOptions()).claim_layer(kit.info(kit.shape(**form))) is None
    assert "not claiming layer layers.0.attention: " in caplog.text
    assert reason in caplog.text


def test_layers_on_other_devices_and_of_other_types_are_declined(kit: Any) -> None:
    backend = FlashBackend(FlashOptions())
    assert backend.claim_layer(kit.info(kit.shape(), device="meta")) is None
    assert backend.claim_layer(kit.info(kit.shape(), dtype=torch.float64)) is None


def test_sinks_of_another_number_of_heads_are_declined(kit: Any) -> None:
    shape = kit.shape(num_heads=4, unknown={})
    object.__setattr__(shape, "sinks", torch.zeros(3))
    assert FlashBackend(FlashOptions()).claim_layer(kit.info(shape)) is None


def test_modules_that_do_not_call_attention_are_left_alone(kit: Any) -> None:
    assert FlashBackend(FlashOptions()).claim_layer(kit.info(None)) is None


def test_an_unknown_keyword_without_a_value_is_no_obstacle(kit: Any) -> None:
    shape = kit.shape(unknown={"position_bias": None})
    assert FlashBackend(FlashOptions()).claim_layer(kit.info(shape)) is not None


@pytest.mark.parametrize(
    ("option", "activations", "kept"),
    [
        ("auto", torch.float32, torch.float32),
        ("auto", torch.bfloat16, torch.bfloat16),
        ("bfloat16", torch.float32, torch.bfloat16),
        ("float16", torch.float32, torch.float16),
        ("float32", torch.bfloat16, torch.float32),
    ],
)
def test_the_type_of_the_cache(kit: Any, option: Any, activations: torch.dtype, kept: torch.dtype) -> None:
    """Entries are rounded exactly as torch rounds."""
    shape = kit.shape(num_heads=1, num_kv_heads=1, key_size=16, value_size=16)
    pages = kit.Pages(shape, [64], dtype=activations, options=FlashOptions(kv_cache_dtype=option))
    bits = torch.randint(-(2**31), 2**31, (3, 64, 1, 16), generator=torch.Generator().manual_seed(1))
    numbers = bits.int().view(torch.float32)
    numbers[0, 0, 0, :4] = torch.tensor([float("inf"), -float("inf"), 1.00390625, 1.01171875])
    rows = numbers.to(activations)
    pages.forward([tuple(rows)], [(0, 0, 64)])
    slots = pages.slots(0, torch.arange(64))
    for name, part in (("key", rows[1]), ("value", rows[2])):
        stored = pages.stored(name, slots)
        assert stored.dtype == kept
        assert torch.equal(stored.nan_to_num(7.0), part.to(kept).nan_to_num(7.0))
        assert torch.equal(stored.isnan(), part.isnan())


def test_drafting_uses_the_same_metadata(kit: Any) -> None:
    pages = kit.Pages(kit.shape(), [9])
    common = pages.describe([(0, 0, 9)])
    rows = kit.sequences(kit.shape(), [9])[0]
    one = pages.layer.forward(pages.backend.build_attention_metadata(common), *rows)
    assert torch.equal(pages.layer.forward(pages.backend.build_for_drafting(common), *rows), one)


def test_rows_need_not_be_contiguous(kit: Any) -> None:
    """Attention modules hand over transposed views, or slices of one projection of all three."""
    shape = kit.shape(num_heads=4, num_kv_heads=2, key_size=32, value_size=32)
    ((query, key, value),) = kit.sequences(shape, [40])
    (plain,) = kit.Pages(shape, [40]).forward([(query, key, value)], [(0, 0, 40)])
    fused = torch.cat([part.flatten(1) for part in (query, key, value)], dim=1)
    slices = [part.unflatten(1, (-1, 32)) for part in fused.split([128, 64, 64], dim=1)]
    swapped = [part.transpose(0, 1).contiguous().transpose(0, 1) for part in (query, key, value)]
    scattered = [part.transpose(1, 2).contiguous().transpose(1, 2) for part in (query, key, value)]
    for parts in (slices, swapped, scattered):
        assert not all(part.is_contiguous() for part in parts)
        pages = kit.Pages(shape, [40])
        metadata = pages.backend.build_attention_metadata(pages.describe([(0, 0, 40)]))
        assert kit.same_bits(pages.layer.forward(metadata, *parts), plain)


def test_wrong_shapes_are_refused(kit: Any) -> None:
    pages = kit.Pages(kit.shape(), [8])
    query, key, value = kit.sequences(kit.shape(), [8])[0]
    metadata = pages.backend.build_attention_metadata(pages.describe([(0, 0, 8)]))
    for rows in ((query[:7], key, value), (query, key[:, :1], value), (query, key, value[:, :, :16])):
        with pytest.raises(PluginError, match=r"layers\.0\.attention.*do not fit 8 rows"):
            pages.layer.forward(metadata, *rows)


def test_a_cache_of_another_form_is_refused(kit: Any) -> None:
    layer = FlashBackend(FlashOptions()).claim_layer(kit.info(kit.shape(key_size=20)))
    assert layer is not None
    assert layer.cache_spec.tensors["key"].shape == (2, 32)
    good = {name: torch.zeros(3, 4, *spec.shape) for name, spec in layer.cache_spec.tensors.items()}
    layer.bind_cache(good)
    for bad in (torch.zeros(3, 4, 2, 20), torch.zeros(3, 4, 2, 32).bfloat16(), torch.zeros(3, 4, 32, 2).mT):
        with pytest.raises(PluginError, match="key cache of"):
            layer.bind_cache(good | {"key": bad})


def test_a_cache_may_be_part_of_a_larger_tensor(kit: Any) -> None:
    shape = kit.shape()
    sequences = kit.sequences(shape, [50])
    pages = kit.Pages(shape, [50])
    (plain,) = pages.forward(sequences, [(0, 0, 50)])
    by_token = torch.full((len(pages.cache["key"]), 16, 2, 2, 32), float("nan"))
    by_block = torch.full((len(pages.cache["key"]), 2, 16, 2, 32), float("nan"))
    for key, value in ((by_token[:, :, 0], by_token[:, :, 1]), (by_block[:, 0], by_block[:, 1])):
        pages.layer.bind_cache({"key": key, "value": value})
        assert kit.same_bits(pages.forward(sequences, [(0, 0, 50)])[0], plain)


def test_nothing_is_compiled_after_the_warm_up(kit: Any) -> None:
    """One compiled version serves all layers and steps; arrays it was not made for are an error, not a pause."""
    for dtype, form in ((torch.float32, {}), (torch.bfloat16, {"key_size": 100, "sinks": True})):
        shape = kit.shape(**form)
        pages = kit.Pages(shape, [20, 20], dtype=dtype)
        sequences = kit.sequences(shape, [20, 20], dtype)
        pages.forward(sequences, [(0, 0, 20)])
        pages.forward(sequences, [(1, 0, 3), (0, 19, 20)])
    assert len(attend_in_parallel.signatures) == 1
    warm_up()
    assert len(attend_in_parallel.signatures) == len(_cut.signatures) == 1
    with pytest.raises(TypeError):
        attend_in_parallel(np.zeros(1), *[0] * 7, 1)


def test_the_step_may_come_in_other_strides(kit: Any) -> None:
    """The engine slices its persistent arrays."""
    shape = kit.shape()
    sequences = kit.sequences(shape, [60])
    pages = kit.Pages(shape, [60], block_size=4)
    (plain,) = pages.forward(sequences, [(0, 0, 60)])
    wide = torch.zeros(1, 100, dtype=torch.int32)
    wide[0, :16:1] = pages.block_table[0]
    pages.block_table = torch.zeros(2, 40, dtype=torch.int32)[:1, : wide.shape[1]].copy_(wide[:, :40])
    assert kit.same_bits(pages.forward(sequences, [(0, 0, 60)])[0], plain)

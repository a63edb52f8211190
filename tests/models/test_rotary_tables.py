"""Rotary tables: what the model's own module gives, whether it is asked once or each time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from outrider.models.rotary_tables import RotaryTables

SCALINGS: list[dict[str, Any]] = [
    {"rope_type": "default", "rope_theta": 500.0},
    {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0},
    {"rope_type": "yarn", "factor": 4.0, "rope_theta": 500.0, "original_max_position_embeddings": 64},
    {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 500.0},
]
STEPS = [[0, 1, 2], [3], [63, 64, 7, 7], [900, 5], [5000], [2], [1023, 1024, 9999, 10000]]


class Counted(LlamaRotaryEmbedding):
    """Counts its calls."""

    num_calls = 0

    def forward(self, *args: Any) -> Any:
        self.num_calls += 1
        return super().forward(*args)


def module(scaling: dict[str, Any]) -> Counted:
    config = LlamaConfig(
        hidden_size=64, num_attention_heads=4, max_position_embeddings=64, rope_parameters=scaling
    )
    return Counted(config)


@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda scaling: scaling["rope_type"])
def test_every_step_gets_what_the_module_gives_for_its_positions(scaling: dict[str, Any]) -> None:
    tables, reference = RotaryTables(module(scaling)), module(scaling)
    for positions in STEPS:
        expected = reference(torch.zeros(1, 1, 1), torch.tensor([positions]))
        rows = tables.rows(np.array(positions))
        for table, other in zip(rows, expected, strict=True):
            assert table.dtype == np.float32
            assert (table == other[0].numpy()).all()


@pytest.mark.parametrize("scaling", SCALINGS[:3], ids=lambda scaling: scaling["rope_type"])
def test_a_module_that_looks_at_nothing_but_the_position_is_asked_seldom(scaling: dict[str, Any]) -> None:
    rotary = module(scaling)
    tables = RotaryTables(rotary)
    before = rotary.num_calls
    for position in range(3000):
        tables.rows(np.array([position]))
    assert rotary.num_calls - before <= 3


def test_far_positions_fill_no_memory() -> None:
    rotary = module(SCALINGS[0])
    tables = RotaryTables(rotary)
    far = np.array([3, 1_000_000])
    expected = rotary(torch.zeros(1, 1, 1), torch.from_numpy(far)[None])
    for table, other in zip(tables.rows(far), expected, strict=True):
        assert (table == other[0].numpy()).all()
    assert all(len(table) <= 1024 for table in tables._tables)

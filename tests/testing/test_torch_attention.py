"""The oracle for attention backends, against torch's own attention and against hand-made cases."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from outrider.api import AttentionShape, CommonAttentionMetadata, LayerInfo
from outrider.testing.torch_attention import TorchAttentionBackend, attend_row

LENGTH, BLOCK_SIZE = 21, 4
NUM_BLOCKS = -(-LENGTH // BLOCK_SIZE)


def make_shape(**more: Any) -> AttentionShape:
    form = {"num_heads": 6, "num_kv_heads": 2, "key_size": 8, "value_size": 5, "scaling": 0.3} | more
    return AttentionShape(**form)


def make_rows() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(LENGTH, 6, 8), torch.randn(LENGTH, 2, 8), torch.randn(LENGTH, 2, 5)


def make_info(shape: AttentionShape | None) -> LayerInfo:
    return LayerInfo(
        name="layer",
        module=torch.nn.Identity(),
        attention=shape,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )


def compute(shape: AttentionShape, rows: Any, cuts: list[int]) -> torch.Tensor:
    """All rows of one request, in chunks that end at `cuts`; blocks in descending order, free slots full of NaN."""
    backend = TorchAttentionBackend()
    layer = backend.claim_layer(make_info(shape))
    assert layer is not None
    layer.bind_cache(
        {
            name: torch.full((NUM_BLOCKS, BLOCK_SIZE, *spec.shape), float("nan"))
            for name, spec in layer.cache_spec.tensors.items()
        }
    )
    table = torch.arange(NUM_BLOCKS).flip(0)
    outputs = []
    for first, last in zip([0, *cuts], [*cuts, LENGTH], strict=True):
        positions = torch.arange(first, last)
        common = CommonAttentionMetadata(
            num_reqs=1,
            num_tokens=last - first,
            max_query_len=last - first,
            max_seq_len=last,
            block_size=BLOCK_SIZE,
            query_start_loc=torch.tensor([0, last - first], dtype=torch.int32),
            seq_lens=torch.tensor([last], dtype=torch.int32),
            positions=positions,
            block_table=table.int().unsqueeze(0),
            slot_mapping=table[positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE,
            state_slots=torch.zeros(1, 1, dtype=torch.int32),
            num_accepted_tokens=torch.ones(1, dtype=torch.int32),
        )
        metadata = backend.build_attention_metadata(common)
        outputs.append(layer.forward(metadata, *(part[first:last] for part in rows)))
    return torch.cat(outputs)


@pytest.mark.parametrize("window", [None, 1, 4, 100])
def test_it_is_what_torch_computes(window: int | None) -> None:
    query, key, value = rows = make_rows()
    ages = torch.arange(LENGTH).unsqueeze(1) - torch.arange(LENGTH)
    mask = (ages >= 0) & (ages < (window or LENGTH))
    expected = torch.nn.functional.scaled_dot_product_attention(
        query.double().transpose(0, 1),
        key.double().repeat_interleave(3, dim=1).transpose(0, 1),
        value.double().repeat_interleave(3, dim=1).transpose(0, 1),
        attn_mask=mask,
        scale=0.3,
    ).transpose(0, 1)
    output = compute(make_shape(sliding_window=window), rows, [])
    # The oracle is exact up to the rounding of its float64 result to float32.
    assert torch.allclose(output.double(), expected, rtol=2**-24 * 1.001, atol=1e-12)


def test_softcap_and_sinks_by_hand() -> None:
    """Scores 2 and 0 capped at 1, and a sink of 0.5: weights over `e^tanh(2) + e^0 + e^0.5`."""
    shape = make_shape(
        num_heads=1,
        num_kv_heads=1,
        key_size=1,
        value_size=1,
        scaling=2.0,
        softcap=1.0,
        sinks=torch.tensor([0.5]),
    )
    keys, values = torch.tensor([[[1.0]], [[0.0]]]), torch.tensor([[[10.0]], [[20.0]]])
    result = attend_row(shape, torch.tensor([[1.0]]), keys, values)
    first, second, sink = torch.tensor([2.0]).double().tanh().exp(), 1.0, torch.tensor([0.5]).double().exp()
    assert torch.allclose(result, (10 * first + 20 * second) / (first + second + sink), rtol=1e-12)


@pytest.mark.parametrize("cuts", [[1], [5, 6, 7], list(range(1, LENGTH))])
def test_bits_do_not_depend_on_the_chunks(cuts: list[int]) -> None:
    rows, shape = make_rows(), make_shape(sliding_window=9, softcap=2.0, sinks=torch.randn(6))
    assert torch.equal(compute(shape, rows, cuts), compute(shape, rows, []))


def test_it_claims_what_is_fully_described() -> None:
    backend = TorchAttentionBackend()
    assert backend.claim_layer(make_info(None)) is None
    assert backend.claim_layer(make_info(make_shape(unknown={"block_mask": 3}))) is None
    assert backend.claim_layer(make_info(make_shape(unknown={"block_mask": None}))) is not None

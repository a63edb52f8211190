"""Routing, caches and the oracle backend together: prompts in chunks, decodes beside them, scattered blocks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from outrider.api import CommonAttentionMetadata
from outrider.models.cache import allocate_caches, plan_caches
from outrider.models.routing import RoutedModel
from outrider.testing.torch_attention import TorchAttentionBackend

BLOCK_SIZE = 4
LENGTHS = [11, 6, 9]
BLOCKS = torch.tensor([[7, 2, 5], [0, 8, -1], [3, 6, 1]], dtype=torch.int32)
# Rows of each request per forward: chunks, single rows, and requests that sit a forward out.
SCHEDULE = [(5, 0, 9), (1, 4, 0), (4, 1, 0), (1, 1, 0)]


class Oracle(TorchAttentionBackend):
    """What the plugin manager makes of the oracle."""

    name, distribution = "oracle", "outrider"


def common_metadata(computed: list[int], rows: tuple[int, ...]) -> CommonAttentionMetadata:
    requests = [i for i, n in enumerate(rows) if n]
    positions = torch.cat([torch.arange(computed[i], computed[i] + rows[i]) for i in requests])
    owners = torch.tensor([i for i in requests for _ in range(rows[i])])
    counts = torch.tensor([0] + [rows[i] for i in requests])
    return CommonAttentionMetadata(
        num_reqs=len(requests),
        num_tokens=len(positions),
        max_query_len=max(rows),
        max_seq_len=max(computed[i] + rows[i] for i in requests),
        block_size=BLOCK_SIZE,
        query_start_loc=counts.cumsum(0).int(),
        seq_lens=torch.tensor([computed[i] + rows[i] for i in requests], dtype=torch.int32),
        positions=positions,
        block_table=BLOCKS[requests],
        slot_mapping=BLOCKS[owners, positions // BLOCK_SIZE].long() * BLOCK_SIZE + positions % BLOCK_SIZE,
        state_slots=torch.zeros((len(requests), 1), dtype=torch.int32),
        num_accepted_tokens=torch.ones(len(requests), dtype=torch.int32),
    )


@pytest.mark.parametrize("architecture", ["llama", "gemma2", "gpt_oss", "deepseek_v3", "gpt2", "qwen3"])
def test_chunks_and_decodes_give_the_logits_of_whole_sequences(kit: Any, architecture: str) -> None:
    model = kit.build(architecture)
    generator = torch.Generator().manual_seed(1)
    sequences = [torch.randint(3, 64, (n,), generator=generator) for n in LENGTHS]
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = [model(input_ids=ids[None], use_cache=False).logits[0] for ids in sequences]
    model.set_attn_implementation("outrider")
    routed = RoutedModel.route(
        model, [Oracle()], "", {"use_cache": False}, torch.device("cpu"), torch.float32
    )
    plan = plan_caches(
        routed.layers,
        block_size=BLOCK_SIZE,
        num_kv_blocks=9,
        kv_cache_memory_gib=1.0,
        max_num_seqs=3,
        max_model_len=12,
        num_speculative_tokens=0,
    )
    for cache in allocate_caches(routed.layers, plan, torch.device("cpu")).values():
        for tensor in cache.values():
            tensor.fill_(torch.nan)
    computed = [0, 0, 0]
    for rows in SCHEDULE:
        common = common_metadata(computed, rows)
        spans = [slice(start, start + n) for start, n in zip(computed, rows, strict=True)]
        logits = routed.forward(
            {"oracle": common},
            input_ids=torch.cat([ids[span] for ids, span in zip(sequences, spans, strict=True)])[None],
            position_ids=common.positions[None],
            use_cache=False,
        ).logits[0]
        wanted = torch.cat([alone[span] for alone, span in zip(expected, spans, strict=True)])
        assert torch.allclose(logits, wanted, rtol=0, atol=2e-5 * float(wanted.abs().max()))
        computed = [start + n for start, n in zip(computed, rows, strict=True)]
    assert computed == LENGTHS

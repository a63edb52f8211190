"""Requests with random queries, keys and values, and a paged cache to run them through the backend in any cut."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numba
import pytest
import torch
from outrider_flash import FlashBackend, FlashOptions

from outrider.api import AttentionShape, CommonAttentionMetadata, LayerInfo

Span = tuple[int, int, int]
"""Request, first position, last position + 1."""


def make_shape(
    num_heads: int = 4,
    num_kv_heads: int = 2,
    key_size: int = 32,
    value_size: int = 32,
    sliding_window: int | None = None,
    softcap: float | None = None,
    sinks: bool = False,
    **more: Any,
) -> AttentionShape:
    """A layer's form; sinks are random numbers of the size that scores have."""
    generator = torch.Generator().manual_seed(5)
    return AttentionShape(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        key_size=key_size,
        value_size=value_size,
        scaling=key_size**-0.5,
        sliding_window=sliding_window,
        softcap=softcap,
        sinks=torch.randn(num_heads, generator=generator) if sinks else None,
        **more,
    )


def make_info(
    shape: AttentionShape | None, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> LayerInfo:
    """The layer as the engine offers it."""
    return LayerInfo(
        name="layers.0.attention",
        module=torch.nn.Identity(),
        attention=shape,
        dtype=dtype,
        device=torch.device(device),
    )


def make_sequences(
    shape: AttentionShape, lengths: list[int], dtype: torch.dtype = torch.float32, seed: int = 0
) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Per request query, key and value of every position."""
    generator = torch.Generator().manual_seed(seed)

    def rows(length: int, heads: int, size: int) -> torch.Tensor:
        return torch.randn(length, heads, size, generator=generator).to(dtype)

    return [
        (
            rows(length, shape.num_heads, shape.key_size),
            rows(length, shape.num_kv_heads, shape.key_size),
            rows(length, shape.num_kv_heads, shape.value_size),
        )
        for length in lengths
    ]


class Pages:
    """One layer with its cache. Every slot that was not written holds NaN, and every unused table entry leads there.

    Args:
        lengths: most tokens of each request.
        order: seed of the blocks' order in the cache; None: ascending.
    """

    def __init__(
        self,
        shape: AttentionShape,
        lengths: list[int],
        *,
        block_size: int = 16,
        order: int | None = 0,
        dtype: torch.dtype = torch.float32,
        options: FlashOptions | None = None,
    ) -> None:
        self.block_size = block_size
        counts = [-(-length // block_size) for length in lengths]
        num_blocks = sum(counts) + 1
        blocks = torch.arange(num_blocks)
        if order is not None:
            blocks = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(order))
        self.block_table = torch.full((len(lengths), max(counts) + 1), int(blocks[-1]), dtype=torch.int32)
        used = 0
        for request, count in enumerate(counts):
            self.block_table[request, :count] = blocks[used : used + count]
            used += count
        self.backend = FlashBackend(options or FlashOptions())
        layer = self.backend.claim_layer(make_info(shape, dtype))
        assert layer is not None
        self.layer = layer
        self.cache = {
            name: torch.full((num_blocks, block_size, *spec.shape), float("nan"), dtype=spec.dtype)
            for name, spec in layer.cache_spec.tensors.items()
        }
        layer.bind_cache(self.cache)

    def slots(self, request: int, positions: torch.Tensor) -> torch.Tensor:
        """Where positions of a request are kept."""
        blocks = self.block_table[request][positions // self.block_size].long()
        return blocks * self.block_size + positions % self.block_size

    def stored(self, name: str, slots: torch.Tensor) -> torch.Tensor:
        """`[slots, num_kv_heads, padded size]`, what the cache holds there."""
        return self._by_head(name)[slots // self.block_size, :, slots % self.block_size]

    def spoil(self, slots: torch.Tensor, number: float) -> None:
        """Overwrite keys and values."""
        for name in self.cache:
            self._by_head(name)[slots // self.block_size, :, slots % self.block_size] = number

    def _by_head(self, name: str) -> torch.Tensor:
        cache = self.cache[name]
        return cache.view(len(cache), cache.shape[2], cache.shape[1], cache.shape[3])

    def describe(self, spans: list[Span]) -> CommonAttentionMetadata:
        """The step that computes these spans, of different requests."""
        sizes = torch.tensor([last - first for _, first, last in spans])
        requests = [request for request, _, _ in spans]
        starts = torch.zeros(len(spans) + 1, dtype=torch.int32)
        starts[1:] = sizes.cumsum(0)
        positions = [torch.arange(first, last) for _, first, last in spans]
        unused = torch.zeros(len(spans), 1, dtype=torch.int32)
        return CommonAttentionMetadata(
            num_reqs=len(spans),
            num_tokens=int(sizes.sum()),
            max_query_len=int(sizes.max()),
            max_seq_len=max(last for _, _, last in spans),
            block_size=self.block_size,
            query_start_loc=starts,
            seq_lens=torch.tensor([last for _, _, last in spans], dtype=torch.int32),
            positions=torch.cat(positions),
            block_table=self.block_table[requests],
            slot_mapping=torch.cat([self.slots(r, p) for r, p in zip(requests, positions, strict=True)]),
            state_slots=unused,
            num_accepted_tokens=unused[:, 0],
        )

    def forward(self, sequences: Any, spans: list[Span]) -> list[torch.Tensor]:
        """Compute the spans in one call; per span `[rows, num_heads, value_size]`."""
        rows = [torch.cat([sequences[r][part][first:last] for r, first, last in spans]) for part in range(3)]
        metadata = self.backend.build_attention_metadata(self.describe(spans))
        output = self.layer.forward(metadata, *rows)
        return list(output.split([last - first for _, first, last in spans]))

    def one_by_one(self, sequences: Any, request: int = 0) -> torch.Tensor:
        """Compute a request row by row, nothing beside it: what every other way of computing it must equal."""
        length = len(sequences[request][0])
        return torch.cat([self.forward(sequences, [(request, p, p + 1)])[0] for p in range(length)])


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Equal to the last bit: no tolerance, and zeros have signs."""
    whole = {4: torch.int32, 2: torch.int16}[left.element_size()]
    return left.shape == right.shape and bool((left.view(whole) == right.view(whole)).all())


@pytest.fixture(scope="session")
def kit() -> SimpleNamespace:
    """The helpers of this file."""
    return SimpleNamespace(
        Pages=Pages, info=make_info, same_bits=same_bits, sequences=make_sequences, shape=make_shape
    )


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Waking threads for tiny steps takes longer than the steps, on a busy machine much longer."""
    before = numba.get_num_threads(), torch.get_num_threads()
    numba.set_num_threads(1)
    torch.set_num_threads(1)
    yield
    numba.set_num_threads(before[0])
    torch.set_num_threads(before[1])


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Work with two threads."""
    if numba.config.NUMBA_NUM_THREADS < 2:
        pytest.skip("numba has one thread on this machine")
    numba.set_num_threads(2)
    yield
    numba.set_num_threads(1)

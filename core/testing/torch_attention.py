"""Attention that is plainly right: the oracle for attention backends, and a backend to test the engine with.

One row at a time, in float64, straight from the definition. The arithmetic of a row sees nothing of the batch around
it, so its bits are the same in any batch, chunking and block order.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ..api import AttentionShape, CommonAttentionMetadata, LayerInfo, PagedCacheSpec, TensorSpec
from ..hookspecs import hookimpl


class TorchAttentionBackend:
    """Takes any layer of the attention interface without unknown keywords, of any size, on any device."""

    outrider_api = 1

    @hookimpl
    def claim_layer(self, layer: LayerInfo) -> TorchAttentionLayer | None:
        """Take every layer whose form is fully described."""
        if layer.attention is None or any(value is not None for value in layer.attention.unknown.values()):
            return None
        return TorchAttentionLayer(layer.attention, layer.dtype)

    @hookimpl
    def build_attention_metadata(self, common: CommonAttentionMetadata) -> CommonAttentionMetadata:
        """The common metadata is all it needs."""
        return common

    @hookimpl
    def build_for_drafting(self, common: CommonAttentionMetadata) -> CommonAttentionMetadata:
        """The common metadata is all it needs."""
        return common


class TorchAttentionLayer:
    """One layer; its cache holds keys and values as they come, in the type of the activations."""

    def __init__(self, shape: AttentionShape, dtype: torch.dtype) -> None:
        self._shape = shape
        self.cache_spec = PagedCacheSpec(
            {
                "key": TensorSpec((shape.num_kv_heads, shape.key_size), dtype),
                "value": TensorSpec((shape.num_kv_heads, shape.value_size), dtype),
            }
        )

    def bind_cache(self, cache: Mapping[str, torch.Tensor]) -> None:
        """Receive `key` and `value`, `[num_blocks, block_size, num_kv_heads, size]`."""
        self._key_cache, self._value_cache = cache["key"], cache["value"]

    def forward(
        self, metadata: CommonAttentionMetadata, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        """Write keys and values, then attend; `[T, H, key_size]` and so on to `[T, H, value_size]`."""
        block_size = self._key_cache.shape[1]
        for row, slot in enumerate(metadata.slot_mapping.tolist()):
            self._key_cache[slot // block_size, slot % block_size] = key[row]
            self._value_cache[slot // block_size, slot % block_size] = value[row]

        output = query.new_empty(query.shape[0], query.shape[1], self._shape.value_size)
        starts = metadata.query_start_loc.tolist()
        for request in range(metadata.num_reqs):
            blocks = metadata.block_table[request].tolist()
            for row in range(starts[request], starts[request + 1]):
                last = int(metadata.positions[row])
                window = self._shape.sliding_window
                first = 0 if window is None else max(0, last + 1 - window)
                places = [(blocks[p // block_size], p % block_size) for p in range(first, last + 1)]
                keys = torch.stack([self._key_cache[block, offset] for block, offset in places])
                values = torch.stack([self._value_cache[block, offset] for block, offset in places])
                output[row] = attend_row(self._shape, query[row], keys, values)
        return output


def attend_row(
    shape: AttentionShape, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
) -> torch.Tensor:
    """Attention of one row over the keys and values it sees, in float64.

    Args:
        query: `[H, key_size]`.
        keys: `[n, Hkv, key_size]`.
        values: `[n, Hkv, value_size]`.

    Returns:
        `[H, value_size]` float64.
    """
    group = shape.num_heads // shape.num_kv_heads
    keys = keys.double().repeat_interleave(group, dim=1)
    values = values.double().repeat_interleave(group, dim=1)
    scores = (query.double() * keys).sum(dim=2).T * shape.scaling
    if shape.softcap is not None:
        scores = shape.softcap * torch.tanh(scores / shape.softcap)
    if shape.sinks is not None:
        scores = torch.cat([scores, shape.sinks.double().reshape(-1, 1)], dim=1)
    weights = torch.softmax(scores, dim=1)[:, : len(keys)]
    return (weights.T.unsqueeze(2) * values).sum(dim=0)

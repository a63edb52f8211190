"""How much memory the key-value cache takes and how it is cut up."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from .settings import Settings


class CacheConfig(Settings):
    """The key-value cache.

    Attributes:
        block_size: tokens per block.
        num_kv_blocks: blocks in all; None: as many as fit into `kv_cache_memory_gib`.
        kv_cache_memory_gib: memory for the cache in GiB; ignored if `num_kv_blocks` is given.
        enable_prefix_caching: reuse the blocks of earlier requests that begin with the same tokens.
    """

    block_size: Annotated[int, Field(ge=1)] = 16
    num_kv_blocks: Annotated[int, Field(ge=1)] | None = None
    kv_cache_memory_gib: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 1.0
    enable_prefix_caching: bool = True

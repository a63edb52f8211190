"""Which KV blocks a request owns, and which it need not compute."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

from .block_pool import BlockPool
from .request import Request


class KVCacheManager:
    """Gives blocks to requests and finds prompts that begin like an earlier one.

    Args:
        num_blocks, block_size: of the cache; a block holds `block_size` tokens.
        enable_prefix_caching: must be off for models that keep a state per request: no block holds that state.
        recompute_last_cached_block: leave the last block of a hit out, for drafters whose own KV at a position depends
            on the target's hidden state there and on the token that follows.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        enable_prefix_caching: bool = True,
        recompute_last_cached_block: bool = False,
    ) -> None:
        self.block_size = block_size
        self.pool = BlockPool(num_blocks)
        self._enable_prefix_caching = enable_prefix_caching
        self._num_blocks_to_recompute = int(recompute_last_cached_block)

    @property
    def capacity(self) -> int:
        """Tokens that fit if one request has the cache to itself."""
        return self.pool.num_blocks * self.block_size

    @property
    def num_free_blocks(self) -> int:
        """Blocks that can be handed out now."""
        return self.pool.num_free_blocks

    def find_cached_prefix(self, request: Request) -> list[int]:
        """Return the cached blocks that `request` begins with; at least one token is left to compute."""
        block_ids: list[int] = []
        if not self._enable_prefix_caching:
            return block_ids
        max_blocks = (request.num_tokens - 1) // self.block_size
        self._hash_blocks(request, max_blocks)
        for block_hash in request.block_hashes[:max_blocks]:
            block_id = self.pool.find(block_hash)
            if block_id is None:
                break
            block_ids.append(block_id)
        return block_ids[: max(0, len(block_ids) - self._num_blocks_to_recompute)]

    def num_missing_blocks(self, request: Request, num_tokens: int) -> int:
        """How many blocks `request` lacks for its first `num_tokens` tokens."""
        return max(0, -(-num_tokens // self.block_size) - len(request.block_ids))

    def allocate(
        self,
        request: Request,
        num_tokens: int,
        cached_block_ids: Sequence[int] = (),
        *,
        num_reserved_blocks: int = 0,
    ) -> bool:
        """Make room for the first `num_tokens` tokens of `request`. Return False, changing nothing, if there is none.

        Args:
            cached_block_ids: from `find_cached_prefix`, for a request that owns no block yet.
            num_reserved_blocks: free blocks that it must not take.
        """
        num_new = self.num_missing_blocks(request, num_tokens) - len(cached_block_ids)
        num_free = self.pool.num_free_blocks - self.pool.num_free_among(cached_block_ids)
        if num_new > 0 and num_new > num_free - num_reserved_blocks:
            return False
        self.pool.take(cached_block_ids)
        request.block_ids.extend(cached_block_ids)
        request.block_ids.extend(self.pool.allocate(max(0, num_new)))
        return True

    def cache_full_blocks(self, request: Request, num_tokens: int) -> None:
        """Make the full blocks among the first `num_tokens` tokens findable; these must be computed.

        Rows behind the token that ended a request hold nothing that anybody could ask for.
        """
        if not self._enable_prefix_caching:
            return
        # A request that waits owns no block, whatever prefix of it was found last.
        num_full_blocks = min(min(num_tokens, request.num_tokens) // self.block_size, len(request.block_ids))
        if num_full_blocks <= request.num_hashed_blocks:
            return
        self._hash_blocks(request, num_full_blocks)
        for index in range(request.num_hashed_blocks, num_full_blocks):
            self.pool.remember(request.block_ids[index], request.block_hashes[index])
        request.num_hashed_blocks = num_full_blocks

    def free(self, request: Request) -> None:
        """Take all blocks from `request`."""
        self.pool.free(request.block_ids)
        request.block_ids = []
        request.num_hashed_blocks = 0

    def _hash_blocks(self, request: Request, num_blocks: int) -> None:
        """Extend `request.block_hashes` to `num_blocks` entries. A block's hash covers all tokens before it, too."""
        hashes = request.block_hashes
        for index in range(len(hashes), num_blocks):
            start = index * self.block_size
            tokens = array("q", request.token_ids[start : start + self.block_size])
            parent = hashes[-1] if hashes else b""
            hashes.append(blake2b(parent + tokens.tobytes(), digest_size=16).digest())

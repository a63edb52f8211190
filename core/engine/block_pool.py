"""KV blocks: which are free, who shares them, and which hold a prefix that somebody may ask for again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class BlockPool:
    """`num_blocks` blocks with reference counts, a free list and an index of cached prefixes.

    A block that nobody uses stays findable by its hash until it is handed out anew; the least recently used goes
    first, and blocks that hold nothing worth finding go before all others.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._num_users = [0] * num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._hash_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}

    @property
    def num_free_blocks(self) -> int:
        """Blocks without a user, cached ones included."""
        return len(self._free)

    def find(self, block_hash: bytes) -> int | None:
        """Return the block that holds this prefix, in use or free, or None."""
        return self._block_of.get(block_hash)

    def num_free_among(self, block_ids: Iterable[int]) -> int:
        """How many of these blocks are in the free list."""
        return sum(self._num_users[block_id] == 0 for block_id in block_ids)

    def take(self, block_ids: Iterable[int]) -> None:
        """Add a user to blocks that `find` returned."""
        for block_id in block_ids:
            if self._num_users[block_id] == 0:
                del self._free[block_id]
            self._num_users[block_id] += 1

    def allocate(self, count: int) -> list[int]:
        """Hand out `count` free blocks and forget what they held. The caller has checked that there are enough."""
        block_ids = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block_id in block_ids:
            self._num_users[block_id] = 1
            block_hash = self._hash_of.pop(block_id, None)
            if block_hash is not None:
                del self._block_of[block_hash]
        return block_ids

    def free(self, block_ids: Sequence[int]) -> None:
        """Take a user off one request's blocks, given in position order."""
        # The end of a prefix is useless without its beginning, so the end becomes the older entry.
        for block_id in reversed(block_ids):
            self._num_users[block_id] -= 1
            if self._num_users[block_id] == 0:
                self._free[block_id] = None
                if block_id not in self._hash_of:
                    self._free.move_to_end(block_id, last=False)

    def remember(self, block_id: int, block_hash: bytes) -> None:
        """Make a full block findable. If another block holds the same prefix already, that one stays the one found."""
        if block_hash not in self._block_of:
            self._block_of[block_hash] = block_id
            self._hash_of[block_id] = block_hash

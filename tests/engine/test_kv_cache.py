"""Blocks are shared, found again, and handed out in the right order."""

from __future__ import annotations

from outrider.api import SamplingParams
from outrider.engine.block_pool import BlockPool
from outrider.engine.kv_cache import KVCacheManager
from outrider.engine.request import Request


def request(*tokens: int) -> Request:
    return Request("r", tokens, SamplingParams())


def computed(kv_cache: KVCacheManager, *tokens: int) -> Request:
    """A request whose tokens are all computed."""
    owner = request(*tokens)
    assert kv_cache.allocate(owner, len(tokens))
    kv_cache.cache_full_blocks(owner, len(tokens))
    return owner


def test_allocate_gives_as_many_blocks_as_the_tokens_need() -> None:
    kv_cache = KVCacheManager(4, 4)
    owner = request(*range(20))
    for num_tokens, num_blocks in [(1, 1), (4, 1), (5, 2), (3, 2), (16, 4)]:
        assert kv_cache.allocate(owner, num_tokens)
        assert len(owner.block_ids) == num_blocks
    assert not kv_cache.allocate(owner, 17)
    assert len(owner.block_ids) == 4
    kv_cache.free(owner)
    assert (kv_cache.num_free_blocks, owner.block_ids) == (4, [])


def test_a_prefix_is_found_while_in_use_and_after() -> None:
    kv_cache = KVCacheManager(8, 2)
    owner = computed(kv_cache, 1, 2, 3, 4, 5)
    blocks = list(owner.block_ids)
    assert kv_cache.find_cached_prefix(request(1, 2, 3, 4, 9)) == blocks[:2]
    kv_cache.free(owner)
    assert kv_cache.find_cached_prefix(request(1, 2, 3, 4, 9)) == blocks[:2]
    assert kv_cache.find_cached_prefix(request(1, 2, 9, 4, 5)) == blocks[:1]
    assert kv_cache.find_cached_prefix(request(9, 2, 3, 4, 5)) == []


def test_the_same_block_behind_another_beginning_is_another_block() -> None:
    kv_cache = KVCacheManager(8, 2)
    computed(kv_cache, 1, 2, 3, 4)
    computed(kv_cache, 5, 6)
    assert len(kv_cache.find_cached_prefix(request(5, 6, 3, 4, 0))) == 1


def test_one_token_is_always_left_to_compute() -> None:
    kv_cache = KVCacheManager(8, 2)
    computed(kv_cache, 1, 2, 3, 4)
    assert len(kv_cache.find_cached_prefix(request(1, 2, 3, 4))) == 1
    assert len(kv_cache.find_cached_prefix(request(1, 2, 3, 4, 5))) == 2
    assert kv_cache.find_cached_prefix(request(1)) == []


def test_rows_behind_the_end_of_a_request_make_no_block_worth_keeping() -> None:
    kv_cache = KVCacheManager(3, 4)
    owner = request(1, 2, 3, 4, 5, 6)
    assert kv_cache.allocate(owner, 8)
    last = owner.block_ids[1]
    kv_cache.cache_full_blocks(owner, 8)
    kv_cache.free(owner)
    assert kv_cache.pool.allocate(1) == [last]


def test_the_last_block_of_a_hit_is_left_out_for_drafters_that_look_ahead() -> None:
    kv_cache = KVCacheManager(8, 2, recompute_last_cached_block=True)
    owner = computed(kv_cache, 1, 2, 3, 4)
    assert kv_cache.find_cached_prefix(request(1, 2, 3, 4, 5)) == owner.block_ids[:1]
    assert kv_cache.find_cached_prefix(request(1, 2, 9)) == []


def test_without_prefix_caching_nothing_is_found() -> None:
    kv_cache = KVCacheManager(8, 2, enable_prefix_caching=False)
    computed(kv_cache, 1, 2, 3, 4)
    assert kv_cache.find_cached_prefix(request(1, 2, 3, 4, 5)) == []


def test_shared_blocks_are_free_when_the_last_user_is_gone() -> None:
    kv_cache = KVCacheManager(4, 2)
    first = computed(kv_cache, 1, 2, 3)
    second = request(1, 2, 9)
    cached = kv_cache.find_cached_prefix(second)
    assert kv_cache.allocate(second, 3, cached)
    assert second.block_ids[0] == first.block_ids[0]
    assert second.block_ids[1] != first.block_ids[1]
    assert kv_cache.num_free_blocks == 1
    kv_cache.free(first)
    assert kv_cache.num_free_blocks == 2
    kv_cache.free(second)
    assert kv_cache.num_free_blocks == 4


def test_cached_blocks_that_are_free_are_not_counted_twice() -> None:
    kv_cache = KVCacheManager(3, 2)
    kv_cache.free(computed(kv_cache, 1, 2, 3, 4))
    other = request(7, 7)
    assert kv_cache.allocate(other, 2)
    late = request(1, 2, 3, 4, 5)
    cached = kv_cache.find_cached_prefix(late)
    assert len(cached) == 2
    assert not kv_cache.allocate(late, 5, cached)  # it needs a third block, and the two free ones are its own
    assert (late.block_ids, kv_cache.num_free_blocks) == ([], 2)
    assert kv_cache.allocate(late, 4, cached)


def test_a_block_that_is_handed_out_anew_is_not_found_any_more() -> None:
    kv_cache = KVCacheManager(2, 2)
    kv_cache.free(computed(kv_cache, 1, 2, 3, 4))
    assert kv_cache.allocate(request(8), 1)
    assert len(kv_cache.find_cached_prefix(request(1, 2, 3, 4, 5))) == 1


def test_a_request_that_comes_back_makes_its_blocks_findable_again() -> None:
    kv_cache = KVCacheManager(2, 2)
    owner = computed(kv_cache, 1, 2, 3, 4)
    kv_cache.free(owner)
    filler = request(*range(4))
    assert kv_cache.allocate(filler, 4)
    kv_cache.free(filler)
    assert kv_cache.allocate(owner, 4)
    kv_cache.cache_full_blocks(owner, 4)
    assert kv_cache.find_cached_prefix(request(1, 2, 3, 4, 5)) == owner.block_ids


def test_equal_blocks_of_two_requests_do_not_confuse_the_index() -> None:
    kv_cache = KVCacheManager(4, 2)
    first, second = computed(kv_cache, 1, 2), computed(kv_cache, 1, 2)
    block = first.block_ids
    assert block != second.block_ids
    kv_cache.free(second)
    assert kv_cache.find_cached_prefix(request(1, 2, 3)) == block
    kv_cache.free(first)
    assert kv_cache.find_cached_prefix(request(1, 2, 3)) == block
    assert kv_cache.allocate(request(*range(8)), 8)
    assert kv_cache.find_cached_prefix(request(1, 2, 3)) == []


def test_worthless_blocks_go_first_then_the_least_recently_used_its_end_before_its_beginning() -> None:
    pool = BlockPool(6)
    old, new = pool.allocate(2), pool.allocate(2)
    for block_id in [*old, *new]:
        pool.remember(block_id, bytes([block_id]))
    worthless = pool.allocate(1)
    pool.free(old)
    pool.free(new)
    pool.free(worthless)
    never_used = 5
    assert pool.allocate(6) == [*worthless, never_used, old[1], old[0], new[1], new[0]]


def test_a_hit_makes_a_block_young_again() -> None:
    pool = BlockPool(2)
    first, second = pool.allocate(1), pool.allocate(1)
    pool.remember(first[0], b"first")
    pool.remember(second[0], b"second")
    pool.free(first)
    pool.free(second)
    pool.take(first)
    pool.free(first)
    assert pool.allocate(2) == [*second, *first]

"""Poison overwrites exactly what no forward may read before writing it."""

from types import SimpleNamespace

import numpy as np
import torch

from outrider import SamplingParams
from outrider.engine.kv_cache import KVCacheManager
from outrider.engine.request import Request
from outrider.testing.poison import poison


def core():
    kv_cache = KVCacheManager(num_blocks=6, block_size=4)
    gone = Request("gone", list(range(5)), SamplingParams())
    kv_cache.allocate(gone, 5)
    kv_cache.cache_full_blocks(gone, 5)
    kv_cache.free(gone)  # its first block stays findable
    running = Request("running", list(range(10, 16)), SamplingParams())
    kv_cache.allocate(running, 10)
    running.num_computed_tokens = 5
    running.state_index = 1
    caches = {
        "attention": {"key": torch.zeros(6, 4, 2), "scale": torch.zeros(6, 4)},
        "recurrent": {"state": torch.zeros(6, dtype=torch.int64), "window": torch.zeros(6, 3)},
    }
    batch = SimpleNamespace(
        state_slots=np.arange(6, dtype=np.int32).reshape(2, 3), num_accepted_tokens=np.array([1, 2], np.int32)
    )
    return (
        SimpleNamespace(
            scheduler=SimpleNamespace(kv_cache=kv_cache, running=[running]),
            runner=SimpleNamespace(_batch=batch),
        ),
        running,
        caches,
    )


def test_spares_computed_tokens_and_cached_prefixes():
    engine, running, caches = core()
    poison(engine, caches)
    clean = torch.zeros(6, 4, dtype=torch.bool)
    clean[running.block_ids[0]] = True
    clean[running.block_ids[1], :1] = True
    cached_block = engine.scheduler.kv_cache.find_cached_prefix(
        Request("again", list(range(5)), SamplingParams())
    )
    clean[cached_block] = True
    assert cached_block
    attention = caches["attention"]
    assert torch.equal(attention["key"].isnan().any(-1), ~clean)
    assert torch.equal(attention["scale"].isnan(), ~clean)


def test_spares_the_state_that_the_next_step_starts_from():
    engine, _, caches = core()
    poison(engine, caches)
    recurrent = caches["recurrent"]
    assert recurrent["state"].eq(0).tolist() == [False, False, False, False, True, False]
    assert recurrent["window"].isnan().any(-1).tolist() == [True, True, True, True, False, True]


def test_counts_what_it_overwrote():
    engine, _, caches = core()
    # 24 slots, of which a cached block and 5 computed tokens are spared; 5 of 6 states; two tensors each.
    assert poison(engine, caches) == 2 * (24 - 4 - 5) + 2 * 5

"""The cut of the work: everything once, and evenly."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from outrider_flash.plan import make_plan, rows_per_tile
from outrider_flash.records import PARTITION


def plan_of(spans: list[tuple[int, int]], **more: Any) -> Any:
    starts = np.cumsum([0] + [last - first for first, last in spans]).astype(np.int32)
    positions = np.concatenate([np.arange(first, last) for first, last in spans])
    form = {"group": 3, "num_kv_heads": 2, "window": 0, "num_threads": 2} | more
    return starts, positions, make_plan(starts, positions, **form)


@given(
    spans=st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 100)), min_size=1, max_size=5),
    group=st.sampled_from([1, 3, 8, 40]),
    window=st.sampled_from([0, 1, 129, 1000]),
    num_threads=st.integers(1, 9),
)
def test_every_row_meets_every_partition_it_sees_once(
    spans: Any, group: int, window: int, num_threads: int
) -> None:
    spans = [(first, first + rows) for first, rows in spans]
    starts, positions, plan = plan_of(spans, group=group, window=window, num_threads=num_threads)
    done: Counter[tuple[int, int, int]] = Counter()
    states: set[int] = set()
    for item in plan.items:
        rows = range(item["first_row"], item["last_row"])
        assert len(rows) <= rows_per_tile(group)
        assert starts[item["request"]] <= rows[0] <= rows[-1] < starts[item["request"] + 1]
        for partition in range(item["first_partition"], item["last_partition"]):
            done.update((row, int(item["head"]), partition) for row in rows)
            if item["partials"] >= 0:
                width = len(rows) * group
                first = item["partials"] + (partition - item["first_partition"]) * width
                own = set(range(first, first + width))
                assert not own & states
                states |= own
    assert states == set(range(plan.num_partials))
    assert set(done.values()) <= {1}
    for row, position in enumerate(positions):
        low = max(0, position + 1 - window) if window else 0
        for head in range(2):
            for partition in range(low // PARTITION, position // PARTITION + 1):
                assert done[row, head, partition] == 1


def test_a_single_long_request_is_shared_out() -> None:
    """One decode with a long context and two heads: four threads get equal parts."""
    _, _, plan = plan_of([(64 * PARTITION - 1, 64 * PARTITION)], num_threads=4)
    sizes = plan.items["last_partition"] - plan.items["first_partition"]
    assert len(plan.items) >= 16
    assert sizes.max() - sizes.min() <= 1
    assert [(m["first_partition"], m["last_partition"]) for m in plan.merges] == [(0, 64)] * 2


@pytest.mark.parametrize("num_threads", [1, 4])
def test_many_requests_are_not_cut(num_threads: int) -> None:
    _, _, plan = plan_of([(1000, 1001)] * 40, num_threads=num_threads)
    assert len(plan.items) == 80
    assert len(plan.merges) == 0
    assert plan.num_partials == 0


def test_the_most_expensive_comes_first() -> None:
    """Threads draw items as they get free: a long one at the end would be waited for."""
    _, positions, plan = plan_of([(10, 11), (5000, 5001), (0, 300), (700, 701)])
    ends = np.minimum(plan.items["last_partition"] * PARTITION, positions[plan.items["last_row"] - 1] + 1)
    cost = (ends - plan.items["first_partition"] * PARTITION) * (
        6 + 3 * (plan.items["last_row"] - plan.items["first_row"])
    )
    assert list(plan.items["request"][:2]) != [0, 0]
    assert cost[0] == cost.max()
    assert cost[-1] == cost.min()


def test_little_work_stays_on_one_thread() -> None:
    assert plan_of([(10, 11)])[2].num_workers == 1
    assert plan_of([(5000, 5001)])[2].num_workers == 2


def test_an_empty_step() -> None:
    _, _, plan = plan_of([(7, 7)])
    assert len(plan.items) == 0

"""The C function that the threads of a model call together gives the bits of `forward`, whenever each of them comes."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import numba
import numpy as np
import pytest
import torch
from outrider_flash.layer import FlashLayer, Workspace
from outrider_flash.metadata import FlashMetadata

from outrider.api import NATIVE_COUNTERS

LENGTH = 700
SPANS = {
    "decode": [(0, 699, 700)],
    "first row": [(0, 0, 1)],
    "verification": [(0, 690, 700)],
    "batch": [(0, 500, 505), (1, 0, 40), (2, 69, 70)],
    "prompt": [(0, 0, 700)],
}
WRITE, ATTEND, MERGE = range(3)
"""Stages of a call."""


class NativeCase:
    """A step of a layer with memory for `num_threads`, its arguments, and what `forward` gives for them."""

    def __init__(self, kit: Any, spans: Any, num_threads: int, planned_for: int = 2) -> None:
        shape = kit.shape(9, 3, 64, 64)
        self.pages = kit.Pages(shape, [LENGTH, 40, 70])
        sequences = kit.sequences(shape, [LENGTH, 40, 70])
        before = [(request, 0, first) for request, first, _ in spans if first]
        if before:
            self.pages.forward(sequences, before)
        self.common = self.pages.describe(spans)
        self.rows = [torch.cat([sequences[r][part][a:b] for r, a, b in spans]) for part in range(3)]
        self.expected = torch.cat(self.pages.forward(sequences, spans))
        self.written = {name: cache.clone() for name, cache in self.pages.cache.items()}
        self.pages.spoil(self.common.slot_mapping, float("nan"))
        self.layer = FlashLayer("layer", shape, torch.float32, Workspace(num_threads))
        self.layer.bind_cache(self.pages.cache)
        self.metadata = FlashMetadata.build(self.common)
        with mock.patch.object(numba, "get_num_threads", return_value=planned_for):
            self.step = self.layer.native_step(self.metadata)
        self.output = torch.full_like(self.expected, float("nan"))
        self.counters = np.zeros(NATIVE_COUNTERS, np.int64)

    def call(self, worker: int, num_workers: int) -> None:
        """Do what one of the threads does. ctypes lets the others run meanwhile."""
        function = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 9)(self.layer.native.function)
        numbers = [rows.data_ptr() for rows in (*self.rows, self.output)]
        function(self.layer.native.layer, self.step, *numbers, self.counters.ctypes.data, worker, num_workers)

    @property
    def partials(self) -> torch.Tensor:
        """What threads leave for each other's merges."""
        return torch.from_numpy(self.layer._workspace._partials)

    def check(self, kit: Any) -> None:
        assert kit.same_bits(self.output, self.expected)
        for name, cache in self.pages.cache.items():
            assert kit.same_bits(cache, self.written[name])


def together(num_workers: int, work: Callable[[int], None]) -> None:
    with ThreadPoolExecutor(num_workers) as threads:
        list(threads.map(work, range(num_workers)))


@pytest.mark.parametrize("spans", SPANS.values(), ids=SPANS.keys())
@pytest.mark.parametrize("num_workers", [1, 2, 3, 40])
def test_threads_together_give_the_bits_of_forward(kit: Any, spans: Any, num_workers: int) -> None:
    case = NativeCase(kit, spans, num_workers)
    together(num_workers, lambda worker: case.call(worker, num_workers))
    case.check(kit)


@pytest.mark.parametrize("spans", SPANS.values(), ids=SPANS.keys())
@pytest.mark.parametrize("planned_for", [1, 2])
def test_a_thread_that_comes_last_changes_nothing(kit: Any, spans: Any, planned_for: int) -> None:
    """It finds all work done, and must not touch what the others have gone on to use."""
    case = NativeCase(kit, spans, 3, planned_for)
    case.call(1, 3)
    case.check(kit)
    shared = case.output, *case.pages.cache.values(), case.partials
    for memory in shared:
        memory.fill_(7.0)
    case.rows = [torch.full_like(rows, 3.0) for rows in case.rows]
    case.call(0, 3)
    case.call(2, 3)
    for memory in shared:
        assert bool((memory == 7.0).all())


@pytest.mark.parametrize(
    ("stage", "planned_for"), [(WRITE, 2), (ATTEND, 1), (ATTEND, 2), (MERGE, 2)], ids=str
)
def test_nobody_goes_on_before_the_work_of_others_is_done(kit: Any, stage: int, planned_for: int) -> None:
    """The other thread is played here: it has begun the first task of a stage, and writes its results late."""
    case = NativeCase(kit, SPANS["verification"], 2, planned_for)
    case.call(0, 2)
    drawn, done = case.counters.reshape(-1, 2, 8)[stage, :, :1]
    num_tasks = int(done[0])
    assert num_tasks > 0
    attended = case.output if planned_for == 1 else case.partials
    late = {WRITE: [*case.pages.cache.values()], ATTEND: [attended], MERGE: [case.output]}[stage]
    results = [(memory, memory.clone()) for memory in late]
    for memory in (case.output, case.partials):
        memory.fill_(float("nan"))
    case.pages.spoil(case.common.slot_mapping, float("nan"))
    case.counters[:] = 0
    drawn[0] = 1

    thread = threading.Thread(target=case.call, args=(0, 2), daemon=True)
    thread.start()
    while thread.is_alive() and (drawn[0] <= num_tasks or done[0] < num_tasks - 1):
        time.sleep(0.001)
    thread.join(0.2)
    assert thread.is_alive()
    for memory, result in results:
        memory.copy_(result)
    done[0] += 1
    thread.join()
    case.check(kit)


def test_nobody_returns_before_the_output_is_complete(kit: Any) -> None:
    """Whoever finds no work left waits for the others'."""
    for _ in range(20):
        case = NativeCase(kit, [(0, 100, 700)], 2)
        seen: list[torch.Tensor] = []

        def work(worker: int, case: NativeCase = case, seen: list[torch.Tensor] = seen) -> None:
            time.sleep(0.001 * worker)
            case.call(worker, 2)
            seen.append(case.output.clone())

        together(2, work)
        for output in seen:
            assert kit.same_bits(output, case.expected)


def test_calls_one_after_another_need_fresh_counters_only(kit: Any) -> None:
    case = NativeCase(kit, SPANS["verification"], 2)
    for _ in range(3):
        case.counters[:] = 0
        case.output.fill_(float("nan"))
        together(2, lambda worker: case.call(worker, 2))
        case.check(kit)


def test_layers_of_one_form_share_a_step_and_others_do_not(kit: Any) -> None:
    workspace = Workspace(1)
    pages = kit.Pages(kit.shape(), [20])
    metadata = FlashMetadata.build(pages.describe([(0, 0, 20)]))

    def layer(**form: Any) -> FlashLayer:
        return FlashLayer("layer", kit.shape(**form), torch.float32, workspace)

    one, same = layer(), layer(softcap=3.0, sinks=True)
    assert one.native.form == same.native.form
    assert one.native.layer != same.native.layer
    assert one.native_step(metadata) == same.native_step(metadata)
    others = [layer(num_heads=2), layer(value_size=48), layer(sliding_window=5)]
    others.append(FlashLayer("layer", kit.shape(), torch.float32, Workspace(1)))
    for other in others:
        assert other.native.form != one.native.form
        assert other.native_step(metadata) != one.native_step(metadata)


def test_what_the_function_is_told_lives_as_long_as_the_metadata(kit: Any) -> None:
    """Layers claimed later enlarge the memory they share."""
    case = NativeCase(kit, SPANS["decode"], 1)
    big = kit.shape(8, 1, 256, 256)
    FlashLayer("layer", big, torch.float32, case.layer._workspace)
    np.zeros(10**6)  # would take the place of memory that was freed
    case.call(0, 1)
    case.check(kit)

"""One claimed layer, and the memory that all layers of a backend share."""

from __future__ import annotations

from collections.abc import Mapping

import numba
import numpy as np
import numpy.typing as npt
import torch

from outrider.api import (
    NATIVE_COUNTERS,
    AttentionShape,
    NativeAttention,
    PagedCacheSpec,
    PluginError,
    TensorSpec,
)

from . import plan, team
from .attention import attention_address
from .metadata import FlashMetadata, Step
from .records import BFLOAT16, FLOAT16, FLOAT32, LAYER, STEP, padded, scratch_size, state_size

CACHE_TYPES = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16, torch.float16: FLOAT16}


class Workspace:
    """Memory of the compiled function. One per backend: its layers run one after another, never at the same time.

    Args:
        num_threads: most threads that may meet in a call.
    """

    def __init__(self, num_threads: int = numba.config.NUMBA_NUM_THREADS) -> None:
        self.scratch: npt.NDArray[np.float32] = np.zeros((num_threads, 0), np.float32)
        self._counters: npt.NDArray[np.int64] = np.zeros(NATIVE_COUNTERS, np.int64)
        self.counters = self._counters.ctypes.data
        self._partials: npt.NDArray[np.float32] = np.zeros(0, np.float32)

    def reserve(self, num_floats: int) -> None:
        """Give every thread room for `num_floats`."""
        num_threads, size = self.scratch.shape
        if size < num_floats:
            self.scratch = np.zeros((num_threads, num_floats), np.float32)

    def partials(self, num_floats: int) -> npt.NDArray[np.float32]:
        """A buffer of at least `num_floats`, for one call at a time."""
        if self._partials.size < num_floats:
            self._partials = np.zeros(num_floats, np.float32)
        return self._partials


class FlashLayer:
    """Attention of one layer over its paged cache.

    The cache holds `[num_kv_heads, size]` per token, sizes rounded up to a multiple of 16 and filled up with zeros. A
    dense block is used as `[num_kv_heads, block_size, size]`.
    """

    def __init__(
        self, name: str, shape: AttentionShape, cache_dtype: torch.dtype, workspace: Workspace
    ) -> None:
        team.warm_up()
        plan.warm_up()
        self._name = name
        self._shape = shape
        self._group = shape.num_heads // shape.num_kv_heads
        self._window = shape.sliding_window or 0
        self._workspace = workspace
        sizes = shape.num_heads, shape.num_kv_heads, shape.key_size, shape.value_size, self._window
        # The workspace too: what a step says of one is not true of another.
        self._form = workspace, *sizes
        # Kept here because the compiled function only knows its address.
        self._sinks = None if shape.sinks is None else shape.sinks.detach().to(torch.float32).contiguous()
        self._state_size = int(state_size(shape.value_size))
        self._layer: npt.NDArray[np.void] = np.zeros(1, LAYER)
        self._address = self._layer.ctypes.data
        self.native = NativeAttention(attention_address(), self._address, self._form)
        key_shape, value_shape = (
            (shape.num_kv_heads, int(padded(n))) for n in (shape.key_size, shape.value_size)
        )
        self.cache_spec = PagedCacheSpec(
            {"key": TensorSpec(key_shape, cache_dtype), "value": TensorSpec(value_shape, cache_dtype)}
        )
        workspace.reserve(
            scratch_size(plan.rows_per_tile(self._group) * self._group, shape.key_size, shape.value_size)
        )

    def bind_cache(self, cache: Mapping[str, torch.Tensor]) -> None:
        """Receive `key` and `value`, `[num_blocks, block_size, num_kv_heads, padded size]`.

        Raises:
            PluginError: a tensor is not what `cache_spec` asked for.
        """
        for name, spec in self.cache_spec.tensors.items():
            tensor = cache[name]
            dense = tensor[0, 0].is_contiguous() and tensor.device.type == "cpu"
            if tuple(tensor.shape[2:]) != spec.shape or tensor.dtype != spec.dtype or not dense:
                raise PluginError(
                    f"layer {self._name}: {name} cache of {tensor.dtype} {tuple(tensor.shape)} on {tensor.device}; "
                    f"asked for {spec.dtype} [num_blocks, block_size, {', '.join(map(str, spec.shape))}] on the CPU"
                )
        self._cache = dict(cache)
        key, value, shape = cache["key"], cache["value"], self._shape
        self._layer[0] = (
            shape.num_heads,
            shape.num_kv_heads,
            shape.key_size,
            shape.value_size,
            key.shape[1],
            self._window,
            shape.scaling,
            shape.softcap or 0.0,
            0 if self._sinks is None else self._sinks.data_ptr(),
            CACHE_TYPES[key.dtype],
            *_places(key),
            *_places(value),
        )

    def forward(
        self, metadata: FlashMetadata, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        """Write the rows' keys and values at their slots, then attend causally.

        Args:
            query: `[T, num_heads, key_size]`.
            key, value: `[T, num_kv_heads, key_size]` and `[T, num_kv_heads, value_size]`.

        Returns:
            `[T, num_heads, value_size]` in the type of `query`. Computed in float32.

        Raises:
            PluginError: a shape is not that of the layer and the step.
        """
        shape, num_rows = self._shape, metadata.positions.size
        # The compiled function reads memory by address: a wrong shape must not get there.
        if (
            query.shape != (num_rows, shape.num_heads, shape.key_size)
            or key.shape != (num_rows, shape.num_kv_heads, shape.key_size)
            or value.shape != (num_rows, shape.num_kv_heads, shape.value_size)
        ):
            raise PluginError(
                f"layer {self._name}: query {tuple(query.shape)}, key {tuple(key.shape)} and value "
                f"{tuple(value.shape)} "
                f"do not fit {num_rows} rows of {shape.num_heads} heads over {shape.num_kv_heads}, "
                f"sizes {shape.key_size} and {shape.value_size}"
            )
        rows = [part.float().contiguous() for part in (query, key, value)]
        output = query.new_empty((num_rows, shape.num_heads, shape.value_size), dtype=torch.float32)
        step = self._step(metadata)
        team.attend_in_parallel(
            self.native.function,
            self._address,
            step.address,
            *(part.data_ptr() for part in (*rows, output)),
            self._workspace.counters,
            step.num_workers,
        )
        return output if query.dtype == torch.float32 else output.to(query.dtype)

    def native_step(self, metadata: FlashMetadata) -> int:
        """The `step` of `native.function`, of all layers of this form."""
        return self._step(metadata).address

    def _step(self, metadata: FlashMetadata) -> Step:
        step = metadata.steps.get(self._form)
        if step is None:
            step = metadata.steps[self._form] = self._new_step(metadata)
        return step

    def _new_step(self, metadata: FlashMetadata) -> Step:
        work = plan.make_plan(
            metadata.query_start_loc,
            metadata.positions,
            group=self._group,
            num_kv_heads=self._shape.num_kv_heads,
            window=self._window,
            num_threads=numba.get_num_threads(),
        )
        scratch = self._workspace.scratch
        partials = self._workspace.partials(work.num_partials * self._state_size)
        num_rows, table = metadata.positions.size, metadata.block_table
        counts = num_rows, *table.shape, len(work.items), len(work.merges), scratch.shape[1]
        arrays = metadata.positions, metadata.slot_mapping, table, work.items, work.merges, scratch, partials
        record = np.array([(*counts, *(array.ctypes.data for array in arrays))], STEP)
        return Step(record.ctypes.data, min(work.num_workers, len(scratch)), (record, *arrays))


def _places(cache: torch.Tensor) -> tuple[int, int, int, int]:
    """Address of a cache, and bytes from block to block, token to token, head to head.

    Within a dense block the entries of a head lie side by side: memory is read quicker so. Nobody else looks inside.
    """
    block, token, head, _ = (stride * cache.element_size() for stride in cache.stride())
    if cache[0].is_contiguous():
        token, head = head, head * cache.shape[1]
    return cache.data_ptr(), block, token, head

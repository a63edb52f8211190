"""What the engine and an attention backend say to each other.

Shapes: `B` requests, `T` tokens (rows) of the step, `H`/`Hkv` query/key-value heads, `K` num_speculative_tokens.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """How a layer calls the attention interface, recorded in one dummy forward at load.

    Attributes:
        key_size: width of a query and key head.
        value_size: width of a value head.
        scaling: factor on the scores.
        sliding_window: a query sees itself and the `sliding_window - 1` positions before it; None: all.
        softcap: scores become `softcap * tanh(score / softcap)`; None: unchanged.
        sinks: `[H]` one extra logit per query head that only enters the softmax denominator; None: none.
        unknown: further keywords with a value that is not None. A backend that does not know one must not claim the
            layer.
    """

    num_heads: int
    num_kv_heads: int
    key_size: int
    value_size: int
    scaling: float
    sliding_window: int | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None
    unknown: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerInfo:
    """A module that a backend may claim.

    Attributes:
        name: qualified module name, for messages.
        module: the module itself.
        attention: how it calls the attention interface, or None for a module that does not call it. Claiming such a
            module replaces its `forward`.
        dtype, device: of the activations.
    """

    name: str
    module: torch.nn.Module
    attention: AttentionShape | None
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and type of one cache tensor's entry (per token, or per state slot)."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class PagedCacheSpec:
    """A cache that grows with the tokens. The engine allocates `[num_blocks, block_size, *shape]` per tensor."""

    tensors: Mapping[str, TensorSpec]


@dataclass(frozen=True, slots=True)
class StateCacheSpec:
    """A cache of constant size per request. The engine allocates `[num_state_slots, *shape]` per tensor.

    Attributes:
        rewindable: the layer keeps one state per draft position and reads from the slot that
            `CommonAttentionMetadata.num_accepted_tokens` selects, so rejected drafts leave no trace. If False, any
            speculation on this model is refused at load.
    """

    tensors: Mapping[str, TensorSpec]
    rewindable: bool


NATIVE_COUNTERS = 64
"""int64 counters of one call of a `NativeAttention.function`: eight cache lines of eight."""


class NativeAttention(NamedTuple):
    """A layer's attention as a C function that several threads call together.

    For a caller that runs many layers without returning to Python.

    Attributes:
        function: address of `void f(int64_t layer, int64_t step, const float *query, const float *key, const float
            *value, float *output, int64_t *counters, int64_t worker, int64_t num_workers)`: what
            `AttentionLayer.forward` does, on contiguous float32 arrays of the shapes that it takes and returns. Each of
            `num_workers` threads (at most `numba.config.NUMBA_NUM_THREADS`) calls it with the same arguments but
            `worker`, 0 to `num_workers - 1`, and it returns when `output` is complete. It may wait for work that
            another thread has begun, never for a thread to arrive: one that comes after the others have finished
            touches nothing but the counters. It is called without the GIL and must not raise.
            `counters`: `[NATIVE_COUNTERS]` for the threads of this call to share work by atomic additions, zero before
            the first of them calls, on cache lines of their own.
        layer: its first argument.
        form: layers of equal form take the same `step` in one forward.
    """

    function: int
    layer: int
    form: Hashable


class AttentionLayer(Protocol):
    """A backend's implementation of one claimed layer. It may also be a `NativeAttentionLayer`."""

    cache_spec: PagedCacheSpec | StateCacheSpec

    def bind_cache(self, cache: Mapping[str, torch.Tensor]) -> None:
        """Receive the tensors that `cache_spec` asked for. Their content is undefined; never let it reach an output."""
        ...

    def forward(self, metadata: Any, *args: Any, **kwargs: Any) -> Any:
        """Compute the layer for the rows of this step.

        For a layer of the attention interface: `forward(metadata, query [T, H, key_size], key [T, Hkv, key_size],
        value [T, Hkv, value_size])`, returns `[T, H, value_size]`: write keys and values at the rows' slots, then
        attend causally. For a claimed module: `forward(metadata, *args, **kwargs)` as the module was called, its
        activations `[1, T, ...]`.

        Args:
            metadata: what this backend's `build_attention_metadata` (or `build_for_drafting`) returned for the step.
        """
        ...


@runtime_checkable
class NativeAttentionLayer(AttentionLayer, Protocol):
    """A layer whose attention is also a C function. A fast model may call that in place of `forward`.

    What it can do is asked when it is claimed, so the attribute `native` must be there by then, whatever its value.
    """

    @property
    def native(self) -> NativeAttention | None:
        """The function, constant from `bind_cache` on; None: only `forward` computes this layer."""
        ...

    def native_step(self, metadata: Any) -> int:
        """Return the `step` of `native.function`, valid as long as `metadata` is.

        Asked of one layer of each form per forward, and only if there is a function.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonAttentionMetadata:
    """Where the rows of one forward stand; every backend builds its own metadata from it.

    Attributes:
        query_start_loc: `[B + 1]` int32; rows of request `i` are `query_start_loc[i]:query_start_loc[i + 1]`.
        seq_lens: `[B]` int32; tokens of the request up to and including its last row of this forward.
        positions: `[T]` int64; absolute position of each row.
        block_table: `[B, max_blocks]` int32; block `p // block_size` of a request holds position `p`. Entries behind
            the request's blocks are -1.
        slot_mapping: `[T]` int64; `block * block_size + offset` where each row's entry is written.
        state_slots: `[B, K + 1]` int32; the request's own slots for layers with a `StateCacheSpec`.
        num_accepted_tokens: `[B]` int32; tokens emitted by the request's previous step (1 after a step without
            drafts): the state before this step's rows is in `state_slots[i, num_accepted_tokens[i] - 1]`.
            A step leaves the state after row `t` in slot `t` if the request has drafts, else the state after its
            last row in slot 0.
    """

    num_reqs: int
    num_tokens: int
    max_query_len: int
    max_seq_len: int
    block_size: int
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    positions: torch.Tensor
    block_table: torch.Tensor
    slot_mapping: torch.Tensor
    state_slots: torch.Tensor
    num_accepted_tokens: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecDecodeMetadata:
    """Which rows of the flat batch judge a draft and which give the bonus token (names as in vLLM V1).

    Let request `i` have `D_i` drafts; `ΣD` is their sum. Only `ΣD + B` rows get logits.

    Attributes:
        draft_token_ids: `[ΣD]` int64.
        num_draft_tokens: `[B]` ints.
        cu_num_draft_tokens: `[B]` int32, inclusive cumulative sum.
        logits_indices: `[ΣD + B]` int64, rows of the flat batch that get logits.
        target_logits_indices: `[ΣD]` int64, rows *of the logits* that judge each draft.
        bonus_logits_indices: `[B]` int64, rows *of the logits* that give the bonus token.
    """

    draft_token_ids: torch.Tensor
    num_draft_tokens: tuple[int, ...]
    cu_num_draft_tokens: torch.Tensor
    logits_indices: torch.Tensor
    target_logits_indices: torch.Tensor
    bonus_logits_indices: torch.Tensor

    @property
    def max_spec_len(self) -> int:
        """Most drafts of any request in the step."""
        return max(self.num_draft_tokens, default=0)

"""The fast twin of a decoder layer of the Llama shape: two compiled calls around its attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from ..kernels.cpu.decoder_layer import NUM_STAGES, after_attention, before_attention
from ..kernels.cpu.linear import whole_steps, workers_for
from ..kernels.cpu.weights import NOTHING, empty_aligned, padded
from ..kernels.cpu.work import new_board
from .attention_interface import binding_of
from .packed_layers import PackedLinear, PackedRMSNorm

_Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Of a layer: heads of queries, heads of keys and values, `D`, `H`, `I`."""

    num_heads: int
    num_kv_heads: int
    head_size: int
    hidden_size: int
    intermediate_size: int


class _Step:
    """What the layers of one forward over `T` rows share: rotary tables `[T, R]`, threads, and scratch.

    Attributes:
        query, key, value: what a layer hands to attention, as arrays; `tensors` are the same as tensors.
        scratch: the arrays that `after_attention` takes between its weights and its result.
        attended, even, odd: for `kernels.cpu.decoder`.
    """

    def __init__(self, tables: tuple[torch.Tensor, torch.Tensor] | None, num_rows: int, sizes: Sizes) -> None:
        def rows(*shape: int) -> _Array:
            return empty_aligned(num_rows, *shape)

        self.num_rows = num_rows
        self.no_rotary = (rows(0), rows(0))
        self.rotary = self.no_rotary
        if tables is not None:
            cos, sin = (np.ascontiguousarray(table[0].float().numpy()) for table in tables)
            self.rotary = cos, sin
        self.query = rows(sizes.num_heads, sizes.head_size)
        self.key = rows(sizes.num_kv_heads, sizes.head_size)
        self.value = rows(sizes.num_kv_heads, sizes.head_size)
        self.tensors = torch.from_numpy(self.query), torch.from_numpy(self.key), torch.from_numpy(self.value)
        self.normed = rows(padded(sizes.hidden_size))
        wide = padded(sizes.intermediate_size)
        self.scratch = rows(sizes.hidden_size), self.normed, rows(wide), rows(wide)
        self.attended = rows(sizes.num_heads * sizes.head_size)
        self.even, self.odd = rows(sizes.hidden_size), rows(sizes.hidden_size)
        multiply_adds = num_rows * sizes.hidden_size * (4 * sizes.hidden_size + 3 * sizes.intermediate_size)
        self.num_workers = workers_for(multiply_adds)


class Workspace:
    """Scratch that the layers of one model share; they run one after another.

    Attributes:
        board: counters of a region's tasks.
    """

    def __init__(self) -> None:
        self.board = new_board(NUM_STAGES)
        self._key: tuple[Any, int, Sizes | None] = (None, 0, None)
        self._step: _Step | None = None

    def step(self, tables: tuple[torch.Tensor, torch.Tensor] | None, num_rows: int, sizes: Sizes) -> _Step:
        """Return what a layer needs for `num_rows` rows; it is made at the first layer of a forward.

        Args:
            tables: cosines and sines `[1, T, R]` of the rotary embedding: all layers of a forward get the same tuple.
        """
        step = self._step
        if step is None or self._key[0] is not tables or self._key[1:] != (num_rows, sizes):
            step = self._step = _Step(tables, num_rows, sizes)
            self._key = tables, num_rows, sizes
        return step


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaShape:
    """What the kernels need of a decoder layer.

    Attributes:
        before, after: arguments of the two kernels that are the same in every step.
        uses_rotary: whether queries and keys are rotated.
    """

    attention: nn.Module
    workspace: Workspace
    before: tuple[Any, ...]
    after: tuple[Any, ...]
    uses_rotary: bool
    sizes: Sizes

    @property
    def like(self) -> npt.NDArray[Any]:
        """One of the weights."""
        weight: npt.NDArray[Any] = self.after[0]
        return weight

    @classmethod
    def of(cls, layer: nn.Module, workspace: Workspace) -> LlamaShape | None:
        """Read a layer whose linear layers and norms are packed; None if it is not of this shape."""
        children = dict(layer.named_children())
        if children.keys() != {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}:
            return None
        attention, mlp = children["self_attn"], children["mlp"]
        linears = {
            name: module
            for part in (attention, mlp)
            for name, module in part.named_children()
            if _has_weights(module)
        }
        norms = {name: linears.pop(name, None) for name in ("q_norm", "k_norm")}
        if linears.keys() != {f"{name}_proj" for name in ("q", "k", "v", "o", "gate", "up", "down")}:
            return None
        if not all(isinstance(module, PackedLinear) for module in linears.values()):
            return None
        layers: dict[str, Any] = linears
        formats = {module.packed.format for module in layers.values()}
        size = getattr(attention, "head_dim", None)
        q, k, v, gate, up = (layers[f"{name}_proj"] for name in ("q", "k", "v", "gate", "up"))
        present: list[Any] = [norm for norm in norms.values() if norm is not None]
        if (
            len(formats) > 1
            or not isinstance(size, int)
            or any(module.out_features % size for module in (q, k, v))
            or k.out_features != v.out_features
            or gate.out_features != up.out_features
            or len(present) == 1
            or not all(isinstance(norm, PackedRMSNorm) and len(norm.scale) == size for norm in present)
            or not all(
                isinstance(children[name], PackedRMSNorm) for name in children if name.endswith("norm")
            )
        ):
            return None
        input_norm: Any = children["input_layernorm"]
        output_norm: Any = children["post_attention_layernorm"]
        head_norms = (
            (present[0].scale, present[1].scale, present[0].epsilon)
            if present
            else (NOTHING, NOTHING, np.float32(0))
        )
        q_k_v = (array for name in "qkv" for array in _arrays(layers[f"{name}_proj"]))
        gate_up_down = (array for name in ("gate", "up", "down") for array in _arrays(layers[f"{name}_proj"]))
        return cls(
            attention=attention,
            workspace=workspace,
            before=(input_norm.scale, input_norm.epsilon, *q_k_v, *head_norms),
            after=(*_arrays(layers["o_proj"]), output_norm.scale, output_norm.epsilon, *gate_up_down),
            uses_rotary=bool(getattr(attention, "use_rope", True)),
            sizes=Sizes(
                num_heads=q.out_features // size,
                num_kv_heads=k.out_features // size,
                head_size=size,
                hidden_size=q.in_features,
                intermediate_size=gate.out_features,
            ),
        )


class FastDecoderLayer(nn.Module):
    """Takes the class of a decoder layer; its submodules stay, and attention goes to what `self_attn` is bound to."""

    shape: LlamaShape

    def forward(
        self,
        hidden_states: torch.Tensor,
        *args: Any,
        position_embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Map `[1, T, H]` to `[1, T, H]`, float32."""
        out = self.run(np.ascontiguousarray(hidden_states.numpy()[0]), position_embeddings)
        return torch.from_numpy(out)[None]

    def run(self, hidden: _Array, tables: tuple[torch.Tensor, torch.Tensor] | None) -> _Array:
        """`forward` on arrays `[T, H]`; `tables` are the position embeddings."""
        shape = self.shape
        step = shape.workspace.step(tables, len(hidden), shape.sizes)
        rotary = step.rotary if shape.uses_rotary else step.no_rotary
        shared = shape.workspace.board, step.num_workers
        before_attention(
            hidden, *shape.before, *rotary, step.normed, step.query, step.key, step.value, *shared
        )
        attended = binding_of(shape.attention).attend(*step.tensors, None, {})
        out = np.empty(hidden.shape, np.float32)
        rows = whole_steps(attended.numpy().reshape(step.num_rows, -1))
        after_attention(rows, hidden, *shape.after, *step.scratch, out, *shared)
        return out

    @property
    def is_watched(self) -> bool:
        """Whether a hook wants to see what enters or leaves this layer."""
        return bool(self._forward_hooks or self._forward_pre_hooks)


def _arrays(layer: PackedLinear) -> tuple[Any, _Array, _Array]:
    """Weight, scales and bias as the kernels take them."""
    bias = NOTHING if layer.packed_bias is None else layer.packed_bias
    return layer.packed.values, layer.packed.scales, bias


def _has_weights(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None

"""The fast twin of a decoder layer of the Llama shape: two compiled calls around its attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from numba import get_num_threads
from torch import nn

from ..kernels.cpu.decoder_layer import NUM_STAGES, after_attention, before_attention
from ..kernels.cpu.linear import whole_vectors
from ..kernels.cpu.weights import NOTHING, PackedWeight, padded
from ..kernels.cpu.work import new_board
from .attention_interface import binding_of
from .packed_layers import PackedLinear, PackedRMSNorm, replace_weight

_Array = npt.NDArray[np.float32]
_PARALLEL_FROM = 256 * 1024
"""Multiply-adds of a layer that are worth waking the other threads for."""


class Workspace:
    """Scratch that the layers of one model share; they run one after another."""

    def __init__(self) -> None:
        self.board = new_board(NUM_STAGES)
        self._arrays: dict[tuple[str, int], _Array] = {}
        self._tables: tuple[Any, Any] = (None, None)
        self._rotary: tuple[_Array, _Array] = (_NO_TABLE, _NO_TABLE)

    def rows(self, name: str, num_rows: int, width: int) -> _Array:
        """`[num_rows, width]`, what it holds is undefined; valid until this name and width are asked for again."""
        array = self._arrays.get((name, width))
        if array is None or len(array) < num_rows:
            array = self._arrays[name, width] = np.empty((num_rows, width), np.float32)
        return array[:num_rows]

    def rotary(self, tables: tuple[torch.Tensor, torch.Tensor]) -> tuple[_Array, _Array]:
        """The cosines and sines `[T, R]` of a step; all its layers get the same two tensors `[1, T, R]`."""
        if tables[0] is not self._tables[0] or tables[1] is not self._tables[1]:
            cos, sin = (np.ascontiguousarray(table[0].float().numpy()) for table in tables)
            self._tables, self._rotary = tables, (cos, sin)
        return self._rotary


_NO_TABLE = np.zeros((0, 0), np.float32)


@dataclass(frozen=True, slots=True)
class _Product:
    """A linear layer, or several side by side: `[N, K]` and a bias `[N]`, or `[0]`."""

    weight: PackedWeight
    bias: _Array

    @classmethod
    def of(cls, *layers: PackedLinear) -> _Product:
        """Put layers with the same input side by side in memory; they go on to work, on their part of it."""
        weights = [layer.packed for layer in layers]
        if len(layers) == 1:
            whole = weights[0]
        else:
            values = np.concatenate([weight.values for weight in weights])
            whole = PackedWeight(
                values, np.concatenate([weight.scales for weight in weights]), weights[0].depth
            )
            first = 0
            for layer in layers:
                rows = slice(first, first + layer.out_features)
                replace_weight(layer, PackedWeight(values[rows], whole.scales[rows], whole.depth))
                first = rows.stop
        biases = [layer.packed_bias for layer in layers]
        if all(bias is None for bias in biases):
            return cls(whole, NOTHING)
        filled = [
            np.zeros(layer.out_features, np.float32) if bias is None else bias
            for layer, bias in zip(layers, biases, strict=True)
        ]
        return cls(whole, np.concatenate(filled))

    @property
    def arrays(self) -> tuple[Any, _Array, _Array]:
        """As the kernels take them."""
        return self.weight.values, self.weight.scales, self.bias


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaShape:
    """What the kernels need of a decoder layer.

    Attributes:
        head_norms: weights of the norms over heads of queries and keys and their epsilon; `[0]` for none.
        uses_rotary: whether queries and keys are rotated.
        sizes: heads of queries, heads of keys, `D`, `I`.
    """

    attention: nn.Module
    workspace: Workspace
    input_norm: PackedRMSNorm
    qkv: _Product
    head_norms: tuple[_Array, _Array, np.float32]
    uses_rotary: bool
    output: _Product
    output_norm: PackedRMSNorm
    gate_up: _Product
    down: _Product
    sizes: tuple[int, int, int, int]

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
        return cls(
            attention=attention,
            workspace=workspace,
            input_norm=input_norm,
            qkv=_Product.of(q, k, v),
            head_norms=(present[0].scale, present[1].scale, present[0].epsilon)
            if present
            else (NOTHING, NOTHING, np.float32(0)),
            uses_rotary=bool(getattr(attention, "use_rope", True)),
            output=_Product.of(layers["o_proj"]),
            output_norm=output_norm,
            gate_up=_Product.of(gate, up),
            down=_Product.of(layers["down_proj"]),
            sizes=(q.out_features // size, k.out_features // size, size, gate.out_features),
        )


class FastDecoderLayer(nn.Module):
    """Takes the class of a decoder layer; its submodules stay, and attention goes to what `self_attn` is bound to."""

    _shape: LlamaShape

    def forward(
        self,
        hidden_states: torch.Tensor,
        *args: Any,
        position_embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Map `[1, T, H]` to `[1, T, H]`, float32."""
        shape = self._shape
        space = shape.workspace
        hidden = np.ascontiguousarray(hidden_states[0].detach().numpy())
        num_rows, width = hidden.shape
        heads, kv_heads, size, intermediate = shape.sizes
        cos, sin = (_no_rotary(num_rows),) * 2
        if shape.uses_rotary and position_embeddings is not None:
            cos, sin = space.rotary(position_embeddings)
        normed = space.rows("normed", num_rows, padded(width))
        query, key, value = (
            torch.empty(num_rows, count, size, dtype=torch.float32) for count in (heads, kv_heads, kv_heads)
        )
        multiply_adds = num_rows * width * (4 * width + 3 * intermediate)
        num_workers = get_num_threads() if multiply_adds >= _PARALLEL_FROM else 1
        before_attention(
            hidden, shape.input_norm.scale, shape.input_norm.epsilon, *shape.qkv.arrays, *shape.head_norms,
            cos, sin, normed, _flat(query), _flat(key), _flat(value), size, space.board, num_workers,
        )  # fmt: skip
        attended = binding_of(shape.attention).attend(query, key, value, None, {})
        out = np.empty((num_rows, width), np.float32)
        after_attention(
            whole_vectors(_flat(attended)), hidden, *shape.output.arrays,
            shape.output_norm.scale, shape.output_norm.epsilon, *shape.gate_up.arrays, *shape.down.arrays,
            space.rows("middle", num_rows, width), normed, space.rows("gates", num_rows, padded(intermediate)),
            space.rows("ups", num_rows, padded(intermediate)), intermediate, out, space.board, num_workers,
        )  # fmt: skip
        return torch.from_numpy(out)[None]


def _has_weights(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def _flat(heads: torch.Tensor) -> _Array:
    flat: _Array = heads.detach().numpy().reshape(len(heads), -1)
    return flat


def _no_rotary(num_rows: int) -> _Array:
    return np.zeros((num_rows, 0), np.float32)

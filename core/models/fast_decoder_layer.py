"""The fast twin of a decoder layer of the Llama shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from ..kernels.cpu.decoder import AFTER, BEFORE, run_layers
from ..kernels.cpu.decoder_records import layer_record
from ..kernels.cpu.decoder_workspace import DecoderWorkspace, Sizes
from ..kernels.cpu.product import Matrix
from ..kernels.cpu.weights import NOTHING
from .attention_interface import binding_of
from .packed_layers import PackedLinear, PackedRMSNorm

_MATRICES = "q", "k", "v", "o", "gate", "up", "down"


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaShape:
    """What the kernels need of a decoder layer.

    Attributes:
        record: `[1]` of `LAYER`.
        kept: what it points to.
        like: an empty array of the weights' type.
    """

    attention: nn.Module
    sizes: Sizes
    record: npt.NDArray[np.void]
    kept: tuple[Any, ...]
    like: npt.NDArray[Any]

    @classmethod
    def of(cls, layer: nn.Module) -> LlamaShape | None:
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
        if linears.keys() != {f"{name}_proj" for name in _MATRICES}:
            return None
        if not all(isinstance(module, PackedLinear) for module in linears.values()):
            return None
        layers: dict[str, Any] = linears
        formats = {module.packed.values.dtype for module in layers.values()}
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
        q_norm, k_norm, head_epsilon = (
            (present[0].scale, present[1].scale, present[0].epsilon)
            if present
            else (NOTHING, NOTHING, np.float32(0))
        )
        named = {"output" if name == "o" else name: _matrix(layers[f"{name}_proj"]) for name in _MATRICES}
        return cls(
            attention=attention,
            sizes=Sizes(
                num_heads=q.out_features // size,
                num_kv_heads=k.out_features // size,
                head_size=size,
                hidden_size=q.in_features,
                intermediate_size=gate.out_features,
            ),
            kept=(*named.values(), input_norm.scale, output_norm.scale, q_norm, k_norm),
            record=layer_record(
                **named,
                input_norm=input_norm.scale,
                input_epsilon=input_norm.epsilon,
                q_norm=q_norm,
                k_norm=k_norm,
                head_epsilon=head_epsilon,
                output_norm=output_norm.scale,
                output_epsilon=output_norm.epsilon,
                uses_rotary=bool(getattr(attention, "use_rope", True)),
            ),
            like=np.empty(0, q.packed.values.dtype),
        )


class FastDecoderLayer(nn.Module):
    """Takes the class of a decoder layer: its submodules stay, and attention goes to what `self_attn` is bound to."""

    shape: LlamaShape
    workspace: DecoderWorkspace

    def forward(
        self,
        hidden_states: torch.Tensor,
        *args: Any,
        position_embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Map `[1, T, H]` to `[1, T, H]`, float32."""
        shape, space = self.shape, self.workspace
        num_rows, sizes = hidden_states.shape[1], shape.sizes
        rotary = None
        if position_embeddings is not None:
            cos, sin = (table[0].float().numpy() for table in position_embeddings)
            rotary = cos, sin
        space.begin(num_rows, rotary)
        hidden = space.rows("hidden", num_rows, sizes.hidden_size)
        hidden[:] = hidden_states.numpy()[0]
        layer = shape.record.ctypes.data, 1, 0, space.step, shape.like
        run_layers(*layer, BEFORE, BEFORE)
        query, key, value = (
            torch.from_numpy(space.rows(name, num_rows, heads * sizes.head_size)).view(num_rows, heads, -1)
            for name, heads in (
                ("query", sizes.num_heads),
                ("key", sizes.num_kv_heads),
                ("value", sizes.num_kv_heads),
            )
        )
        attended = binding_of(shape.attention).attend(query, key, value, None, {})
        space.attended(num_rows)[:] = attended.numpy().reshape(num_rows, -1)
        run_layers(*layer, AFTER, AFTER)
        return torch.from_numpy(hidden.copy())[None]


def hooks_of(module: nn.Module) -> list[dict[int, Any]]:
    """The hooks that see what enters and leaves `module`, as they are at any time."""
    return [module._forward_pre_hooks, module._forward_hooks]


def _matrix(layer: PackedLinear) -> Matrix:
    bias = NOTHING if layer.packed_bias is None else layer.packed_bias
    return Matrix(layer.packed.values, layer.packed.scales, layer.packed.exceptions, bias)


def _has_weights(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None

"""Linear layers, embeddings and RMSNorms that run on our kernels, with weights in the format that was asked for.

Activations are float32. A row's bits do not depend on the rows beside it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from ..kernels.cpu.linear import linear
from ..kernels.cpu.norm import rms_norm
from ..kernels.cpu.packed_bfloat16 import DECODES_FAST
from ..kernels.cpu.weights import PackedWeight, WeightFormat, WeightMemory
from .file_pages import drop_file_pages

_NUM_TRIAL_ROWS = 3


class PackedLinear(nn.Linear):
    """`nn.Linear` for inference on float32 activations, computed by `kernels.cpu.linear`.

    Activations of another type are torch's business, and then must have the weight's; weights of one byte are ours
    alone. No gradient flows through it.

    Attributes:
        packed: what is computed with. `weight` shows the same memory, without the padding; its scales, if it is int8,
            are in `packed` only. Packed bfloat16 is shown as bytes, unless the weight is that of a mapped file, which
            takes no memory.
        packed_bias: or None.
    """

    packed: PackedWeight
    packed_bias: npt.NDArray[np.float32] | None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Map `[..., in_features]` to `[..., out_features]`.

        Raises:
            TypeError: the weight is shown as integers, and the activations are not float32.
        """
        if input.dtype != torch.float32 or input.device.type != "cpu":
            if not self.weight.is_floating_point():  # torch would multiply integers, without their scales
                format = self.packed.format
                raise TypeError(
                    f"activations are {input.dtype}; a layer of {format} weights takes torch.float32"
                )
            return super().forward(input)
        rows = input.detach().reshape(-1, self.in_features).numpy()
        out = linear(rows, self.packed, self.packed_bias)
        return torch.from_numpy(out).view(*input.shape[:-1], self.out_features)


class PackedEmbedding(nn.Embedding):
    """`nn.Embedding` for inference that gives float32 rows of a packed weight.

    Attributes:
        scale: what rows are multiplied with, or None.
    """

    packed: PackedWeight
    scale: np.float32 | None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Map `[...]` token ids to `[..., embedding_dim]`."""
        rows = self.packed.rows(input.numpy())
        return torch.from_numpy(rows if self.scale is None else rows * self.scale)


class PackedRMSNorm(nn.Module):
    """An architecture's RMSNorm, computed by `kernels.cpu.norm`.

    Attributes:
        scale: `[H]` what a normalised row is multiplied with: the weight, or 1 + the weight.
        epsilon: added to the mean square.
    """

    scale: npt.NDArray[np.float32]
    epsilon: np.float32

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Normalise the last dimension of `[..., H]`."""
        rows = hidden_states.detach().reshape(-1, len(self.scale)).numpy()
        return torch.from_numpy(rms_norm(rows, self.scale, self.epsilon)).view(hidden_states.shape)


def pack_layers(module: nn.Module, weights: WeightFormat) -> None:
    """Turn every `nn.Linear`, its tied embeddings, and every RMSNorm in `module` into its packed form, in place.

    Modules that are packed already stay as they are; so do subclasses of `nn.Linear`, which may compute something
    else. Whatever is not packed becomes float32. Hooks, names and the sharing of weights stay.

    Args:
        weights: format of the linear layers and the embeddings that share their weight. `bfloat16` rounds weights that
            are not bfloat16 yet; where it pays and nothing is lost, they are kept in 12 bits. Other embeddings stay
            bfloat16 if they are, unless all shall be float32.

    Raises:
        ValueError: int8 is asked for, and a weight, which is named, holds NaN or infinity.
    """
    packer = _Packer()
    for path, layer in module.named_modules():
        if type(layer) is nn.Linear:
            try:
                packer.pack(layer, PackedLinear, weights)
            except ValueError as error:
                raise ValueError(f"{path or type(layer).__name__}: {error}; use other weights") from None
    packer.make_alike([layer for path, layer in module.named_modules() if _is_in_a_list(path)])
    for layer in module.modules():
        if isinstance(layer, nn.Embedding) and not isinstance(layer, PackedEmbedding):
            if packer.has(layer.weight):
                _pack_embedding(packer, layer, weights)
            elif layer.weight.dtype == torch.bfloat16:
                _pack_embedding(packer, layer, "float32" if weights == "float32" else "bfloat16")
    ours = (PackedLinear, PackedEmbedding)
    for layer in module.modules():
        own = [*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)]
        for name, tensor in own:
            if tensor.is_floating_point() and not (isinstance(layer, ours) and name == "weight"):
                tensor.data = tensor.data.float()
        if isinstance(layer, PackedLinear):
            layer.packed_bias = None if layer.bias is None else layer.bias.detach().numpy()
        elif type(layer).__name__.endswith("RMSNorm"):
            _pack_norm(layer)


class _Packer:
    """Packs each parameter once, wherever it occurs."""

    def __init__(self) -> None:
        self._memory = WeightMemory()
        self._packed: dict[int, PackedWeight] = {}

    def has(self, weight: torch.Tensor) -> bool:
        """Whether a layer with this parameter has been packed."""
        return id(weight) in self._packed

    def pack(self, layer: Any, kind: type[nn.Module], weights: WeightFormat) -> None:
        """Give a layer its packed weight and another class."""
        if not self.has(layer.weight):
            packed = self._packed[id(layer.weight)] = self._pack(layer.weight.detach(), weights)
            _show(layer.weight, packed)
        layer.packed = self._packed[id(layer.weight)]
        layer.__class__ = kind

    def make_alike(self, layers: list[Any]) -> None:
        """Unpack bfloat16 if that of another layer could not be packed: kernels take many layers of one kind."""
        layers = [layer for layer in layers if isinstance(layer, PackedLinear) and self.has(layer.weight)]
        if {layer.packed.values.dtype for layer in layers} != {np.dtype(np.uint8), np.dtype(np.uint16)}:
            return
        for layer in layers:
            known = self._packed[id(layer.weight)]
            if known.values.dtype == np.uint8:
                bits = (known.rows().view(np.uint32) >> 16).astype(np.uint16)
                known = self._packed[id(layer.weight)] = PackedWeight.pack(bits, memory=self._memory)
                _show(layer.weight, known)
            layer.packed = known

    def _pack(self, data: torch.Tensor, weights: WeightFormat) -> PackedWeight:
        quantize = weights == "int8"
        if weights == "bfloat16" and data.dtype != torch.bfloat16:
            if DECODES_FAST:
                data = data.bfloat16()
            else:
                rounded = self._memory.allocate((data.shape[0], data.shape[1]), np.int16)
                data = torch.from_numpy(rounded).view(torch.bfloat16).copy_(data)
        if data.dtype == torch.bfloat16 and weights != "float32":
            bits = data.view(torch.int16).numpy().view(np.uint16)
            return PackedWeight.pack(bits, quantize=quantize, compact=DECODES_FAST, memory=self._memory)
        return PackedWeight.pack(data.float().numpy(), quantize=quantize, memory=self._memory)


def _is_in_a_list(path: str) -> bool:
    return any(part.isdigit() for part in path.split("."))


def _show(parameter: torch.Tensor, packed: PackedWeight) -> None:
    """Let a parameter show packed memory; what it held before is freed."""
    parameter.requires_grad_(False)
    if packed.values.dtype == np.uint8:
        own = parameter.data
        if own.dtype != torch.bfloat16 or not drop_file_pages(own.view(torch.int16).numpy()):
            parameter.data = torch.from_numpy(packed.values)
        return
    values = packed.values[:, : packed.depth]
    parameter.data = (
        torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)
        if packed.format == "bfloat16"
        else torch.from_numpy(values)
    )


def _pack_embedding(packer: _Packer, layer: Any, weights: WeightFormat) -> None:
    """Pack an embedding; its class stays among the bases of the new one.

    A class that calls `super().forward` finds ours there. Those that scale rows do so in the type of the weight: the
    scale would be rounded as the weight is. We scale instead, by what they remember unrounded.
    """
    kind, scale = type(layer), getattr(layer, "scalar_embed_scale", None)
    bases = (kind, PackedEmbedding) if scale is None else (PackedEmbedding, kind)
    packer.pack(layer, PackedEmbedding if kind is nn.Embedding else type(kind.__name__, bases, {}), weights)
    layer.scale = None if scale is None else np.float32(scale)


def _pack_norm(norm: nn.Module) -> None:
    """Replace a norm by ours if it computes the same on a few rows, with its weight or 1 + its weight as the scale."""
    parameters = dict(norm.named_parameters())
    epsilon = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    if list(parameters) != ["weight"] or not isinstance(epsilon, float) or parameters["weight"].dim() != 1:
        return
    weight = parameters["weight"].detach().numpy()
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(_NUM_TRIAL_ROWS, len(weight), generator=generator)
    with torch.no_grad():
        expected: Any = norm(rows)
    for scale in (weight, weight + np.float32(1)):
        out = torch.from_numpy(rms_norm(rows.numpy(), scale, np.float32(epsilon)))
        if expected.shape == out.shape and torch.allclose(expected, out, rtol=1e-5, atol=1e-5):
            norm.scale, norm.epsilon = scale, np.float32(epsilon)  # type: ignore[assignment]
            norm.__class__ = PackedRMSNorm
            return

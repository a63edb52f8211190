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
from ..kernels.cpu.weights import PackedWeight, WeightFormat

_NUM_TRIAL_ROWS = 3


class PackedLinear(nn.Linear):
    """`nn.Linear` for inference on float32 activations, computed by `kernels.cpu.linear`.

    Activations of another type are torch's business, and then must have the weight's. No gradient flows through it.

    Attributes:
        packed: what is computed with. `weight` shows the same memory, without the padding; its scales, if it is int8,
            are in `packed` only.
        packed_bias: or None.
    """

    packed: PackedWeight
    packed_bias: npt.NDArray[np.float32] | None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Map `[..., in_features]` to `[..., out_features]`."""
        if input.dtype != torch.float32 or input.device.type != "cpu":
            return super().forward(input)
        rows = input.detach().reshape(-1, self.in_features).numpy()
        out = linear(rows, self.packed, self.packed_bias)
        return torch.from_numpy(out).view(*input.shape[:-1], self.out_features)


class PackedEmbedding(nn.Embedding):
    """`nn.Embedding` for inference that gives float32 rows of a packed weight."""

    packed: PackedWeight

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Map `[...]` token ids to `[..., embedding_dim]`."""
        return torch.from_numpy(self.packed.rows(input.numpy()))


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
            are not bfloat16 yet.

    Raises:
        ValueError: int8 is asked for, and a weight holds NaN or infinity.
    """
    done: dict[int, PackedWeight] = {}
    for layer in module.modules():
        if type(layer) is nn.Linear:
            _pack(layer, PackedLinear, weights, done)
    for layer in module.modules():
        unpacked = isinstance(layer, nn.Embedding) and not isinstance(layer, PackedEmbedding)
        if unpacked and (id(layer.weight) in done or weights == "bfloat16"):
            _pack(layer, _packed_embedding(type(layer)), weights, done)  # type: ignore[arg-type]
    ours = (PackedLinear, PackedEmbedding)
    for layer in module.modules():
        for name, parameter in layer.named_parameters(recurse=False):
            if parameter.is_floating_point() and not (isinstance(layer, ours) and name == "weight"):
                parameter.data = parameter.data.float()
        if isinstance(layer, PackedLinear):
            layer.packed_bias = None if layer.bias is None else layer.bias.detach().numpy()
        elif type(layer).__name__.endswith("RMSNorm"):
            _pack_norm(layer)


def _pack(layer: Any, kind: type[nn.Module], weights: WeightFormat, done: dict[int, PackedWeight]) -> None:
    """Give a layer its packed weight, the same one wherever its parameter occurs, and another class."""
    key = id(layer.weight)
    if key not in done:
        data = layer.weight.detach()
        half = weights == "bfloat16" or (weights == "int8" and data.dtype == torch.bfloat16)
        data = data.to(torch.bfloat16 if half else torch.float32)
        array = data.view(torch.int16).numpy().view(np.uint16) if half else data.numpy()
        done[key] = PackedWeight.pack(array, quantize=weights == "int8")
        _show(layer.weight, done[key])
    layer.packed = done[key]
    layer.__class__ = kind


def _show(parameter: torch.Tensor, packed: PackedWeight) -> None:
    """Let a parameter show packed memory; what it held before is freed."""
    values = packed.values[:, : packed.depth]
    tensor = (
        torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)
        if packed.format == "bfloat16"
        else torch.from_numpy(values)
    )
    parameter.requires_grad_(False)
    parameter.data = tensor


def _packed_embedding(kind: type[nn.Embedding]) -> type[nn.Embedding]:
    # A subclass (a scaled embedding, for example) that calls `super().forward` finds ours there.
    return PackedEmbedding if kind is nn.Embedding else type(kind.__name__, (kind, PackedEmbedding), {})


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

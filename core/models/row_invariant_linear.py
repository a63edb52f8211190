"""Linear layers whose rows do not know each other: the same bits for a row alone and in any batch."""

from __future__ import annotations

import torch
from torch import nn

from ..kernels.cpu.linear import linear


class RowInvariantLinear(nn.Linear):
    """`nn.Linear` for inference, computed by `kernels.cpu.linear` where that can: on the CPU, in float32.

    Elsewhere it is `nn.Linear`. The result is detached: no gradient flows through it.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Map `[..., in_features]` to `[..., out_features]`."""
        tensors = (input, self.weight) if self.bias is None else (input, self.weight, self.bias)
        if any(tensor.device.type != "cpu" or tensor.dtype != torch.float32 for tensor in tensors):
            return super().forward(input)
        rows, weight, *bias = (tensor.detach() for tensor in tensors)
        rows = rows.reshape(-1, self.in_features)
        out = linear(rows.numpy(), weight.numpy(), bias[0].numpy() if bias else None)
        return torch.from_numpy(out).view(*input.shape[:-1], self.out_features)


def make_row_invariant(module: nn.Module) -> int:
    """Turn every `nn.Linear` in `module` into its row-invariant form; subclasses may compute something else and stay.

    Parameters, hooks and the sharing of weights stay as they are.

    Returns:
        The number of layers turned.
    """
    layers = [layer for layer in module.modules() if type(layer) is nn.Linear]
    for layer in layers:
        layer.__class__ = RowInvariantLinear
    return len(layers)

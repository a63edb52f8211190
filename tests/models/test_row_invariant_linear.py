"""Linear layers turned row-invariant: which are, what they share, and what they compute."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from outrider.models.row_invariant_linear import RowInvariantLinear, make_row_invariant


class Tied(nn.Module):
    """An embedding and a head with one weight, and a layer of a class of its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(11, 7)
        self.inner = nn.Sequential(nn.Linear(7, 7), nn.Linear(7, 7, bias=False))
        self.odd = nn.modules.linear.NonDynamicallyQuantizableLinear(7, 7)
        self.head = nn.Linear(7, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.odd(self.inner(self.embed(token_ids))))


def test_exactly_the_linear_layers_are_turned_once() -> None:
    model = Tied()
    assert make_row_invariant(model) == 3
    assert type(model.odd) is nn.modules.linear.NonDynamicallyQuantizableLinear
    assert make_row_invariant(model) == 0


def test_parameters_stay_the_same_objects_and_tied_weights_tied() -> None:
    model = Tied()
    before = dict(model.named_parameters(remove_duplicate=False))
    make_row_invariant(model)
    after = dict(model.named_parameters(remove_duplicate=False))
    assert list(after) == list(before)
    assert all(after[name] is before[name] for name in before)
    assert model.head.weight is model.embed.weight


def test_a_turned_model_computes_what_it_did() -> None:
    model = Tied()
    token_ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    expected = model(token_ids)
    make_row_invariant(model)
    torch.testing.assert_close(model(token_ids), expected)


@pytest.mark.parametrize("shape", [(24,), (1, 24), (5, 24), (1, 5, 24), (2, 3, 4, 24), (0, 24), (1, 0, 24)])
@pytest.mark.parametrize("bias", [True, False])
def test_leading_dimensions_are_kept(shape: tuple[int, ...], bias: bool) -> None:
    layer = nn.Linear(24, 10, bias=bias)
    x = torch.randn(shape)
    expected = layer(x)
    make_row_invariant(layer)
    assert type(layer) is RowInvariantLinear
    torch.testing.assert_close(layer(x), expected)


def test_a_row_has_the_same_bits_alone_and_in_any_batch() -> None:
    layer = nn.Linear(100, 33)
    make_row_invariant(layer)
    x = torch.randn(1, 40, 100)
    together = layer(x)
    for row in range(40):
        assert torch.equal(layer(x[:, row : row + 1]), together[:, row : row + 1])
    assert torch.equal(layer(x.transpose(1, 2).contiguous().transpose(1, 2)), together)  # strided rows


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_types_are_computed_by_torch(dtype: torch.dtype) -> None:
    layer = nn.Linear(24, 10).to(dtype)
    x = torch.randn(5, 24, dtype=dtype)
    expected = layer(x)
    make_row_invariant(layer)
    assert torch.equal(layer(x), expected)


def test_a_type_mixture_is_refused_as_by_torch() -> None:
    layer = nn.Linear(24, 10).to(torch.bfloat16)
    make_row_invariant(layer)
    with pytest.raises(RuntimeError, match="dtype"):
        layer(torch.randn(5, 24))


def test_hooks_still_run() -> None:
    layer = nn.Linear(4, 4)
    seen: list[torch.Size] = []
    layer.register_forward_hook(lambda _module, _args, output: seen.append(output.shape))
    make_row_invariant(layer)
    layer(torch.ones(3, 4))
    assert seen == [torch.Size([3, 4])]


def test_inference_mode_and_gradients_of_weights_do_not_matter() -> None:
    layer = nn.Linear(8, 8)
    make_row_invariant(layer)
    x = torch.randn(3, 8)
    with torch.inference_mode():
        inside = layer(x)
    assert torch.equal(layer(x), inside)
    assert not layer(x).requires_grad

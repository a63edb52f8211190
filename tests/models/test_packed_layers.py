"""Packed layers: which are, what they share, what they compute, and that their rows do not know each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import embedding
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm, Gemma3TextScaledWordEmbedding
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from outrider.kernels.cpu.weights import WeightFormat
from outrider.models import packed_layers
from outrider.models.packed_layers import PackedEmbedding, PackedLinear, PackedRMSNorm, pack_layers

FORMATS: list[WeightFormat] = ["float32", "bfloat16", "int8"]


class Tied(nn.Module):
    """An embedding and a head with one weight, an embedding of its own, and a layer of a class of its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(11, 7)
        self.other = nn.Embedding(11, 7)
        self.inner = nn.Sequential(nn.Linear(7, 7), nn.Linear(7, 7, bias=False))
        self.odd = nn.modules.linear.NonDynamicallyQuantizableLinear(7, 7)
        self.head = nn.Linear(7, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.odd(self.inner(self.embed(token_ids) + self.other(token_ids))))


def test_linear_layers_and_tied_embeddings_are_packed_and_nothing_else() -> None:
    model = Tied()
    pack_layers(model, "float32")
    packed = {name for name, module in model.named_modules() if hasattr(module, "packed")}
    assert packed == {"embed", "inner.0", "inner.1", "head"}
    assert type(model.odd) is nn.modules.linear.NonDynamicallyQuantizableLinear


@pytest.mark.parametrize("weights", FORMATS)
def test_names_stay_and_tied_weights_stay_tied(weights: WeightFormat) -> None:
    model = Tied()
    before = list(dict(model.named_parameters(remove_duplicate=False)))
    pack_layers(model, weights)
    assert list(dict(model.named_parameters(remove_duplicate=False))) == before
    assert model.head.weight is model.embed.weight
    assert model.head.packed is model.embed.packed


def test_packing_twice_changes_nothing() -> None:
    model = Tied()
    pack_layers(model, "int8")
    packed = model.head.packed
    pack_layers(model, "float32")
    assert model.head.packed is packed


def test_float32_and_its_own_bfloat16_compute_what_the_model_did() -> None:
    token_ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    for dtype, weights in [(torch.float32, "float32"), (torch.bfloat16, "bfloat16")]:
        model = Tied().to(dtype)
        expected = Tied().to(dtype).float()(token_ids)
        pack_layers(model, weights)  # type: ignore[arg-type]
        torch.testing.assert_close(model(token_ids), expected)


def test_int8_is_off_by_half_a_step_of_each_row_at_most() -> None:
    layer = nn.Linear(40, 9)
    exact = layer.weight.detach().clone()
    pack_layers(layer, "int8")
    assert layer.weight.dtype == torch.int8
    rows = torch.from_numpy(layer.packed.rows())  # type: ignore[union-attr]
    step = exact.abs().amax(1, keepdim=True) / 127
    assert ((rows - exact).abs() <= step / 2 * 1.0001).all()
    x = torch.randn(5, 40)
    torch.testing.assert_close(layer(x), nn.functional.linear(x, rows, layer.bias))


def test_int8_refuses_weights_that_it_cannot_hold() -> None:
    layer = nn.Linear(4, 4)
    layer.weight.data[1, 2] = float("inf")
    with pytest.raises(ValueError, match="NaN or infinity"):
        pack_layers(layer, "int8")


def test_a_weight_row_of_zeros_stays_zero_in_int8() -> None:
    layer = nn.Linear(4, 3, bias=False)
    layer.weight.data[1] = 0
    pack_layers(layer, "int8")
    assert (layer(torch.randn(2, 4))[:, 1] == 0).all()


@pytest.mark.parametrize("weights", FORMATS)
@pytest.mark.parametrize("width", [64, 100])
def test_a_row_has_the_same_bits_alone_and_in_any_batch(weights: WeightFormat, width: int) -> None:
    layer = nn.Sequential(nn.Linear(width, 33))
    pack_layers(layer, weights)
    x = torch.randn(1, 40, width)
    together = layer(x)
    for row in range(40):
        assert torch.equal(layer(x[:, row : row + 1]), together[:, row : row + 1])
    assert torch.equal(layer(x.transpose(1, 2).contiguous().transpose(1, 2)), together)  # strided rows


@pytest.mark.parametrize("shape", [(24,), (1, 24), (5, 24), (1, 5, 24), (2, 3, 4, 24), (0, 24), (1, 0, 24)])
@pytest.mark.parametrize("bias", [True, False])
def test_leading_dimensions_are_kept(shape: tuple[int, ...], bias: bool) -> None:
    layer = nn.Linear(24, 10, bias=bias)
    x = torch.randn(shape)
    expected = layer(x)
    pack_layers(layer, "float32")
    assert type(layer) is PackedLinear
    torch.testing.assert_close(layer(x), expected)


def test_activations_of_another_type_than_the_weight_are_refused_as_by_torch() -> None:
    layer = nn.Linear(24, 10)
    pack_layers(layer, "float32")
    with pytest.raises(RuntimeError, match="dtype"):
        layer(torch.randn(5, 24, dtype=torch.float16))


@pytest.mark.parametrize("fast", [True, False])
def test_bfloat16_is_packed_where_decoding_is_fast(fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_layers, "DECODES_FAST", fast)
    layer = nn.Linear(64, 10)
    numbers = layer.weight.detach().bfloat16()
    pack_layers(layer, "bfloat16")
    assert layer.weight.dtype == (torch.uint8 if fast else torch.bfloat16)
    assert (torch.from_numpy(layer.packed.rows()) == numbers).all()  # type: ignore[union-attr]
    with pytest.raises(
        TypeError if fast else RuntimeError, match="a layer of bfloat16 weights" if fast else "dtype"
    ):
        layer(torch.randn(5, 64, dtype=torch.float16))


def test_a_packed_weight_of_a_mapped_file_is_shown_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_layers, "DECODES_FAST", True)
    numbers = torch.randn(40, 640).bfloat16()
    (tmp_path / "weight").write_bytes(numbers.view(torch.uint8).numpy().tobytes())
    layer = nn.Linear(640, 40, bias=False)
    mapped = torch.from_file(str(tmp_path / "weight"), size=numbers.numel(), dtype=torch.bfloat16)
    layer.weight.data = mapped.view(40, 640)
    pack_layers(layer, "bfloat16")
    assert layer.packed.values.dtype == np.uint8  # type: ignore[union-attr]
    assert torch.equal(layer.weight, numbers)
    assert layer.weight.data_ptr() == mapped.data_ptr()


def test_layers_of_a_list_are_packed_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_layers, "DECODES_FAST", True)
    model = nn.ModuleDict(
        {"layers": nn.ModuleList([nn.Linear(64, 64) for _ in range(3)]), "head": nn.Linear(64, 64)}
    )
    model["layers"][1].weight.data[:, 1:] *= 2.0**-25  # type: ignore[index]
    numbers = [
        module.weight.detach().bfloat16() for module in model.modules() if isinstance(module, nn.Linear)
    ]
    pack_layers(model, "bfloat16")
    packed = [module.packed for module in model.modules() if isinstance(module, PackedLinear)]
    assert [weight.values.dtype for weight in packed] == [np.uint16] * 3 + [np.uint8]
    for weight, expected in zip(packed, numbers, strict=True):
        assert (torch.from_numpy(weight.rows()) == expected).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_what_is_not_packed_becomes_float32(dtype: torch.dtype) -> None:
    model = Tied().to(dtype)
    pack_layers(model, "bfloat16")
    types = {name: parameter.dtype for name, parameter in model.named_parameters()}
    assert types["odd.weight"] == types["odd.bias"] == types["inner.0.bias"] == torch.float32
    assert not types["inner.0.weight"].is_floating_point or types["inner.0.weight"] == torch.bfloat16
    assert model(torch.tensor([[1, 2]])).dtype == torch.float32


@pytest.mark.parametrize("weights", FORMATS)
@pytest.mark.parametrize("tied", [True, False])
def test_a_scaled_embedding_keeps_its_scale_unrounded(weights: WeightFormat, tied: bool) -> None:
    scale = 40**0.5
    model: Any = nn.ModuleDict(
        {"embed": Gemma3TextScaledWordEmbedding(11, 40, 0, embed_scale=scale), "head": nn.Linear(40, 11)}
    ).to(torch.bfloat16)
    if tied:
        model["head"].weight = model["embed"].weight
    pack_layers(model, weights)
    layer: Any = model["embed"]
    ids = torch.tensor([[3, 4, 0]])
    assert isinstance(layer, PackedEmbedding)
    assert isinstance(layer, Gemma3TextScaledWordEmbedding)
    rows = torch.from_numpy(layer.packed.rows())
    torch.testing.assert_close(layer(ids), embedding(ids, rows) * scale, rtol=1e-6, atol=0)


@pytest.mark.parametrize("weights", FORMATS)
def test_an_embedding_of_its_own_stays_exact(weights: WeightFormat) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        model = Tied().to(dtype)
        exact = model.other.weight.detach().float()
        pack_layers(model, weights)
        assert torch.equal(model.other(torch.arange(11)), exact)


def test_buffers_become_float32_too() -> None:
    model = nn.BatchNorm1d(4).to(torch.bfloat16)
    pack_layers(model, "bfloat16")
    assert {name: buffer.dtype for name, buffer in model.named_buffers()} == {
        "running_mean": torch.float32,
        "running_var": torch.float32,
        "num_batches_tracked": torch.int64,
    }


def test_a_layer_of_int8_weights_never_multiplies_them_without_their_scales() -> None:
    layer = nn.Linear(24, 10, bias=False)
    pack_layers(layer, "int8")
    with pytest.raises(TypeError, match="activations are torch.int8; .* takes torch.float32"):
        layer(torch.ones(5, 24).to(layer.weight.dtype))


@pytest.mark.parametrize("kind", [LlamaRMSNorm, Gemma3RMSNorm])
def test_norms_are_packed_whatever_they_scale_with(kind: type[nn.Module]) -> None:
    norm = kind(40, eps=1e-5)  # type: ignore[call-arg]
    norm.weight.data = torch.randn(40)
    x = torch.randn(2, 3, 40)
    expected = norm(x)
    pack_layers(norm, "float32")
    assert type(norm) is PackedRMSNorm
    torch.testing.assert_close(norm(x), expected)


def test_a_norm_that_computes_something_else_stays() -> None:
    class CenteredRMSNorm(LlamaRMSNorm):
        def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
            return super().forward(hidden_states - hidden_states.mean(-1, keepdim=True))

    norm = CenteredRMSNorm(8)
    pack_layers(norm, "float32")
    assert type(norm) is CenteredRMSNorm


def test_hooks_still_run() -> None:
    layer = nn.Linear(4, 4)
    seen: list[torch.Size] = []
    layer.register_forward_hook(lambda _module, _args, output: seen.append(output.shape))
    pack_layers(layer, "float32")
    layer(torch.ones(3, 4))
    assert seen == [torch.Size([3, 4])]


def test_inference_mode_and_gradients_of_weights_do_not_matter() -> None:
    layer = nn.Linear(8, 8)
    pack_layers(layer, "float32")
    x = torch.randn(3, 8)
    with torch.inference_mode():
        inside = layer(x)
    assert torch.equal(layer(x), inside)
    assert not layer(x).requires_grad

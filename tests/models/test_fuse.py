"""Fast twins of decoder layers: which layers get one, that it computes the same, and that its rows are alone."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from outrider.kernels.cpu import packed_bfloat16
from outrider.kernels.cpu.product import Matrix
from outrider.kernels.cpu.weights import WeightFormat
from outrider.models import packed_layers
from outrider.models.attention_interface import ATTENTION_IMPLEMENTATION, Bindings
from outrider.models.discovery import discover_attention
from outrider.models.fast_decoder_layer import FastDecoderLayer
from outrider.models.fuse import fuse_layers
from outrider.models.packed_layers import PackedLinear, pack_layers

LLAMA_SHAPED = ["llama", "mistral", "qwen2", "qwen3", "smollm3"]
OTHERS = [
    "mixtral", "gemma2", "gemma3_text", "gpt_oss", "phi3", "gpt2", "olmo2", "starcoder2", "granite", "opt",
    "deepseek_v3",
]  # fmt: skip
FORMATS: list[WeightFormat] = ["float32", "bfloat16", "int8"]


def test_every_architecture_of_the_kit_is_in_a_list(kit: Any) -> None:
    assert sorted(LLAMA_SHAPED + OTHERS) == sorted(kit.ARCHITECTURES)


class Attention:
    """Attention of one layer, row by row: the bits of a row depend on the rows before it only."""

    def __init__(self, kit: Any, shape: Any, positions: torch.Tensor) -> None:
        self.causal_attention, self.layer = kit.causal_attention, SimpleNamespace(attention=shape)
        self.order = positions.argsort()

    def attend(self, query: Any, key: Any, value: Any, mask: Any, keywords: Any) -> torch.Tensor:
        rows = [tensor[self.order] for tensor in (query, key, value)]
        return self.causal_attention(*rows, self.layer)[self.order.argsort()]


class Model:
    """A tiny model of random weights, packed; biases and norms are random too. `scatter` spreads magnitudes."""

    def __init__(
        self, kit: Any, name: str, weights: WeightFormat = "float32", *, scatter: int = 0, **changes: Any
    ) -> None:
        self.kit = kit
        self.module = kit.build(name, {**kit.ARCHITECTURES.get(name, kit.COMMON), **changes})
        generator = torch.Generator().manual_seed(1)
        for parameter in self.module.parameters():
            if parameter.dim() == 1:
                parameter.data = torch.randn(parameter.shape, generator=generator) * 0.3 + 0.8
            elif scatter:
                parameter.data *= 2.0 ** -torch.randint(scatter, parameter.shape, generator=generator)
        if weights == "bfloat16":
            self.module = self.module.to(torch.bfloat16)
        pack_layers(self.module, weights)
        shapes = discover_attention(self.module, {}, {"use_cache": False}, torch.device("cpu"))
        self.attention = {self.module.get_submodule(path): shape for path, shape in shapes.items()}

    def fuse(self) -> int:
        return fuse_layers(self.module, self.attention, {"use_cache": False})

    def logits(self, token_ids: Sequence[int], positions: Sequence[int] | None = None) -> torch.Tensor:
        places = torch.tensor(range(len(token_ids)) if positions is None else positions)
        bindings = [(layer, Attention(self.kit, shape, places)) for layer, shape in self.attention.items()]
        with torch.no_grad(), Bindings(bindings):
            return self.module(
                input_ids=torch.tensor([token_ids]), position_ids=places[None], use_cache=False
            ).logits[0]


TOKENS = [5, 9, 60, 3, 3, 17, 40, 2, 33, 21, 8]


@pytest.mark.parametrize("weights", FORMATS)
@pytest.mark.parametrize("name", LLAMA_SHAPED)
def test_a_model_of_the_llama_shape_computes_what_it_did(kit: Any, name: str, weights: WeightFormat) -> None:
    model = Model(kit, name, weights)
    before = model.logits(TOKENS)
    assert model.fuse() == 2
    assert sum(isinstance(layer, FastDecoderLayer) for layer in model.module.modules()) == 2
    torch.testing.assert_close(model.logits(TOKENS), before, rtol=1e-4, atol=1e-4)


def test_exceptions_of_packed_weights_are_taken_along(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_layers, "DECODES_FAST", True)
    monkeypatch.setattr(packed_bfloat16, "_MOST_EXCEPTIONS", 1.0)
    model = Model(kit, "llama", "bfloat16", scatter=20)
    weights = [layer.packed for layer in model.module.modules() if isinstance(layer, PackedLinear)]
    before = model.logits(TOKENS)
    for weight in weights:
        assert len(weight.exceptions) > 40
        weight.exceptions["delta"] *= np.float32(2.0**18)  # large enough to be seen
    with_large = model.logits(TOKENS)
    assert not torch.allclose(with_large, before, rtol=1e-2, atol=1e-2)
    assert model.fuse() == 2
    torch.testing.assert_close(model.logits(TOKENS), with_large, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_size": 40, "intermediate_size": 52, "head_dim": 6},  # no multiple of a vector
        {"num_key_value_heads": 4},
        {"num_key_value_heads": 1},
        {"attention_bias": True, "mlp_bias": True},
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0}},
    ],
)
def test_sizes_biases_and_rotary_embeddings_of_all_kinds(kit: Any, changes: dict[str, Any]) -> None:
    model = Model(kit, "llama", **changes)
    before = model.logits(TOKENS)
    assert model.fuse() == 2
    torch.testing.assert_close(model.logits(TOKENS), before, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", OTHERS)
def test_other_models_compute_what_they_did(kit: Any, name: str) -> None:
    model = Model(kit, name)
    before = model.logits(TOKENS)
    model.fuse()
    torch.testing.assert_close(model.logits(TOKENS), before, rtol=1e-4, atol=1e-4)


def test_a_layer_that_does_something_from_a_position_on_stays(kit: Any) -> None:
    """Ministral 3 scales queries far into the text; near its beginning it computes what a llama does."""
    rope = {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 1e4,
        "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.5,
    }  # fmt: skip
    for beta, num_fused in ((0.5, 0), (0.0, 2)):
        model = Model(kit, "ministral3", rope_parameters={**rope, "llama_4_scaling_beta": beta})
        far = range(70, 70 + len(TOKENS))
        before = model.logits(TOKENS, far)
        assert model.fuse() == num_fused
        torch.testing.assert_close(model.logits(TOKENS, far), before, rtol=1e-4, atol=1e-4)


def test_a_layer_of_the_right_names_that_computes_something_else_stays(kit: Any) -> None:
    model = Model(kit, "llama", hidden_act="gelu")
    before = model.logits(TOKENS)
    assert model.fuse() == 0
    assert torch.equal(model.logits(TOKENS), before)


@pytest.mark.parametrize("weights", FORMATS)
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_a_row_has_the_same_bits_in_any_order(kit: Any, name: str, weights: WeightFormat) -> None:
    model = Model(kit, name, weights)
    model.fuse()
    together = model.logits(TOKENS)
    order = [7, 2, 0, 10, 1, 9, 4, 3, 8, 6, 5]
    shuffled = model.logits([TOKENS[i] for i in order], order)
    assert torch.equal(shuffled, together[order])
    for length in range(1, len(TOKENS)):
        assert torch.equal(model.logits(TOKENS[:length]), together[:length])


def test_the_layers_inside_go_on_to_work_and_share_their_weights_with_the_fast_layer(kit: Any) -> None:
    model = Model(kit, "llama")
    layer: Any = model.module.get_submodule("model.layers.0")
    x = torch.randn(3, kit.COMMON["hidden_size"])
    before = [layer.self_attn.k_proj(x), layer.mlp.up_proj(x)]
    model.fuse()
    after = [layer.self_attn.k_proj(x), layer.mlp.up_proj(x)]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    used = {one.values.ctypes.data for one in layer.shape.kept if isinstance(one, Matrix)}
    assert used == {module.weight.data_ptr() for module in layer.modules() if isinstance(module, nn.Linear)}


def test_hooks_see_what_enters_and_leaves_a_fast_layer(kit: Any) -> None:
    model = Model(kit, "llama")
    model.fuse()
    seen: list[torch.Size] = []
    layer: nn.Module = model.module.get_submodule("model.layers.1")
    layer.register_forward_pre_hook(lambda _m, args, kwargs: seen.append(args[0].shape), with_kwargs=True)
    layer.register_forward_hook(lambda _m, _args, output: seen.append(output.shape))
    model.logits(TOKENS)
    assert seen == [torch.Size([1, len(TOKENS), kit.COMMON["hidden_size"]])] * 2


def test_fusing_twice_changes_nothing(kit: Any) -> None:
    model = Model(kit, "llama")
    assert model.fuse() == 2
    assert model.fuse() == 0
    assert model.module.config._attn_implementation == ATTENTION_IMPLEMENTATION
    assert isinstance(model.module, AutoModelForCausalLM._model_mapping[type(model.module.config)])

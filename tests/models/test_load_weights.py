"""Which format weights are kept in, and that the logits are those of transformers with the same numbers in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from outrider.api import ConfigError, ModelError
from outrider.config import ModelConfig
from outrider.models.attention_interface import Bindings
from outrider.models.discovery import discover_attention
from outrider.models.load import LoadedModel, load_model
from outrider.models.packed_layers import PackedLinear

TOKENS = [5, 9, 60, 3, 3, 17, 40, 2, 33, 21, 8]
FORMATS = ["float32", "bfloat16", "int8"]
ARCHITECTURES = [
    "llama", "mistral", "qwen2", "qwen3", "smollm3", "mixtral", "gemma2", "gemma3_text", "gpt_oss", "phi3", "gpt2",
    "olmo2", "starcoder2", "granite", "opt", "deepseek_v3",
]  # fmt: skip


def load(folder: Path, **settings: Any) -> LoadedModel:
    return load_model(ModelConfig(model=str(folder), **settings))


class Checkpoints:
    """Tiny random checkpoints of any architecture and type; biases, norms and buffers that are saved are random too."""

    def __init__(self, kit: Any, folder: Path) -> None:
        self.kit, self.folder = kit, folder

    def write(self, name: str = "llama", dtype: torch.dtype = torch.bfloat16, **changes: Any) -> Path:
        model = self.kit.build(name, {**self.kit.ARCHITECTURES[name], **changes})
        generator = torch.Generator().manual_seed(1)
        saved = model.state_dict()
        for key, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if tensor.dim() == 1 and key in saved:
                tensor.data = torch.randn(tensor.shape, generator=generator) * 0.3 + 0.8
        model.to(dtype).save_pretrained(self.folder)
        return self.folder


@pytest.fixture
def checkpoints(kit: Any, tmp_path: Path) -> Checkpoints:
    return Checkpoints(kit, tmp_path / "checkpoint")


class Attention:
    def __init__(self, kit: Any, shape: Any) -> None:
        self.kit, self.attention = kit, shape

    def attend(self, query: Any, key: Any, value: Any, mask: Any, keywords: Any) -> torch.Tensor:
        assert query.dtype == key.dtype == value.dtype == torch.float32
        return self.kit.causal_attention(query, key, value, self)


def logits(kit: Any, loaded: LoadedModel) -> torch.Tensor:
    """Those of a loaded model that is not routed."""
    model, positions = loaded.model, torch.arange(len(TOKENS))[None]
    shapes = discover_attention(model, {}, {"use_cache": False}, torch.device("cpu"))
    bindings = [(model.get_submodule(path), Attention(kit, shape)) for path, shape in shapes.items()]
    with torch.no_grad(), Bindings(bindings):
        return model(input_ids=torch.tensor([TOKENS]), position_ids=positions, use_cache=False).logits[0]


def reference(loaded: LoadedModel, folder: Path, *, rounded: bool) -> torch.Tensor:
    """Logits of transformers in float32; `rounded`: with the numbers that our packed weights stand for."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    for path, module in loaded.model.named_modules():
        if rounded and isinstance(module, PackedLinear):
            model.get_submodule(path).weight.data = torch.from_numpy(module.packed.rows())
    if rounded:
        model.tie_weights()
    with torch.no_grad():
        return model(torch.tensor([TOKENS])).logits[0]


def assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Both add the same numbers, in another order, through a few layers."""
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, expected, rtol=0, atol=5e-6 * float(expected.abs().max()))


def test_every_architecture_of_the_kit_is_in_the_list(kit: Any) -> None:
    assert sorted(ARCHITECTURES) == sorted(kit.ARCHITECTURES)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_bfloat16_checkpoint_is_computed_in_float32_with_its_own_numbers(
    kit: Any, checkpoints: Checkpoints, name: str
) -> None:
    folder = checkpoints.write(name)
    loaded = load(folder)
    assert (loaded.weights, loaded.dtype) == ("bfloat16", torch.float32)
    assert_close(logits(kit, loaded), reference(loaded, folder, rounded=False))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_other_checkpoints_are_kept_in_float32(
    kit: Any, checkpoints: Checkpoints, dtype: torch.dtype
) -> None:
    folder = checkpoints.write("qwen3", dtype)
    loaded = load(folder)
    assert (loaded.weights, loaded.dtype) == ("float32", torch.float32)
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.float32}
    assert_close(logits(kit, loaded), reference(loaded, folder, rounded=False))


@pytest.mark.parametrize("weights", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_format_that_is_asked_for_rounds_linear_layers_and_nothing_else(
    kit: Any, checkpoints: Checkpoints, dtype: torch.dtype, weights: str
) -> None:
    folder = checkpoints.write("qwen2", dtype)  # biases, norms, and an embedding that the head does not share
    loaded = load(folder, weights=weights)
    packed = [module.packed for module in loaded.model.modules() if isinstance(module, PackedLinear)]
    assert (loaded.weights, {weight.format for weight in packed}) == (weights, {weights})
    assert_close(logits(kit, loaded), reference(loaded, folder, rounded=True))


@pytest.mark.parametrize("name", ["gemma2", "gemma3_text", "mixtral", "gpt2", "deepseek_v3"])
def test_int8_is_right_for_models_with_parts_of_their_own(
    kit: Any, checkpoints: Checkpoints, name: str
) -> None:
    folder = checkpoints.write(name)
    loaded = load(folder, weights="int8")
    assert_close(logits(kit, loaded), reference(loaded, folder, rounded=True))


@pytest.mark.parametrize("weights", FORMATS)
@pytest.mark.parametrize("tied", [True, False])
def test_the_head_and_the_embedding_share_memory_if_the_checkpoint_says_so(
    kit: Any, checkpoints: Checkpoints, tied: bool, weights: str
) -> None:
    folder = checkpoints.write("llama", tie_word_embeddings=tied)
    loaded = load(folder, weights=weights)
    head: Any = loaded.model.get_output_embeddings()  # type: ignore[operator]
    embedding: Any = loaded.model.get_input_embeddings()  # type: ignore[operator]
    assert (head.weight.data_ptr() == embedding.weight.data_ptr()) == tied
    assert head.weight.dtype == {"bfloat16": torch.bfloat16, "int8": torch.int8}.get(weights, torch.float32)
    assert_close(logits(kit, loaded), reference(loaded, folder, rounded=True))


@pytest.mark.parametrize(
    "settings",
    [{"dtype": "bfloat16"}, {"dtype": "float16"}, {"device": "meta"}, {"device": "meta", "dtype": "float32"}],
)
@pytest.mark.parametrize("weights", FORMATS)
def test_weights_without_float32_activations_on_a_cpu_are_refused(
    checkpoints: Checkpoints, weights: str, settings: dict[str, str]
) -> None:
    with pytest.raises(
        ConfigError,
        match=rf"^weights='{weights}' .* drop `weights`, or set device='cpu' and dtype='float32'$",
    ):
        load(checkpoints.write(), weights=weights, **settings)


def test_without_our_kernels_a_model_is_loaded_as_before(checkpoints: Checkpoints) -> None:
    loaded = load(checkpoints.write(), dtype="bfloat16")
    assert (loaded.weights, loaded.dtype) == (None, torch.bfloat16)
    assert not any(hasattr(module, "packed") for module in loaded.model.modules())


def test_a_weight_that_int8_cannot_hold_is_named(checkpoints: Checkpoints) -> None:
    folder = checkpoints.write()
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][3, 4] = float("nan")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"model\.layers\.1\.mlp\.up_proj: .*NaN .* use other weights"):
        load(folder, weights="int8")
    load(folder, weights="bfloat16")

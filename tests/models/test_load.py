from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import torch
import transformers.dynamic_module_utils
from safetensors.torch import load_file, save_file

from outrider.api import ConfigError, ModelError
from outrider.config import ModelConfig
from outrider.models.load import LoadedModel, load_model
from outrider.testing.tiny_models import tiny_transformer


def load(model: Path | str, **settings: Any) -> LoadedModel:
    return load_model(ModelConfig(model=str(model), **settings))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_transformer(tmp_path / "tiny", eos_token_id=7, tokenizer=True)


def edit_config(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_a_folder_is_loaded_ready_for_routing(folder: Path) -> None:
    loaded = load(folder)
    assert (loaded.name, loaded.vocab_size, loaded.max_model_len) == (str(folder), 64, 512)
    assert (loaded.dtype, loaded.device) == (torch.float32, torch.device("cpu"))
    assert loaded.eos_token_ids == {7}
    assert loaded.tokenizer.decode([0, 1, 2]) == "abc"
    assert loaded.config._attn_implementation == "outrider"
    assert not loaded.config.use_cache
    assert not loaded.model.training
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())


def test_weights_are_those_of_the_file_whatever_type_it_has(folder: Path) -> None:
    weights = {name: tensor.bfloat16() for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    edit_config(folder, dtype="bfloat16")
    loaded = load(folder)
    assert loaded.dtype == torch.float32
    assert all(
        torch.equal(parameter, weights[name].float()) for name, parameter in loaded.model.named_parameters()
    )
    assert load(folder, dtype="bfloat16").dtype == torch.bfloat16


def test_a_model_without_a_tokenizer_works_on_token_ids(tmp_path: Path) -> None:
    loaded = load(tiny_transformer(tmp_path))
    assert loaded.tokenizer is None
    assert loaded.eos_token_ids == frozenset()


def test_the_tokenizer_may_come_from_elsewhere(folder: Path, tmp_path: Path) -> None:
    bare = tiny_transformer(tmp_path / "bare")
    assert load(bare, tokenizer=str(folder)).tokenizer.decode([3]) == "d"
    with pytest.raises(ModelError, match=r"tokenizer '.*bare' not found"):
        load(bare, tokenizer=str(bare))


def test_a_broken_tokenizer_is_an_error_and_not_no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match="cannot load model"):
        load(folder)


def test_every_token_that_ends_a_text_counts(folder: Path) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 5]}))
    assert load(folder).eos_token_ids == {3, 5}


def test_max_model_len_is_at_most_what_the_model_was_made_for(folder: Path) -> None:
    assert load(folder, max_model_len=100).max_model_len == 100
    with pytest.raises(ConfigError, match="max_model_len=513 is more than the 512 tokens"):
        load(folder, max_model_len=513)


def test_a_device_that_is_not_there_is_an_error(folder: Path) -> None:
    with pytest.raises(ConfigError, match="device='cuda:99' cannot be used here"):
        load(folder, device="cuda:99")


def test_a_missing_weight_is_an_error_and_never_random(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        ModelError, match=r"incomplete: 1 weights missing, first 'model.layers.1.mlp.up_proj.weight'"
    ):
        load(folder)


def to_pickle(folder: Path) -> Path:
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    return folder


def test_a_pickle_of_nothing_but_tensors_is_loaded(folder: Path) -> None:
    expected = load(folder).model.state_dict()
    actual = load(to_pickle(folder)).model.state_dict()
    assert all(torch.equal(actual[name], tensor) for name, tensor in expected.items())


class Malicious:
    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.witness),)


@pytest.mark.parametrize("zipped", [True, False])
def test_code_in_a_pickle_is_refused_and_never_runs(folder: Path, zipped: bool) -> None:
    to_pickle(folder)
    witness = folder / "it_ran"
    weights = {"model.norm.weight": Malicious(witness)}
    torch.save(weights, folder / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    with pytest.raises(
        ModelError, match=r"a pickle that cannot be loaded without running code .* safetensors"
    ):
        load(folder)
    assert not witness.exists()
    torch.load(folder / "pytorch_model.bin", weights_only=False)
    assert witness.exists(), "the pickle was harmless, so the test showed nothing"


def test_a_pickle_beside_safetensors_is_not_looked_at(folder: Path) -> None:
    torch.save({"x": Malicious(folder / "it_ran")}, folder / "pytorch_model.bin")
    load(folder)
    assert not (folder / "it_ran").exists()


def own_code(folder: Path) -> Path:
    """A checkpoint whose architecture is Python code that it brings along."""
    auto_map = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnForCausalLM"}
    edit_config(folder, model_type="brand_new", auto_map=auto_map)
    (folder / "own.py").write_text(
        "import pathlib\n"
        f"pathlib.Path({str(folder / 'it_ran')!r}).touch()\n"
        "from transformers import LlamaConfig, LlamaForCausalLM\n"
        "class OwnConfig(LlamaConfig):\n"
        "    model_type = 'brand_new'\n"
        "class OwnForCausalLM(LlamaForCausalLM):\n"
        "    config_class = OwnConfig\n"
    )
    return folder


def test_code_of_a_checkpoint_does_not_run_unless_trusted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_code(folder)
    with pytest.raises(ModelError, match=r"Python code of its own \(AutoConfig.* set trust_remote_code=True"):
        load(folder)
    assert not (folder / "it_ran").exists()
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(folder / "modules"))
    assert type(load(folder, trust_remote_code=True).model).__name__ == "OwnForCausalLM"
    assert (folder / "it_ran").exists()


def test_code_of_a_checkpoint_is_ignored_where_transformers_has_its_own(folder: Path) -> None:
    own_code(folder)
    edit_config(folder, model_type="llama")
    assert type(load(folder).model).__module__.startswith("transformers.")
    assert not (folder / "it_ran").exists()


def test_an_architecture_that_transformers_does_not_know_is_named(folder: Path) -> None:
    edit_config(folder, model_type="brand_new")
    with pytest.raises(ModelError, match="of type 'brand_new', unknown to transformers"):
        load(folder)


def test_a_model_with_an_encoder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5", "is_encoder_decoder": True}))
    with pytest.raises(ModelError, match="has an encoder"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("smolm2", "did you mean 'smollm2'?"),
        ("./nowhere", "it is no folder, no file"),
        ("/nowhere/at/all", "it is no folder, no file"),
        ("nowhere.gguf", "it is no folder, no file"),
    ],
)
def test_an_unknown_name_says_what_a_name_may_be(name: str, said: str) -> None:
    with pytest.raises(ModelError) as caught:
        load(name)
    for part in (repr(name), said, "a local folder", "hub id", "GGUF", "'smollm2'"):
        assert part in str(caught.value)


def test_a_hub_id_that_cannot_be_had_says_what_was_tried(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(
        ModelError, match=r"'nobody/nothing': it is no local folder or file, and asking the hub"
    ):
        load("nobody/nothing")


def test_a_folder_without_a_configuration_and_a_file_that_is_no_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config.json"):
        load(tmp_path)
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ModelError, match="is a file, but not a GGUF file"):
        load(tmp_path / "model.safetensors")

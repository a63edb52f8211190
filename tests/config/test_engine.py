"""One configuration, from Python, from flat names, from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outrider.api import ConfigError
from outrider.config import (
    FLAT_NAMES,
    CacheConfig,
    EngineConfig,
    ModelConfig,
    SchedulerConfig,
    SpeculativeConfig,
)

FLAT: dict[str, Any] = {
    "model": "m",
    "max_model_len": 128,
    "block_size": 8,
    "enable_prefix_caching": False,
    "max_num_seqs": 3,
    "attention_backend": ["b", "a"],
    "extensions": ["e"],
    "speculative_config": {"method": "any", "num_speculative_tokens": 2, "lookup_max": 4},
}
CONFIG = EngineConfig(
    model=ModelConfig(model="m", max_model_len=128),
    cache=CacheConfig(block_size=8, enable_prefix_caching=False),
    scheduler=SchedulerConfig(max_num_seqs=3),
    speculative=SpeculativeConfig(method="any", num_speculative_tokens=2, options={"lookup_max": 4}),
    attention_backend=("b", "a"),
    extensions=("e",),
)
TOML = """
model = "m"
max-model-len = 128
block_size = 8
enable_prefix_caching = false
max_num_seqs = 3
attention_backend = ["b", "a"]
extensions = "e"

[speculative_config]
method = "any"
num_speculative_tokens = 2
lookup_max = 4
"""
YAML = """
model: m
max-model-len: 128
block_size: 8
enable_prefix_caching: false
max_num_seqs: 3
attention_backend: [b, a]
extensions: e
speculative_config:
  method: any
  num_speculative_tokens: 2
  lookup_max: 4
"""


def refusal(**flat: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        EngineConfig.from_flat(**flat)
    return str(caught.value)


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_flat_names_are_those_of_the_sections_and_no_name_is_in_two():
    sections = [name for model in (ModelConfig, CacheConfig, SchedulerConfig) for name in model.model_fields]
    assert sorted(FLAT_NAMES) == sorted([*sections, "attention_backend", "extensions", "speculative_config"])
    assert len(set(FLAT_NAMES)) == len(FLAT_NAMES)


def test_from_flat():
    assert EngineConfig.from_flat(**FLAT) == CONFIG


def test_none_means_not_given():
    flat = {**dict.fromkeys(FLAT_NAMES), "model": "m"}
    assert EngineConfig.from_flat(**flat) == EngineConfig(model=ModelConfig(model="m"))


def test_speculative_config_may_be_a_model_already():
    speculative = SpeculativeConfig(method="any")
    assert EngineConfig.from_flat(model="m", speculative_config=speculative).speculative is speculative


@pytest.mark.parametrize("key", ["attention_backend", "extensions"])
def test_a_single_plugin_may_stand_alone(key):
    assert getattr(EngineConfig.from_flat(model="m", **{key: "a"}), key) == ("a",)
    assert getattr(EngineConfig.from_flat(model="m", **{key: dict}), key) == (dict,)
    assert getattr(EngineConfig.from_flat(model="m", **{key: []}), key) == ()


def test_no_backend_named_is_not_the_same_as_none_wanted():
    assert EngineConfig.from_flat(model="m").attention_backend is None
    assert EngineConfig.from_flat(model="m", attention_backend=[]).attention_backend == ()


def test_mistakes_of_all_sections_are_told_at_once():
    message = refusal(
        modle="m",
        block_size=0,
        max_num_seqs=0,
        speculative_config={"method": "any", "num_speculative_tokens": 0},
    )
    lines = message.splitlines()
    assert lines[0].startswith(
        "the configuration has no setting 'modle'; did you mean 'model'? it has: attention_"
    )
    assert lines[1] == "ModelConfig.model is required"
    assert [line.partition("=")[0] for line in lines[2:]] == [
        "CacheConfig.block_size",
        "SchedulerConfig.max_num_seqs",
        "SpeculativeConfig.num_speculative_tokens",
    ]


@pytest.mark.parametrize("value", ["any", 3, ["any"], {1: 2}])
def test_speculative_config_must_be_a_mapping(value):
    message = refusal(model="m", speculative_config=value)
    assert message.startswith(f"speculative_config={value!r}: expected a mapping such as")


def test_a_backend_that_is_no_reference_is_refused():
    message = refusal(model="m", attention_backend=["a", 3])
    assert message.startswith("EngineConfig.attention_backend.1: 3 does not name a plugin")


def test_chunked_prefill_off_is_checked_once_the_length_is_known():
    flat = {"model": "m", "enable_chunked_prefill": False, "max_num_batched_tokens": 64}
    EngineConfig.from_flat(**flat)
    EngineConfig.from_flat(**flat, max_model_len=64)
    assert "max_num_batched_tokens=64 is less than max_model_len=65" in refusal(**flat, max_model_len=65)


@pytest.mark.parametrize(("name", "text"), [("c.toml", TOML), ("c.yaml", YAML), ("c.yml", YAML)])
def test_from_file(tmp_path, name, text):
    assert EngineConfig.from_file(write(tmp_path, name, text)) == CONFIG
    assert EngineConfig.from_file(str(tmp_path / name)) == CONFIG


def test_overrides_win_over_the_file_and_none_does_not(tmp_path):
    path = write(tmp_path, "c.toml", TOML)
    config = EngineConfig.from_file(path, block_size=4, max_num_seqs=None)
    assert (config.cache.block_size, config.scheduler.max_num_seqs) == (4, 3)


def test_an_overriding_speculative_config_replaces_single_keys(tmp_path):
    path = write(tmp_path, "c.toml", TOML)
    config = EngineConfig.from_file(path, speculative_config={"num_speculative_tokens": 9})
    assert config.speculative == SpeculativeConfig(method="any", num_speculative_tokens=9, lookup_max=4)
    config = EngineConfig.from_file(path, speculative_config={"method": "else", "x": 1})
    assert config.speculative == SpeculativeConfig(method="else", num_speculative_tokens=2, x=1)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("c.toml", "model = ", "is not valid TOML: "),
        ("c.yaml", "model: [", "is not valid YAML: "),
        ("c.yaml", "- model", "expected `name: value` settings at the top"),
        ("c.yaml", "", "expected `name: value` settings at the top"),
        ("c.yaml", "1: 2", "expected `name: value` settings at the top"),
        ("c.json", "{}", "the name must end in .toml, .yaml or .yml"),
        ("c.toml", "model = 'm'\nblok_size = 1", "has no setting 'blok_size'; did you mean 'block_size'?"),
        ("c.toml", "model = 'm'\nspeculative_config = 'any'", "speculative_config='any': expected a mapping"),
    ],
)
def test_a_file_that_does_not_work_is_named(tmp_path, name, text, expected):
    path = write(tmp_path, name, text)
    with pytest.raises(ConfigError) as caught:
        EngineConfig.from_file(path)
    assert str(caught.value).startswith(f"config file {str(path)!r}")
    assert expected in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match="none.toml' cannot be read: "):
        EngineConfig.from_file(tmp_path / "none.toml")


def test_yaml_cannot_run_code(tmp_path):
    path = write(tmp_path, "c.yaml", "model: !!python/object/apply:os.getcwd []")
    with pytest.raises(ConfigError, match="is not valid YAML"):
        EngineConfig.from_file(path)

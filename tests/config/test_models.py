"""The configuration models: defaults, ranges, and errors that name key, value and cure."""

from __future__ import annotations

from typing import Any

import pytest

from outrider.api import ConfigError, OutriderError
from outrider.config import CacheConfig, ModelConfig, SchedulerConfig, SpeculativeConfig


def refusal(model: type[Any], /, **values: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        model(**values)
    return str(caught.value)


def test_config_errors_are_outriders_own_and_value_errors():
    assert issubclass(ConfigError, OutriderError)
    assert issubclass(ConfigError, ValueError)


def test_defaults():
    assert ModelConfig(model="m").model_dump() == {
        "model": "m",
        "tokenizer": None,
        "dtype": "auto",
        "weights": "auto",
        "device": "auto",
        "max_model_len": None,
        "trust_remote_code": False,
        "seed": 0,
    }
    assert CacheConfig().model_dump() == {
        "block_size": 16,
        "num_kv_blocks": None,
        "kv_cache_memory_gib": 1.0,
        "enable_prefix_caching": True,
    }
    assert SchedulerConfig().model_dump() == {
        "max_num_seqs": 64,
        "max_num_batched_tokens": 2048,
        "enable_chunked_prefill": True,
    }
    assert SpeculativeConfig(method="m").model_dump() == {
        "method": "m",
        "model": None,
        "num_speculative_tokens_per_batch_size": None,
        "adaptive": True,
        "num_speculative_tokens": 8,
        "verification": "coupled",
        "on_proposer_error": "skip",
        "options": {},
    }


@pytest.mark.parametrize(
    ("model", "key", "value"),
    [
        (ModelConfig, "model", ""),
        (ModelConfig, "tokenizer", ""),
        (ModelConfig, "dtype", "float64"),
        (ModelConfig, "weights", "int4"),
        (ModelConfig, "device", "the first one"),
        (ModelConfig, "max_model_len", 0),
        (ModelConfig, "seed", -1),
        (ModelConfig, "seed", 2**64),
        (CacheConfig, "block_size", 0),
        (CacheConfig, "num_kv_blocks", 0),
        (CacheConfig, "kv_cache_memory_gib", 0.0),
        (CacheConfig, "kv_cache_memory_gib", float("inf")),
        (CacheConfig, "enable_prefix_caching", "perhaps"),
        (SchedulerConfig, "max_num_seqs", 0),
        (SchedulerConfig, "max_num_batched_tokens", 1.5),
        (SpeculativeConfig, "num_speculative_tokens", 0),
        (SpeculativeConfig, "verification", "hope"),
        (SpeculativeConfig, "on_proposer_error", "ignore"),
        (SpeculativeConfig, "options", 3),
    ],
)
def test_a_wrong_value_is_refused_naming_key_and_value(model, key, value):
    needed = {ModelConfig: {"model": "m"}, SpeculativeConfig: {"method": "m"}}.get(model, {})
    message = refusal(model, **{**needed, key: value})
    assert message.startswith(f"{model.__name__}.{key}={value!r}: ")
    assert message.count("\n") == 0


@pytest.mark.parametrize(("key", "value"), [("seed", 2**64 - 1), ("device", "cuda:1"), ("dtype", "bfloat16")])
def test_the_ends_of_the_ranges_are_allowed(key, value):
    assert getattr(ModelConfig(model="m", **{key: value}), key) == value


def test_an_unknown_key_tells_the_nearest_and_all():
    assert refusal(CacheConfig, blok_size=8) == (
        "CacheConfig has no setting 'blok_size'; did you mean 'block_size'? "
        "it has: block_size, enable_prefix_caching, kv_cache_memory_gib, num_kv_blocks"
    )
    assert refusal(CacheConfig, zzz=8).startswith("CacheConfig has no setting 'zzz'; it has: block_size,")


def test_every_mistake_is_told():
    assert len(refusal(CacheConfig, block_size=0, num_kv_blocks=-1, zzz=1).splitlines()) == 3


def test_a_long_value_is_cut():
    assert len(refusal(CacheConfig, block_size="x" * 10_000)) < 300


def test_a_missing_key_is_told():
    assert refusal(ModelConfig) == "ModelConfig.model is required"


def test_configurations_cannot_be_changed():
    config = CacheConfig()
    with pytest.raises(ValueError, match="frozen"):
        config.block_size = 8


def test_a_step_has_a_row_for_every_sequence():
    assert SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=8).max_num_seqs == 8
    message = refusal(SchedulerConfig, max_num_seqs=9, max_num_batched_tokens=8)
    assert message.startswith("max_num_batched_tokens=8 is less than max_num_seqs=9")


def test_without_chunked_prefill_the_longest_prompt_must_fit_into_a_step():
    whole = SchedulerConfig(max_num_seqs=1, max_num_batched_tokens=32, enable_chunked_prefill=False)
    whole.check_max_model_len(32)
    with pytest.raises(ConfigError, match="max_num_batched_tokens=32 is less than max_model_len=33 with"):
        whole.check_max_model_len(33)
    SchedulerConfig(max_num_seqs=1, max_num_batched_tokens=32).check_max_model_len(33)

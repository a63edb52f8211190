from __future__ import annotations

import pytest
from transformers import GPT2Config, LlamaConfig, MambaConfig, Phi3Config

from outrider.api import ConfigError, ModelError
from outrider.models.context_length import longest_context

LONGROPE = Phi3Config(
    hidden_size=8,
    num_attention_heads=2,
    max_position_embeddings=128,
    original_max_position_embeddings=32,
    rope_parameters={
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0, 1.0],
        "long_factor": [2.0, 2.0],
    },
)
DYNAMIC = LlamaConfig(
    max_position_embeddings=64, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
)
YARN = LlamaConfig(
    max_position_embeddings=64,
    rope_parameters={
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 4.0,
        "original_max_position_embeddings": 16,
    },
)


def test_the_model_sets_the_limit_and_the_setting_may_lower_it() -> None:
    config = GPT2Config(n_positions=48)
    assert longest_context(config, None) == 48
    assert longest_context(config, 20) == 20
    with pytest.raises(
        ConfigError, match="max_model_len=49 is more than the 48 tokens that the model was made for"
    ):
        longest_context(config, 49)


def test_a_model_that_names_no_limit_needs_the_setting() -> None:
    assert longest_context(MambaConfig(), 100) == 100
    with pytest.raises(ModelError, match="set max_model_len"):
        longest_context(MambaConfig(), None)


@pytest.mark.parametrize(("config", "limit"), [(LONGROPE, 32), (DYNAMIC, 64)])
def test_rotary_embeddings_that_depend_on_the_batch_are_kept_where_they_do_not(
    config: LlamaConfig, limit: int
) -> None:
    assert longest_context(config, None) == limit
    with pytest.raises(ConfigError, match=f"more than the {limit} tokens that its rotary embedding|made for"):
        longest_context(config, limit + 1)


def test_other_scaled_rotary_embeddings_keep_the_whole_length() -> None:
    assert longest_context(YARN, None) == 64

"""Flags, merged with a file and with each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outrider.api import ConfigError
from outrider.entrypoints.flags import engine_config, parse_option, sampling_params, speculative_flags


def flags(**given: Any) -> dict[str, Any]:
    defaults = {"config_json": None, "method": None, "num_speculative_tokens": None, "options": ()}
    return speculative_flags(**{**defaults, **given})


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("a=4", ("a", 4)),
        ("a=4.5", ("a", 4.5)),
        ("a=true", ("a", True)),
        ("a=[1, 2]", ("a", [1, 2])),
        ("a=latest", ("a", "latest")),
        ("a=", ("a", "")),
        ("a=b=c", ("a", "b=c")),
        ("a-b=1", ("a_b", 1)),
    ],
)
def test_an_option_is_json_if_it_can_be(option: str, expected: tuple[str, Any]) -> None:
    assert parse_option(option) == expected


@pytest.mark.parametrize("option", ["a", "=4", " =4", ""])
def test_an_option_needs_a_name_and_a_value(option: str) -> None:
    with pytest.raises(ConfigError, match="expected key=value"):
        parse_option(option)


def test_nothing_given_is_nothing_configured() -> None:
    assert flags() == {}
    assert engine_config(config_file=None, speculative=flags(), model="m").speculative is None


def test_single_flags_win_over_the_json() -> None:
    merged = flags(
        config_json='{"method": "one", "num_speculative_tokens": 2, "size": 1, "other": 5}',
        method="two",
        num_speculative_tokens=3,
        options=["size=2"],
    )
    assert merged == {"method": "two", "num_speculative_tokens": 3, "size": 2, "other": 5}


@pytest.mark.parametrize("text", ["{", "[1]", "4"])
def test_the_json_must_be_an_object(text: str) -> None:
    with pytest.raises(ConfigError, match="--speculative-config"):
        flags(config_json=text)


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('model = "m"\nmax-model-len = 64\n[speculative_config]\nmethod = "one"\nsize = 1\n')
    config = engine_config(
        config_file=file, speculative=flags(num_speculative_tokens=7), model=None, max_model_len=32
    )
    assert (config.model.model, config.model.max_model_len) == ("m", 32)
    assert config.speculative is not None
    assert (config.speculative.method, config.speculative.num_speculative_tokens) == ("one", 7)
    assert config.speculative.options == {"size": 1}


def test_a_model_must_be_named_somewhere() -> None:
    with pytest.raises(ConfigError, match="--model"):
        engine_config(config_file=None, model=None)


def test_options_without_a_method_are_refused() -> None:
    with pytest.raises(ConfigError, match="neither `method` nor `model`"):
        engine_config(config_file=None, speculative=flags(num_speculative_tokens=3), model="m")


def test_a_wrong_sampling_parameter_is_one_line() -> None:
    with pytest.raises(ConfigError) as caught:
        sampling_params(max_tokens=0)
    message = str(caught.value)
    assert message.startswith("SamplingParams.max_tokens=0: ")
    assert "\n" not in message

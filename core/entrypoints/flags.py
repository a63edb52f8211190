"""Command line flags, turned into an engine's configuration and a request's sampling parameters."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ..api import ConfigError, SamplingParams
from ..config import EngineConfig
from ..config.settings import describe


def engine_config(
    *,
    config_file: Path | None,
    speculative: Mapping[str, Any] | None = None,
    **flat: Any,
) -> EngineConfig:
    """The file's settings, overridden by flags; a flag that is None was not given.

    Args:
        config_file: TOML or YAML of flat names.
        speculative: overrides single keys of the file's `speculative_config`; None or empty: no flag was given.
        flat: flat names of `EngineConfig`.

    Raises:
        ConfigError: as `EngineConfig.from_flat`, or no model is named.
    """
    settings = {**flat, "speculative_config": dict(speculative) if speculative else None}
    if config_file is not None:
        return EngineConfig.from_file(config_file, **settings)
    if flat.get("model") is None:
        raise ConfigError("no model is named; use --model (a folder, a hub id, a GGUF file or smollm2)")
    return EngineConfig.from_flat(**settings)


def speculative_flags(
    *,
    config_json: str | None,
    method: str | None,
    num_speculative_tokens: int | None,
    options: Sequence[str],
) -> dict[str, Any]:
    """Merge `--speculative-config`, `--method`, `--num-speculative-tokens` and `--option`; the later ones win.

    Raises:
        ConfigError: the JSON is not an object, or an option is not `key=value`.
    """
    merged: dict[str, Any] = {}
    if config_json is not None:
        try:
            merged = json.loads(config_json)
        except ValueError as error:
            raise ConfigError(f"--speculative-config {config_json!r} is not JSON: {error}") from error
        if not isinstance(merged, dict):
            raise ConfigError(
                f"--speculative-config {config_json!r}: expected a JSON object such as "
                '{"method": "<name>", "num_speculative_tokens": 4}'
            )
    if method is not None:
        merged["method"] = method
    if num_speculative_tokens is not None:
        merged["num_speculative_tokens"] = num_speculative_tokens
    merged.update(parse_option(option) for option in options)
    return merged


def parse_option(option: str) -> tuple[str, Any]:
    """`key=value`; the value is JSON if it can be (`4`, `true`, `[1, 2]`), else a text.

    Raises:
        ConfigError: there is no `=`, or nothing before it.
    """
    key, equals, value = option.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"option {option!r}: expected key=value")
    try:
        return key.strip().replace("-", "_"), json.loads(value)
    except ValueError:
        return key.strip().replace("-", "_"), value


def sampling_params(**values: Any) -> SamplingParams:
    """Build `SamplingParams`, with one readable line per mistake.

    Raises:
        ConfigError: a value is out of range.
    """
    try:
        return SamplingParams(**values)
    except ValidationError as error:
        raise ConfigError(describe(error, "SamplingParams", SamplingParams.model_fields)) from None

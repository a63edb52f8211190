"""Read a configuration file: TOML or YAML, by its ending."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from ..api import ConfigError


def read_settings(path: str | Path) -> dict[str, Any]:
    """The file's table of settings; dashes in top-level keys become underscores, so flag names work too.

    Raises:
        ConfigError: the file is missing, of another kind, not parseable, or not a table at the top.
    """
    path = Path(path)
    if path.suffix not in (".toml", ".yaml", ".yml"):
        raise ConfigError(f"config file {str(path)!r}: the name must end in .toml, .yaml or .yml")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"config file {str(path)!r} cannot be read: {error}") from error
    settings = _parse_toml(text, path) if path.suffix == ".toml" else _parse_yaml(text, path)
    if not isinstance(settings, dict) or not all(isinstance(key, str) for key in settings):
        raise ConfigError(
            f"config file {str(path)!r}: expected `name: value` settings at the top, such as model: smollm2"
        )
    return {key.replace("-", "_"): value for key, value in settings.items()}


def _parse_toml(text: str, path: Path) -> Any:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"config file {str(path)!r} is not valid TOML: {error}") from error


def _parse_yaml(text: str, path: Path) -> Any:
    import yaml  # only when needed: it is slow to import

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"config file {str(path)!r} is not valid YAML: {error}") from error

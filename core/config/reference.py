"""How a configuration points at a plugin."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import PlainValidator

from ..api import ConfigError


def _check(value: Any) -> str | type[Any]:
    if (isinstance(value, str) and value) or isinstance(value, type):
        return value
    raise ConfigError(
        f"{value!r} does not name a plugin: expected an installed plugin's name, 'package.module:Class', "
        "'./file.py:Class', or a class"
    )


PluginReference = Annotated[str | type[Any], PlainValidator(_check)]
"""An installed plugin's name, `package.module:Class` (or with a dot), `./file.py:Class`, or the class itself."""

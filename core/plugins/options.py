"""Fill a plugin's own `Options` model from the configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from ..api import ConfigError, PluginError
from ..api.errors import describe_exception
from ..config import SpeculativeConfig
from ..config.hints import did_you_mean, listed
from ..config.settings import describe
from .loading import FoundPlugin


def proposer_options(found: FoundPlugin, speculative: SpeculativeConfig, model: str | None) -> dict[str, Any]:
    """The values for a proposer's `Options`: its own keys, and those of the core's that it has a field for.

    Args:
        model: `speculative.model`, or None if that only served to infer the method.

    Raises:
        ConfigError: a model is given and the proposer has no option `model`.
    """
    fields = option_names(found.plugin_class)
    if model is not None and "model" not in fields:
        raise ConfigError(f"{found.subject} takes no model, but model={model!r} is given; leave it out")
    core = {"model": model, "num_speculative_tokens": speculative.num_speculative_tokens}
    return {
        **{key: value for key, value in core.items() if key in fields and value is not None},
        **speculative.options,
    }


def instantiate(found: FoundPlugin, values: Mapping[str, Any], core_keys: Iterable[str] = ()) -> Any:
    """Make the one instance of an engine: `Plugin(options)`, or `Plugin()` if it has no `Options`.

    Args:
        values: for its `Options`.
        core_keys: settings beside which `values` were written, for hints.

    Raises:
        ConfigError: an option is unknown or its value is refused.
        PluginError: the constructor raised.
    """
    options = _options(found, values, tuple(core_keys))
    try:
        return found.plugin_class() if options is None else found.plugin_class(options)
    except Exception as error:
        raise PluginError(f"{found.subject}: its constructor raised {describe_exception(error)}") from error


def option_names(plugin_class: type[Any]) -> frozenset[str]:
    """The option names that a plugin class takes."""
    model: type[BaseModel] | None = getattr(plugin_class, "Options", None)
    if model is None:
        return frozenset()
    aliases = (field.validation_alias or field.alias for field in model.model_fields.values())
    return frozenset(model.model_fields) | {alias for alias in aliases if isinstance(alias, str)}


def _options(found: FoundPlugin, values: Mapping[str, Any], core_keys: tuple[str, ...]) -> BaseModel | None:
    model: type[BaseModel] | None = getattr(found.plugin_class, "Options", None)
    names = option_names(found.plugin_class)
    extra_allowed = model is not None and model.model_config.get("extra") == "allow"
    unknown = [key for key in values if key not in names and not extra_allowed]
    if unknown:
        lines = [
            f"{found.subject} has no option {key!r}{did_you_mean(key, (*names, *core_keys)) or ';'} "
            f"its options are: {listed(names)}"
            + (f"; settings beside them: {listed(core_keys)}" if core_keys else "")
            for key in unknown
        ]
        raise ConfigError("\n".join(lines))
    if model is None:
        return None
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        raise ConfigError(f"{found.subject}: {describe(error, found.name, names)}") from error

"""Everything one engine is built from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from ..api import ConfigError
from .cache import CacheConfig
from .file import read_settings
from .model import ModelConfig
from .reference import PluginReference
from .scheduler import SchedulerConfig
from .settings import Settings, unknown_key
from .speculative import SpeculativeConfig

_SECTIONS: Mapping[str, type[Settings]] = {
    "model": ModelConfig,
    "cache": CacheConfig,
    "scheduler": SchedulerConfig,
}
_DIRECT = ("attention_backend", "extensions")
FLAT_NAMES = (
    *(key for model in _SECTIONS.values() for key in model.model_fields),
    *_DIRECT,
    "speculative_config",
)
"""What `EngineConfig.from_flat` takes."""


class EngineConfig(Settings):
    """The configuration of one engine.

    Attributes:
        speculative: None: plain decoding.
        attention_backend: backends to ask for each layer, in this order; names, paths or classes. A single one may
            stand alone. None: every installed one.
        extensions: plugins that wrap hooks, outermost last; names, paths or classes.
    """

    model: ModelConfig
    cache: CacheConfig = Field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = Field(default_factory=SchedulerConfig)
    speculative: SpeculativeConfig | None = None
    attention_backend: tuple[PluginReference, ...] | None = None
    extensions: tuple[PluginReference, ...] = ()

    @field_validator("attention_backend", "extensions", mode="before")
    @classmethod
    def _one_alone(cls, value: Any) -> Any:
        return value if value is None or isinstance(value, list | tuple) else (value,)

    @model_validator(mode="after")
    def _prompts_fit(self) -> Self:
        if self.model.max_model_len is not None:
            self.scheduler.check_max_model_len(self.model.max_model_len)
        return self

    @classmethod
    def from_flat(cls, **settings: Any) -> EngineConfig:
        """Build from vLLM-like flat names: those of the three sections, and `speculative_config`.

        A value of None means "not given". `speculative_config` is a mapping in the flat form of `SpeculativeConfig`.

        Raises:
            ConfigError: names are unknown (with the nearest known one) or values wrong; tells all of them.
        """
        given = {key: value for key, value in settings.items() if value is not None}
        mistakes = [
            unknown_key(key, "the configuration", FLAT_NAMES) for key in given if key not in FLAT_NAMES
        ]
        parts: dict[str, Any] = {key: given[key] for key in _DIRECT if key in given}
        for section, model in _SECTIONS.items():
            try:
                parts[section] = model(**{key: given[key] for key in model.model_fields if key in given})
            except ConfigError as error:
                mistakes.append(str(error))
        try:
            if "speculative_config" in given:
                parts["speculative"] = _speculative(given["speculative_config"])
        except ConfigError as error:
            mistakes.append(str(error))
        if mistakes:
            raise ConfigError("\n".join(mistakes))
        return cls(**parts)

    @classmethod
    def from_file(cls, path: str | Path, **overrides: Any) -> EngineConfig:
        """Build from a TOML or YAML file of flat names; `overrides` (flat too, None: not given) win over it.

        Keys of an overriding `speculative_config` replace single keys of the file's; see
        `SpeculativeConfig.overridden_by`.

        Raises:
            ConfigError: the file cannot be read, or as `from_flat`.
        """
        settings = read_settings(path)
        given = {key: value for key, value in overrides.items() if value is not None}
        base, change = settings.get("speculative_config"), given.get("speculative_config")
        if isinstance(base, Mapping) and isinstance(change, Mapping):
            given["speculative_config"] = _speculative(base).overridden_by(change)
        try:
            return cls.from_flat(**{**settings, **given})
        except ConfigError as error:
            raise ConfigError(f"config file {str(path)!r}: {error}") from error


def _speculative(value: Any) -> SpeculativeConfig:
    if isinstance(value, SpeculativeConfig):
        return value
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ConfigError(
            f"speculative_config={value!r}: expected a mapping such as "
            '{"method": "<name>", "num_speculative_tokens": 4}'
        )
    return SpeculativeConfig(**{key: item for key, item in value.items() if item is not None})

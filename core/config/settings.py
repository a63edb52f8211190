"""What every part of the configuration has in common: immutable, no unknown keys, errors that name the cure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from ..api import ConfigError
from .hints import did_you_mean, listed

_MOST_SHOWN = 80


class Settings(BaseModel):
    """Base of the configuration models.

    Raises:
        ConfigError: a key is unknown or a value is out of range; names the key, the value and what would be right.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(describe(error, type(self).__name__, type(self).model_fields)) from None


def describe(error: ValidationError, owner: str, known: Iterable[str]) -> str:
    """One line per mistake: `owner.key=value: what would be right`.

    Args:
        owner: prefix that tells the user where the key belongs.
        known: keys that `owner` takes, for hints at an unknown one.
    """
    return "\n".join(_line(details, owner, tuple(known)) for details in error.errors(include_url=False))


def _line(details: Any, owner: str, known: tuple[str, ...]) -> str:
    location = [str(part) for part in details["loc"]]
    if details["type"] == "extra_forbidden" and len(location) == 1:
        return unknown_key(location[0], owner, known)
    cause = details.get("ctx", {}).get("error")
    message = str(cause) if cause is not None else details["msg"]
    name = ".".join([owner, *location])
    if isinstance(cause, ConfigError):
        return message if not location else f"{name}: {message}"
    if details["type"] == "missing":
        return f"{name} is required"
    shown = repr(details["input"])
    shown = shown if len(shown) <= _MOST_SHOWN else shown[:_MOST_SHOWN] + "..."
    return f"{name}={shown}: {message[:1].lower()}{message[1:]}"


def unknown_key(key: str, owner: str, known: Iterable[str]) -> str:
    """The sentence for a key that `owner` does not have."""
    names = tuple(known)
    return f"{owner} has no setting {key!r}{did_you_mean(key, names) or ';'} it has: {listed(names)}"

"""Errors that Outrider raises on purpose. Each message names the thing, the value and the cure."""

from __future__ import annotations


class OutriderError(Exception):
    """Base class of every error that Outrider raises on purpose."""


class ConfigError(OutriderError, ValueError):
    """A setting is unknown, out of range, or contradicts another setting."""


class ModelError(OutriderError):
    """A target or drafter model cannot be found, trusted or loaded."""


class RequestError(OutriderError, ValueError):
    """One request is invalid; it is refused at admission and every other request goes on."""


class PluginError(OutriderError):
    """A plugin cannot be found, loaded, or combined with this model and configuration."""


class ProposerError(PluginError):
    """A proposer returned something that breaks the contract of `propose`, or raised.

    Attributes:
        plugin: name of the proposer, as selected by the configuration.
        distribution: name and version of the distribution that ships it.
    """

    def __init__(self, message: str, *, plugin: str, distribution: str) -> None:
        super().__init__(f"proposer {plugin!r} ({distribution}): {message}")
        self.plugin = plugin
        self.distribution = distribution


def describe_exception(error: BaseException) -> str:
    """`Type: text` of an exception that a plugin raised; its own `__str__` may raise, too."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return f"{type(error).__name__} (its text cannot be read)"

"""A plugin of one engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .discovery import Kind
from .validation import subject


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoadedPlugin:
    """A plugin of one engine.

    Attributes:
        name: as a configuration names it; the class's name if it was given as a path or a class.
        distribution: name and version of the distribution that ships it, or the file or module that it came from.
        plugin: the instance.
    """

    kind: Kind
    name: str
    distribution: str
    plugin: Any

    @property
    def subject(self) -> str:
        """How messages call it."""
        return subject(self.kind, self.name, self.distribution)

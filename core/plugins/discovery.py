"""Which plugins are installed, told from their distributions' metadata. Nothing is imported."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import importlib_metadata

Kind = Literal["proposer", "attention_backend", "extension"]
Status = Literal["installed", "ok", "broken", "excluded"]

GROUPS: Mapping[Kind, str] = {
    "proposer": "outrider.proposers",
    "attention_backend": "outrider.attention_backends",
    "extension": "outrider.extensions",
}
"""Entry-point group of each kind of plugin."""

ALLOWED_VARIABLE = "OUTRIDER_PLUGINS"
"""Environment variable: names (or distributions), separated by commas, of the only plugins that may load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginInfo:
    """One entry point.

    Attributes:
        name: what a configuration calls it.
        distribution, version: who ships it.
        value: `module:Class`.
        status: `installed`: not examined yet; `ok`: imported and found in order; `broken`: see `error`;
            `excluded`: `OUTRIDER_PLUGINS` does not let it load.
        error: why it is broken, in one line.
    """

    kind: Kind
    name: str
    distribution: str
    version: str
    value: str
    status: Status = "installed"
    error: str | None = None

    @property
    def shipped_by(self) -> str:
        """Name and version of the distribution, for messages."""
        return f"{self.distribution} {self.version}".rstrip()


def discover(kind: Kind | None = None) -> list[PluginInfo]:
    """List the installed plugins of one kind, or of all, by kind and name.

    Faults that show without an import (a malformed entry point, a name that two distributions offer) give the
    status `broken`; the others show in `examine`.
    """
    found = list(_entry_points())
    offers = Counter((info.kind, info.name) for info in found)
    infos = [_with_status(info, found, offers[info.kind, info.name]) for info in found]
    order = list(GROUPS)
    infos.sort(key=lambda info: (order.index(info.kind), info.name, info.distribution))
    return [info for info in infos if kind is None or info.kind == kind]


def is_allowed(info: PluginInfo) -> bool:
    """Whether `OUTRIDER_PLUGINS` lets the plugin load. Unset: all may; set to nothing: none may."""
    listed = os.environ.get(ALLOWED_VARIABLE)
    if listed is None:
        return True
    names = {name.strip() for name in listed.split(",")}
    return info.name in names or _normalized(info.distribution) in {_normalized(name) for name in names}


def _with_status(info: PluginInfo, found: list[PluginInfo], offers: int) -> PluginInfo:
    if not is_allowed(info):
        return replace(info, status="excluded")
    if not importlib_metadata.EntryPoint.pattern.match(info.value) or ":" not in info.value:
        return replace(
            info, status="broken", error=f"its entry point {info.value!r} is not of the form module:Class"
        )
    if offers > 1:
        rivals = [o for o in found if (o.kind, o.name) == (info.kind, info.name) and is_allowed(o)]
        if len(rivals) > 1:
            others = " and ".join(o.shipped_by for o in rivals if o is not info)
            return replace(info, status="broken", error=f"its name is also offered by {others}")
    return info


def _entry_points() -> Iterator[PluginInfo]:
    kinds: dict[str, Kind] = {group: kind for kind, group in GROUPS.items()}
    seen = set()
    for distribution in importlib_metadata.distributions():
        # A look at the text first: it is fast, and other people's malformed files stay their own affair.
        text = distribution.read_text("entry_points.txt") or ""
        if not any(f"[{group}]" in text for group in kinds):
            continue
        name, version = _identity(distribution)
        if _normalized(name) in seen:  # found twice on the path: the first one is what Python imports
            continue
        seen.add(_normalized(name))
        for group, key, value in _parse(text):
            if group in kinds:
                yield PluginInfo(kind=kinds[group], name=key, distribution=name, version=version, value=value)


def _parse(text: str) -> Iterator[tuple[str, str, str]]:
    group = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("[") and line.endswith("]"):
            group = line[1:-1].strip()
        elif line and not line.startswith(("#", ";")):
            key, _, value = line.partition("=")
            yield group, key.strip(), value.strip()


def _identity(distribution: Any) -> tuple[str, str]:
    try:
        return distribution.metadata["Name"], distribution.version
    except Exception:  # what is left of a half-removed distribution; its folder still tells the name
        folder = getattr(distribution, "_path", None)
        stem = getattr(folder, "stem", "unknown distribution")
        name, _, version = stem.partition("-")
        return name, version


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()

"""From what a configuration says to a plugin class."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from ..api import PluginError
from ..api.errors import describe_exception
from ..config.hints import did_you_mean, listed, nearest
from .discovery import ALLOWED_VARIABLE, GROUPS, Kind, PluginInfo, discover
from .validation import check_class, in_words, subject

_NAMES = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_DOTTED = re.compile(rf"{_NAMES}:{_NAMES}|{_NAMES}\.[^\W\d]\w*")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPlugin:
    """A plugin class, not instantiated yet.

    Attributes:
        shipped_by: name and version of its distribution, or the file or module that it came from.
    """

    kind: Kind
    name: str
    shipped_by: str
    plugin_class: type[Any]

    @property
    def subject(self) -> str:
        """How messages call it."""
        return subject(self.kind, self.name, self.shipped_by)


def find(kind: Kind, reference: str | type[Any]) -> FoundPlugin:
    """Import and check the plugin that a configuration names; nothing else is imported.

    Args:
        reference: an installed plugin's name, `./file.py:Class`, `package.module:Class` (or with a dot), or a class.

    Raises:
        PluginError: it is unknown, excluded, offered twice, cannot be imported, or is not a plugin of this kind.
    """
    if not isinstance(reference, str):
        where = f"class {reference.__module__}.{reference.__qualname__}"
        return _found(kind, reference.__name__, where, reference)
    installed = [info for info in discover(kind) if info.name == reference]
    if installed:
        return _load_installed(installed)
    if is_file_reference(reference):
        return _load_file(kind, reference)
    if is_dotted(reference):
        return _load_dotted(kind, reference)
    raise PluginError(explain_unknown(kind, reference))


def is_file_reference(reference: str) -> bool:
    """Whether it has the form `./file.py:Class`, or that without the class."""
    return reference.endswith(".py") or ".py:" in reference


def is_dotted(reference: str) -> bool:
    """Whether it has the form `package.module:Class` or `package.module.Class`."""
    return _DOTTED.fullmatch(reference) is not None


def examine(info: PluginInfo) -> PluginInfo:
    """Import the plugin and check its class; its status becomes `ok` or `broken`."""
    if info.status != "installed":
        return info
    try:
        _load_installed([info])
    except PluginError as error:
        reason = str(error).removeprefix(subject(info.kind, info.name, info.shipped_by)).lstrip(": ")
        return replace(info, status="broken", error=" ".join(reason.split()))
    return replace(info, status="ok")


def explain_unknown(kind: Kind, name: str) -> str:
    """What to tell a user who named a plugin that is not installed. Imports the installed ones to find broken ones."""
    infos = [examine(info) for info in discover(kind)]
    guess = did_you_mean(name, (info.name for info in infos))
    lines = [
        f"no {in_words(kind)} {name!r} is installed{guess}",
        f"installed: {listed(_shown(info) for info in infos if info.status != 'broken')}",
        *(f"installed but broken: {_shown(info)}: {info.error}" for info in infos if info.status == "broken"),
    ]
    for other in GROUPS:
        if other != kind and any(info.name == name for info in discover(other)):
            lines.append(f"{name!r} is installed as {in_words(other)}, which is something else")
    lines.append(
        f"if it exists, it is called outrider-{name} by convention: pip install outrider-{name}; "
        "without packaging: ./file.py:Class or package.module:Class"
    )
    return "\n  ".join(lines)


def _shown(info: PluginInfo) -> str:
    note = f", excluded by {ALLOWED_VARIABLE}" if info.status == "excluded" else ""
    return f"{info.name} ({info.shipped_by}{note})"


def _load_installed(offers: list[PluginInfo]) -> FoundPlugin:
    allowed = [info for info in offers if info.status != "excluded"]
    if not allowed:
        who = subject(offers[0].kind, offers[0].name, offers[0].shipped_by)
        raise PluginError(
            f"{who} is installed, but {ALLOWED_VARIABLE}={os.environ.get(ALLOWED_VARIABLE, '')!r} does not let it "
            f"load; add {offers[0].name!r} to it, or unset it"
        )
    info = allowed[0]
    who = subject(info.kind, info.name, info.shipped_by)
    if len(allowed) > 1:
        raise PluginError(
            f"{len(allowed)} distributions offer {in_words(info.kind)} {info.name!r}: "
            f"{' and '.join(each.shipped_by for each in allowed)}; uninstall all but one, or name the wanted "
            f"distribution in the environment variable {ALLOWED_VARIABLE}"
        )
    if info.status == "broken":
        raise PluginError(f"{who}: {info.error}")
    module_name, _, attribute = info.value.partition("[")[0].strip().partition(":")
    module = _import(module_name.strip(), who)
    return _found(info.kind, info.name, info.shipped_by, _attribute(module, attribute.strip(), who))


def _load_dotted(kind: Kind, reference: str) -> FoundPlugin:
    module_name, _, attribute = reference.rpartition(":" if ":" in reference else ".")
    name, where = attribute.rpartition(".")[2], f"module {module_name}"
    who = subject(kind, name, where)
    file_name = module_name.replace(".", "/") + ".py"
    hint = f"; for the file here write ./{file_name}:{attribute}" if Path(file_name).is_file() else ""
    return _found(kind, name, where, _attribute(_import(module_name, who, hint), attribute, who))


def _load_file(kind: Kind, reference: str) -> FoundPlugin:
    file_name, _, attribute = reference.rpartition(":") if ".py:" in reference else (reference, "", "")
    path = Path(file_name).expanduser()
    who = f"{in_words(kind)} {reference!r}"
    if not path.is_file():
        near = (
            nearest(path.name, (p.name for p in path.parent.glob("*.py"))) if path.parent.is_dir() else None
        )
        hint = f"; did you mean {str(path.with_name(near))!r}?" if near else ""
        raise PluginError(f"{who}: there is no file {str(path)!r} (looked in {str(Path.cwd())!r}){hint}")
    # The entry in sys.modules lets pydantic and pickle resolve names of the file; the path keeps two files apart.
    module_name = f"outrider_file_{re.sub(r'[^0-9a-zA-Z]', '_', str(path.resolve()))}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None  # the name ends in .py
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[module_name]
        raise PluginError(f"{who} cannot be imported: {describe_exception(error)}") from error
    if not attribute:
        raise PluginError(f"{who} does not say which class; write {file_name}:Class ({_classes(module)})")
    name, where = attribute.rpartition(".")[2], f"file {file_name}"
    return _found(kind, name, where, _attribute(module, attribute, subject(kind, name, where)))


def _found(kind: Kind, name: str, shipped_by: str, candidate: object) -> FoundPlugin:
    plugin_class = check_class(candidate, kind, subject(kind, name, shipped_by))
    return FoundPlugin(kind=kind, name=name, shipped_by=shipped_by, plugin_class=plugin_class)


def _import(module_name: str, who: str, hint: str = "") -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # whatever a stranger's module does at import
        raise PluginError(f"{who} cannot be imported: {describe_exception(error)}{hint}") from error


def _attribute(module: ModuleType, attribute: str, who: str) -> object:
    value: object = module
    for part in attribute.split("."):
        try:
            value = getattr(value, part)
        except AttributeError as error:
            raise PluginError(
                f"{who}: module {module.__name__!r} has no {attribute!r}{did_you_mean(attribute, vars(module))} "
                f"({_classes(module)})"
            ) from error
    return value


def _classes(module: ModuleType) -> str:
    return "plugin classes there: " + listed(
        name
        for name, value in vars(module).items()
        if isinstance(value, type) and hasattr(value, "outrider_api")
    )

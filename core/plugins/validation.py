"""Is this class a plugin that this core can run? Every answer that is not yes says what to change."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from types import FunctionType
from typing import Any

import pluggy
from pydantic import BaseModel

from .. import hookspecs
from ..api import PluginError
from ..config.hints import did_you_mean, listed
from .discovery import GROUPS, Kind

LIFECYCLE_HOOKS = ("request_added", "tokens_committed", "request_preempted", "request_finished")
"""Asked of every plugin of the engine, whatever its kind."""

PROPOSER_HOOKS = ("capabilities", "load_model", "dummy_run", "propose")
BACKEND_HOOKS = ("claim_layer", "build_attention_metadata", "build_for_drafting")

REQUIRED_HOOKS: Mapping[Kind, tuple[str, ...]] = {
    "proposer": ("propose",),
    "attention_backend": ("claim_layer",),
    "extension": (),
}

_OWN_HOOKS: Mapping[Kind, tuple[str, ...]] = {
    "proposer": (*PROPOSER_HOOKS, *LIFECYCLE_HOOKS),
    "attention_backend": (*BACKEND_HOOKS, *LIFECYCLE_HOOKS),
    "extension": (*PROPOSER_HOOKS, *BACKEND_HOOKS, *LIFECYCLE_HOOKS),
}


def in_words(kind: Kind) -> str:
    """The kind in words."""
    return kind.replace("_", " ")


def subject(kind: Kind, name: str, shipped_by: str) -> str:
    """How messages call a plugin, such as "attention backend 'fast' (outrider-fast 1.0)"."""
    return f"{in_words(kind)} {name!r} ({shipped_by})"


def check_class(candidate: object, kind: Kind, who: str) -> type[Any]:
    """Return the candidate if it is a plugin class of this kind.

    Args:
        who: the plugin's `subject`.

    Raises:
        PluginError: it is no class, speaks another API version, misspells a hook or an argument, forgets a decorator,
            lacks a required hook, implements another kind's hook, or its `Options` is no pydantic model.
    """
    if not isinstance(candidate, type):
        raise PluginError(
            f"{who} is not a class but {type(candidate).__name__} {candidate!r}; name the class itself"
        )
    _check_api_version(candidate, who)
    implemented = set()
    for attribute, options in hook_methods(candidate):
        _check_hook(candidate, attribute, options, kind, who)
        implemented.add(options["specname"] or attribute)
    for hook in _OWN_HOOKS["extension"]:
        if hook not in implemented and callable(getattr(candidate, hook, None)):
            raise PluginError(
                f"{who} has a method {hook!r} that is not marked, so it would never be called; decorate it with "
                "@outrider.hookimpl (also where it overrides a marked one), or rename it"
            )
    for hook in REQUIRED_HOOKS[kind]:
        if hook not in implemented:
            raise PluginError(
                f"{who} does not implement the hook {hook!r}, which every {in_words(kind)} needs"
            )
    options_model = getattr(candidate, "Options", None)
    if options_model is not None and not (
        isinstance(options_model, type) and issubclass(options_model, BaseModel)
    ):
        raise PluginError(f"{who} has Options={options_model!r}; it must be a subclass of pydantic.BaseModel")
    return candidate


def hook_methods(plugin: object) -> Iterator[tuple[str, pluggy.HookimplOpts]]:
    """The names and marker options of the methods of a plugin (a class or an instance) that are marked as hooks."""
    manager = pluggy.PluginManager(hookspecs.PROJECT_NAME)
    for attribute in dir(plugin):
        options = manager.parse_hookimpl_opts(plugin, attribute)
        if options is not None:
            yield attribute, options


def _check_api_version(candidate: type[Any], who: str) -> None:
    declared = getattr(candidate, "outrider_api", None)
    if declared is None:
        raise PluginError(
            f"{who} does not say for which plugin API it is written; add `outrider_api = {hookspecs.API_VERSION}` "
            "to the class"
        )
    if declared != hookspecs.API_VERSION or isinstance(declared, bool):
        cure = (
            "upgrade outrider"
            if isinstance(declared, int) and declared > hookspecs.API_VERSION
            else "upgrade it"
        )
        raise PluginError(
            f"{who} is written for plugin API {declared!r}, this core speaks {hookspecs.API_VERSION}; {cure}"
        )


def _check_hook(
    candidate: type[Any], attribute: str, options: pluggy.HookimplOpts, kind: Kind, who: str
) -> None:
    hook = options["specname"] or attribute
    if hook not in _OWN_HOOKS["extension"]:
        known = _OWN_HOOKS[kind]
        guess = did_you_mean(hook, known) or ";"
        raise PluginError(f"{who} implements an unknown hook {hook!r}{guess} the hooks are: {listed(known)}")
    if hook not in _OWN_HOOKS[kind]:
        owner: Kind = "proposer" if hook in PROPOSER_HOOKS else "attention_backend"
        raise PluginError(
            f"{who} implements {hook!r}, which is only asked of every {in_words(owner)}; put it in a class of its own "
            f"and offer that in the entry-point group {GROUPS[owner]!r}, or as an extension"
        )
    if options["hookwrapper"]:
        raise PluginError(f"{who} marks {hook!r} with hookwrapper=True; use @hookimpl(wrapper=True)")
    function = _function(candidate, attribute)
    if options["wrapper"] and not inspect.isgeneratorfunction(function):
        raise PluginError(f"{who} marks {hook!r} with wrapper=True, but it has no yield")
    _check_arguments(function, hook, who)


def _check_arguments(function: FunctionType, hook: str, who: str) -> None:
    spec = list(inspect.signature(getattr(hookspecs, hook)).parameters)
    for name, parameter in list(inspect.signature(function).parameters.items()):
        if name in ("self", "cls"):
            continue
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.POSITIONAL_ONLY) or (
            name in spec and parameter.default is not parameter.empty
        ):
            raise PluginError(
                f"{who}: argument {str(parameter)!r} of hook {hook!r} would never be filled; hooks take their "
                f"arguments by name, without defaults, * or **: {', '.join(spec)}"
            )
        if name not in spec and parameter.default is parameter.empty:
            raise PluginError(
                f"{who}: hook {hook!r} has no argument {name!r}{did_you_mean(name, spec) or ';'} "
                f"its arguments are: {', '.join(spec) or 'none'}"
            )


def _function(candidate: type[Any], attribute: str) -> FunctionType:
    found = inspect.getattr_static(candidate, attribute)
    function = inspect.unwrap(getattr(found, "__func__", found))
    assert isinstance(function, FunctionType)  # nothing else can carry pluggy's marker options
    return function

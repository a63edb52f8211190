"""Keep an exception of one plugin's life-cycle hook from other plugins and from the engine."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Generator
from typing import Any, Literal

import pluggy

from ..api import PluginError, ProposerError
from ..api.errors import describe_exception
from ..hookspecs import hookimpl
from .loaded import LoadedPlugin
from .validation import LIFECYCLE_HOOKS, hook_methods

logger = logging.getLogger(__name__)


class LifecycleGuard:
    """What happens when a life-cycle hook raises: counted and logged (once per plugin and hook), or raised.

    Attributes:
        num_errors: exceptions so far, by plugin name.
        on_error: called at each of them, under either policy.
    """

    def __init__(self, policy: Literal["skip", "raise"]) -> None:
        self.num_errors: Counter[str] = Counter()
        self.on_error: Callable[[], None] = lambda: None
        self._policy = policy
        self._logged: set[tuple[str, str, str]] = set()

    def adapt(self, loaded: LoadedPlugin) -> object:
        """What pluggy gets to see of a plugin: all its hooks, the life-cycle ones guarded."""
        adapter = _Adapter()
        for attribute, options in hook_methods(type(loaded.plugin)):
            function = getattr(loaded.plugin, attribute)
            hook = options["specname"] or attribute
            if hook in LIFECYCLE_HOOKS:
                function = self._guarded(loaded, hook, function, options)
            setattr(adapter, attribute, function)
        return adapter

    def _guarded(
        self, loaded: LoadedPlugin, hook: str, function: Callable[..., Any], options: pluggy.HookimplOpts
    ) -> Callable[..., Any]:
        def call(*args: Any) -> None:
            try:
                function(*args)
            except Exception as error:
                self._failed(loaded, hook, error)

        def wrap(*args: Any) -> Generator[None, Any, Any]:
            generator = function(*args)
            try:
                next(generator)
            except StopIteration:
                self._failed(loaded, hook, RuntimeError("a wrapper must yield once, it did not"))
                return (yield)
            except Exception as error:
                self._failed(loaded, hook, error)
                return (yield)
            result = yield
            try:
                generator.send(result)
                self._failed(loaded, hook, RuntimeError("a wrapper must yield once, it went on"))
            except StopIteration:
                pass
            except Exception as error:
                self._failed(loaded, hook, error)
            return result

        guarded: Any = wrap if options["wrapper"] else call
        guarded.__wrapped__ = function  # pluggy reads the argument names from here
        marked: Callable[..., Any] = hookimpl(
            wrapper=options["wrapper"],
            tryfirst=options["tryfirst"],
            trylast=options["trylast"],
            specname=options["specname"],
        )(guarded)
        return marked

    def _failed(self, loaded: LoadedPlugin, hook: str, error: Exception) -> None:
        self.num_errors[loaded.name] += 1
        self.on_error()
        message = f"{hook} raised {describe_exception(error)}"
        if self._policy == "raise":
            if loaded.kind == "proposer":
                raise ProposerError(message, plugin=loaded.name, distribution=loaded.distribution) from error
            raise PluginError(f"{loaded.subject}: {message}") from error
        key = (loaded.kind, loaded.name, hook)
        if key not in self._logged:
            self._logged.add(key)
            note = "going on; further errors of this hook are only counted"
            logger.error("%s: %s; %s", loaded.subject, message, note, exc_info=error)


class _Adapter:
    """Carries bound hook methods; compared by identity, whatever `__eq__` a plugin class defines."""

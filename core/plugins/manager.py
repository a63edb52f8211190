"""The plugins of one engine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pluggy

from .. import hookspecs
from ..api import PluginError
from ..config import EngineConfig, SpeculativeConfig
from .discovery import PluginInfo, discover
from .facades import BackendHooks, ProposerHooks
from .inference import infer_method
from .lifecycle import LifecycleGuard
from .loaded import LoadedPlugin
from .loading import FoundPlugin, find
from .options import instantiate, proposer_options

if TYPE_CHECKING:
    from ..api import SamplingParams

logger = logging.getLogger(__name__)


class PluginManager:
    """The plugins of one engine, and the hooks that are asked of all of them.

    Attributes:
        proposer: None: plain decoding.
        backends: in the order in which they are asked for a layer.
        extensions: plugins that wrap hooks.
        skipped: installed backends that could not be loaded, with the reason; only if the configuration asked for
            every installed one.
    """

    def __init__(
        self,
        *,
        proposer: LoadedPlugin | None = None,
        backends: Sequence[LoadedPlugin] = (),
        extensions: Sequence[LoadedPlugin] = (),
        skipped: Sequence[PluginInfo] = (),
        guard: LifecycleGuard | None = None,
    ) -> None:
        self._guard = guard or LifecycleGuard("skip")
        manager = pluggy.PluginManager(hookspecs.PROJECT_NAME)
        manager.add_hookspecs(hookspecs)
        adapters: dict[LoadedPlugin, object] = {}
        for loaded in (*([proposer] if proposer else []), *backends, *extensions):
            if any((loaded.kind, loaded.name) == (known.kind, known.name) for known in adapters):
                raise PluginError(f"{loaded.subject} is named twice in the configuration; keep one")
            adapters[loaded] = self._guard.adapt(loaded)
            manager.register(adapters[loaded], name=f"{loaded.kind}:{loaded.name}")
        manager.check_pending()
        self._hooks = manager.hook
        # Asked once: calling a hook that nobody implements takes as long as a small kernel, at every step of a request.
        self._hears_tokens = bool(manager.hook.tokens_committed.get_hookimpls())

        def others(kept: LoadedPlugin) -> list[object]:
            return [
                each for other, each in adapters.items() if other is not kept and other.kind != "extension"
            ]

        self.proposer = ProposerHooks(proposer, manager, others(proposer)) if proposer else None
        self.backends = tuple(BackendHooks(backend, manager, others(backend)) for backend in backends)
        self.extensions = tuple(extensions)
        self.skipped = tuple(skipped)

    @classmethod
    def load(cls, config: EngineConfig) -> PluginManager:
        """Import, check and instantiate what the configuration names, and nothing else.

        Raises:
            PluginError: a plugin is unknown, excluded, offered twice, broken, or named twice.
            ConfigError: an option of a plugin is unknown or refused, or the method cannot be inferred.
        """
        speculative = config.speculative
        backends, skipped = _load_backends(config)
        return cls(
            proposer=None if speculative is None else _load_proposer(speculative),
            backends=backends,
            extensions=[_load(find("extension", reference)) for reference in config.extensions],
            skipped=skipped,
            guard=LifecycleGuard("skip" if speculative is None else speculative.on_proposer_error),
        )

    @property
    def num_lifecycle_errors(self) -> Mapping[str, int]:
        """Exceptions that life-cycle hooks raised so far, by plugin name."""
        return self._guard.num_errors

    def tell_lifecycle_errors(self, listener: Callable[[], None]) -> None:
        """Call `listener` at each exception that a life-cycle hook raises from now on."""
        self._guard.on_error = listener

    def request_added(
        self, request_id: str, token_ids: Sequence[int], sampling_params: SamplingParams
    ) -> None:
        """Tell every plugin that a request enters the batch with these tokens."""
        # A copy: no plugin may reach the engine's own list.
        self._hooks.request_added(
            request_id=request_id, token_ids=list(token_ids), sampling_params=sampling_params
        )

    def tokens_committed(self, request_id: str, token_ids: Sequence[int]) -> None:
        """Tell every plugin that these tokens were appended for good."""
        if self._hears_tokens:
            self._hooks.tokens_committed(request_id=request_id, token_ids=list(token_ids))

    def request_preempted(self, request_id: str) -> None:
        """Tell every plugin that a request lost its place."""
        self._hooks.request_preempted(request_id=request_id)

    def request_finished(self, request_id: str) -> None:
        """Tell every plugin that a request is over."""
        self._hooks.request_finished(request_id=request_id)


def _load_proposer(speculative: SpeculativeConfig) -> LoadedPlugin:
    method, model = infer_method(speculative)
    found = find("proposer", method)
    return _load(found, proposer_options(found, speculative, model), SpeculativeConfig.model_fields)


def _load_backends(config: EngineConfig) -> tuple[list[LoadedPlugin], list[PluginInfo]]:
    if config.attention_backend is not None:
        return [_load(find("attention_backend", reference)) for reference in config.attention_backend], []
    loaded, skipped = [], []
    infos = [info for info in discover("attention_backend") if info.status != "excluded"]
    for info in infos:
        if sum(other.name == info.name for other in infos) > 1:
            find("attention_backend", info.name)  # raises: nobody but the user can choose
        try:
            loaded.append(_load(find("attention_backend", info.name)))
        except PluginError as error:
            # Nobody asked for this one by name, and another may do; a layer that nobody claims is an error later.
            logger.warning("skipping an installed plugin: %s", error)
            skipped.append(replace(info, status="broken", error=str(error)))
    return loaded, skipped


def _load(
    found: FoundPlugin, values: Mapping[str, Any] | None = None, core_keys: Iterable[str] = ()
) -> LoadedPlugin:
    return LoadedPlugin(
        kind=found.kind,
        name=found.name,
        distribution=found.shipped_by,
        plugin=instantiate(found, values or {}, core_keys),
    )

"""The hooks of one proposer or one backend as typed methods, with every extension's wrappers applied."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import pluggy

from ..api import OutriderError, PluginError, ProposerCapabilities
from ..api.errors import describe_exception
from .loaded import LoadedPlugin
from .validation import BACKEND_HOOKS, PROPOSER_HOOKS

if TYPE_CHECKING:
    import torch

    from ..api import (
        AttentionLayer,
        CommonAttentionMetadata,
        DraftTokens,
        LayerInfo,
        ProposeContext,
        SpecDecodeMetadata,
        TargetModel,
    )


class _Hooks:
    def __init__(
        self,
        loaded: LoadedPlugin,
        manager: pluggy.PluginManager,
        others: Sequence[object],
        hooks: Iterable[str],
    ) -> None:
        self._loaded = loaded
        self._calls: dict[str, Callable[..., Any]] = {
            hook: manager.subset_hook_caller(hook, others) for hook in hooks
        }

    @property
    def name(self) -> str:
        """As the configuration names it."""
        return self._loaded.name

    @property
    def distribution(self) -> str:
        """Name and version of the distribution that ships it, for messages."""
        return self._loaded.distribution

    @property
    def plugin(self) -> Any:
        """The plugin instance itself."""
        return self._loaded.plugin

    def _at_load(self, hook: str, **arguments: Any) -> Any:
        """Call a hook while the engine is built: an exception becomes an error that names the plugin."""
        try:
            return self._calls[hook](**arguments)
        except OutriderError:
            raise
        except Exception as error:
            raise PluginError(f"{self._loaded.subject}: {hook} raised {describe_exception(error)}") from error


class ProposerHooks(_Hooks):
    """The engine's proposer."""

    def __init__(self, loaded: LoadedPlugin, manager: pluggy.PluginManager, others: Sequence[object]) -> None:
        super().__init__(loaded, manager, others, PROPOSER_HOOKS)
        self._propose = self._calls["propose"]

    def capabilities(self) -> ProposerCapabilities:
        """What it declares; the defaults if it declares nothing.

        Raises:
            PluginError: it raised, or returned something else.
        """
        declared = self._at_load("capabilities")
        if declared is None:
            return ProposerCapabilities()
        if not isinstance(declared, ProposerCapabilities):
            raise PluginError(
                f"{self._loaded.subject}: capabilities returned {declared!r}; return a ProposerCapabilities"
            )
        return declared

    def load_model(self, target: TargetModel, device: torch.device) -> None:
        """Let it load weights and register draft models; raises PluginError if it raised."""
        self._at_load("load_model", target=target, device=device)

    def dummy_run(self, num_tokens: int) -> None:
        """Let it compile and allocate; raises PluginError if it raised."""
        self._at_load("dummy_run", num_tokens=num_tokens)

    def propose(self, context: ProposeContext) -> DraftTokens | None:
        """Its drafts, unchecked; whatever it raises comes through."""
        drafts: DraftTokens | None = self._propose(context=context)
        return drafts


class BackendHooks(_Hooks):
    """One of the engine's attention backends."""

    def __init__(self, loaded: LoadedPlugin, manager: pluggy.PluginManager, others: Sequence[object]) -> None:
        super().__init__(loaded, manager, others, BACKEND_HOOKS)
        self._build = self._calls["build_attention_metadata"]
        self._build_for_drafting = self._calls["build_for_drafting"]

    def claim_layer(self, layer: LayerInfo) -> AttentionLayer | None:
        """Its implementation of the layer, or None; raises PluginError if it raised."""
        implementation: AttentionLayer | None = self._at_load("claim_layer", layer=layer)
        return implementation

    def build_attention_metadata(self, common: CommonAttentionMetadata, spec: SpecDecodeMetadata) -> Any:
        """What its layers need for one target forward."""
        return self._build(common=common, spec=spec)

    def build_for_drafting(self, common: CommonAttentionMetadata, draft_index: int) -> Any:
        """What a drafter's layers need for the `draft_index`-th forward of its own."""
        return self._build_for_drafting(common=common, draft_index=draft_index)

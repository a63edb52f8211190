"""What a plugin may implement. Read this file first; the long version of each paragraph is in docs/hooks.md.

A plugin is a class. Its hooks are methods marked `@hookimpl` that take any subset of a hook's arguments, by name.
The engine makes one instance per engine, `Plugin(options)`, where `options` is an instance of the class's own pydantic
model `Plugin.Options` (if it has none, `Plugin()`). Every plugin class declares `outrider_api = 1`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    import torch

    from .api import (
        AttentionLayer,
        CommonAttentionMetadata,
        DraftTokens,
        LayerInfo,
        ProposeContext,
        ProposerCapabilities,
        SamplingParams,
        SpecDecodeMetadata,
        TargetModel,
    )

PROJECT_NAME = "outrider"
API_VERSION = 1

hookspec = pluggy.HookspecMarker(PROJECT_NAME)
hookimpl = pluggy.HookimplMarker(PROJECT_NAME)

# -------------------------------------------------------------------------------------------------
# Proposers: load
# -------------------------------------------------------------------------------------------------


@hookspec(firstresult=True)
def capabilities() -> ProposerCapabilities:  # type: ignore[empty-body]
    """Say what this proposer needs and can do. Stops at first non-None result. Stable."""


@hookspec
def load_model(target: TargetModel, device: torch.device) -> None:
    """Load weights, share the target's embedding or lm_head, register draft models. Called once. Stable."""


@hookspec
def dummy_run(num_tokens: int) -> None:
    """Compile and allocate everything that a real step of up to `num_tokens` rows will use. Stable."""


# -------------------------------------------------------------------------------------------------
# Proposers: every step
# -------------------------------------------------------------------------------------------------


@hookspec(firstresult=True)
def propose(context: ProposeContext) -> DraftTokens:  # type: ignore[empty-body]
    """Guess the next tokens of every request of the batch. Stops at first non-None result. Stable."""


# -------------------------------------------------------------------------------------------------
# Proposers: life of a request
# -------------------------------------------------------------------------------------------------


@hookspec
def request_added(request_id: str, token_ids: list[int], sampling_params: SamplingParams) -> None:
    """A request enters the running batch with these tokens: at first, and again after a preemption. Stable."""


@hookspec
def tokens_committed(request_id: str, token_ids: list[int]) -> None:
    """These tokens were appended to the request's output for good. Stable."""


@hookspec
def request_preempted(request_id: str) -> None:
    """The request lost its place and its KV blocks; it comes back through `request_added`. Stable."""


@hookspec
def request_finished(request_id: str) -> None:
    """The request is over; called exactly once for every request that was ever added. Stable."""


# -------------------------------------------------------------------------------------------------
# Attention backends
# -------------------------------------------------------------------------------------------------


@hookspec(firstresult=True)
def claim_layer(layer: LayerInfo) -> AttentionLayer | None:
    """This backend's implementation of the layer, or None to leave it. Stops at first non-None result. Stable."""


@hookspec(firstresult=True)
def build_attention_metadata(common: CommonAttentionMetadata, spec: SpecDecodeMetadata) -> Any:
    """What this backend's layers need for one target forward. Stops at first non-None result. Stable."""


@hookspec(firstresult=True)
def build_for_drafting(common: CommonAttentionMetadata, draft_index: int) -> Any:
    """The same for a forward of a drafter's own layers. Stops at first non-None result. Stable."""

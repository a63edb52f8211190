"""The types that cross the plugin boundary, and nothing else."""

from .attention import (
    NATIVE_COUNTERS,
    AttentionLayer,
    AttentionShape,
    CommonAttentionMetadata,
    LayerInfo,
    NativeAttention,
    PagedCacheSpec,
    SpecDecodeMetadata,
    StateCacheSpec,
    TensorSpec,
)
from .errors import (
    ConfigError,
    ModelError,
    OutriderError,
    PluginError,
    ProposerError,
    RequestError,
)
from .proposer import (
    NUM_DISCOVERY_TOKENS,
    DraftModel,
    DraftRequest,
    DraftRows,
    DraftTokens,
    ProposeContext,
    ProposerCapabilities,
    SampleFn,
    TargetModel,
)
from .sampling_params import SamplingParams

__all__ = [
    "NATIVE_COUNTERS",
    "NUM_DISCOVERY_TOKENS",
    "AttentionLayer",
    "AttentionShape",
    "CommonAttentionMetadata",
    "ConfigError",
    "DraftModel",
    "DraftRequest",
    "DraftRows",
    "DraftTokens",
    "LayerInfo",
    "ModelError",
    "NativeAttention",
    "OutriderError",
    "PagedCacheSpec",
    "PluginError",
    "ProposeContext",
    "ProposerCapabilities",
    "ProposerError",
    "RequestError",
    "SampleFn",
    "SamplingParams",
    "SpecDecodeMetadata",
    "StateCacheSpec",
    "TargetModel",
    "TensorSpec",
]

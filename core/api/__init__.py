"""The types that cross the plugin boundary, and nothing else."""

from .attention import (
    AttentionLayer,
    AttentionShape,
    CommonAttentionMetadata,
    LayerInfo,
    NativeCall,
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
    "NativeCall",
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

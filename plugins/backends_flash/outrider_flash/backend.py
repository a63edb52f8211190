"""The plugin: which layers it takes, and what it hands to the engine for them."""

from __future__ import annotations

import logging
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field

from outrider import hookimpl
from outrider.api import AttentionShape, CommonAttentionMetadata, LayerInfo

from .layer import CACHE_TYPES, FlashLayer, Workspace
from .metadata import FlashMetadata

logger = logging.getLogger(__name__)

MIN_HEAD_SIZE, MAX_HEAD_SIZE = 16, 256


class FlashOptions(BaseModel):
    """Options of the backend."""

    model_config = ConfigDict(extra="forbid")

    kv_cache_dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto",
        description="Type in which keys and values are kept; auto: the type of the activations.",
    )


class FlashBackend:
    """Paged attention on the CPU: prompt chunks, decodes and multi-row verification in one call."""

    outrider_api = 1
    Options = FlashOptions

    def __init__(self, options: FlashOptions) -> None:
        self._options = options
        self._workspace = Workspace()

    @hookimpl
    def claim_layer(self, layer: LayerInfo) -> FlashLayer | None:
        """Take a layer of the attention interface if every part of its form is known; compiles at the first one."""
        if layer.attention is None:
            return None
        reason = why_not(layer, layer.attention)
        if reason is not None:
            logger.debug("not claiming layer %s: %s", layer.name, reason)
            return None
        name = self._options.kv_cache_dtype
        cache_dtype = layer.dtype if name == "auto" else getattr(torch, name)
        return FlashLayer(layer.name, layer.attention, cache_dtype, self._workspace)

    @hookimpl
    def build_attention_metadata(self, common: CommonAttentionMetadata) -> FlashMetadata:
        """Metadata of one target forward."""
        return FlashMetadata.build(common)

    @hookimpl
    def build_for_drafting(self, common: CommonAttentionMetadata) -> FlashMetadata:
        """Metadata of one forward of a drafter's own layers."""
        return FlashMetadata.build(common)


def why_not(layer: LayerInfo, shape: AttentionShape) -> str | None:
    """Say why this backend cannot compute the layer, or None if it can."""
    if layer.device.type != "cpu":
        return f"its activations are on {layer.device}; this backend computes on the CPU"
    if layer.dtype not in CACHE_TYPES:
        return f"its activations are {layer.dtype}; known are {', '.join(map(str, CACHE_TYPES))}"
    for name, size in (("key", shape.key_size), ("value", shape.value_size)):
        if not MIN_HEAD_SIZE <= size <= MAX_HEAD_SIZE:
            return (
                f"{name} heads of size {size}; this backend computes sizes {MIN_HEAD_SIZE} to {MAX_HEAD_SIZE}"
            )
    if shape.num_kv_heads < 1 or shape.num_heads % shape.num_kv_heads:
        return f"{shape.num_heads} query heads cannot share {shape.num_kv_heads} key/value heads evenly"
    if shape.sliding_window is not None and shape.sliding_window < 1:
        return f"a sliding window of {shape.sliding_window} positions"
    if shape.softcap is not None and not shape.softcap > 0:
        return f"a softcap of {shape.softcap}"
    if shape.sinks is not None and shape.sinks.numel() != shape.num_heads:
        return f"{shape.sinks.numel()} sinks for {shape.num_heads} query heads"
    unknown = sorted(name for name, value in shape.unknown.items() if value is not None)
    if unknown:
        return f"it calls attention with {', '.join(unknown)}, which this backend does not know"
    return None

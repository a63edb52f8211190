"""A backend that is obviously right for whole sequences, and tiny random models of many architectures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedModel

from outrider.api import LayerInfo, PagedCacheSpec, TensorSpec

VOCAB_SIZE = 64

COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
WINDOWED: dict[str, Any] = {
    **COMMON,
    "sliding_window": 5,
    "layer_types": ["sliding_attention", "full_attention"],
}
EXPERTS: dict[str, Any] = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2}

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": COMMON,
    "qwen2": COMMON,
    "qwen3": COMMON,
    "mistral": {**COMMON, "sliding_window": 5},
    "mixtral": {**COMMON, **EXPERTS},
    "gemma2": {**WINDOWED, "query_pre_attn_scalar": 8},
    "gemma3_text": WINDOWED,
    "gpt_oss": {**WINDOWED, **EXPERTS},
    "phi3": {**COMMON, "sliding_window": 5},
    "gpt2": {"vocab_size": VOCAB_SIZE, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128},
    "olmo2": COMMON,
    "starcoder2": COMMON,
    "smollm3": COMMON,
    "granite": {**COMMON, "attention_multiplier": 0.3, "logits_scaling": 3.0},
    "opt": {**COMMON, "ffn_dim": 48, "word_embed_proj_dim": 32},
    "deepseek_v3": {
        **COMMON,
        "num_key_value_heads": 4,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16,
        "v_head_dim": 12,
        "head_dim": 8,
        "n_routed_experts": 4,
        "n_group": 1,
        "topk_group": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "first_k_dense_replace": 1,
    },
}


def build(model_type: str, shape: dict[str, Any] | None = None, seed: int = 0) -> PreTrainedModel:
    """A random model whose attention is ours, its logits spread over several units."""
    config = transformers.CONFIG_MAPPING[model_type](
        **(ARCHITECTURES[model_type] if shape is None else shape)
    )
    model = AutoModelForCausalLM.from_config(config, attn_implementation="outrider")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2 or "sinks" in name:
                parameter.copy_(
                    torch.randn(parameter.shape, generator=generator) * 1.5 / parameter.shape[-1] ** 0.5
                )
    return model.eval()


def causal_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layer: LayerInfo
) -> torch.Tensor:
    """One query and one head at a time, over one whole sequence of rows."""
    shape = layer.attention
    assert shape is not None
    output = torch.zeros(*query.shape[:2], value.shape[2])
    for t in range(len(query)):
        start = 0 if shape.sliding_window is None else max(0, t + 1 - shape.sliding_window)
        for head in range(shape.num_heads):
            kv_head = head * shape.num_kv_heads // shape.num_heads
            scores = key[start : t + 1, kv_head] @ query[t, head] * shape.scaling
            if shape.softcap is not None:
                scores = shape.softcap * torch.tanh(scores / shape.softcap)
            if shape.sinks is not None:
                scores = torch.cat([scores, shape.sinks[head : head + 1]])
            weights = torch.softmax(scores, 0)[: t + 1 - start]
            output[t, head] = weights @ value[start : t + 1, kv_head]
    return output


class SequenceLayer:
    """Attention without a cache: every request of the batch is there from its first token on."""

    def __init__(self, layer: LayerInfo) -> None:
        self.layer = layer
        self.calls: list[tuple[torch.Size, ...]] = []
        self.cache_spec = PagedCacheSpec(tensors={"key": TensorSpec((2, 16), torch.float32)})

    def bind_cache(self, cache: Any) -> None:
        raise AssertionError("not used here")

    def forward(
        self, lengths: Sequence[int], query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> Any:
        self.calls.append((query.shape, key.shape, value.shape))
        assert query.is_contiguous()
        assert key.is_contiguous()
        assert value.is_contiguous()
        rows = zip(query.split(lengths), key.split(lengths), value.split(lengths), strict=True)
        return torch.cat([causal_attention(*sequence, self.layer) for sequence in rows])


class SequenceBackend:
    """Claims every attention layer whose keywords it knows, or only what `claims` says."""

    distribution = "outrider-sequences 1.0"

    def __init__(self, name: str = "sequences", claims: Callable[[LayerInfo], bool] | None = None) -> None:
        self.name = name
        self.offered: list[LayerInfo] = []
        self._claims = claims or (lambda layer: layer.attention is not None and not layer.attention.unknown)

    def claim_layer(self, layer: LayerInfo) -> SequenceLayer | None:
        self.offered.append(layer)
        return SequenceLayer(layer) if self._claims(layer) else None


@pytest.fixture(scope="session")
def kit() -> Any:
    """The names of this file; test modules cannot import it."""
    import types

    return types.SimpleNamespace(**globals())

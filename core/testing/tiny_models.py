"""A random transformer for tests that take milliseconds, in a folder that `LLM(model=...)` loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
)

VOCAB_SIZE = 64
ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 ."
"""Text of every token of the tiny tokenizer: token id `i` is the single character `ALPHABET[i]`."""


def tiny_transformer(
    folder: str | Path,
    *,
    seed: int = 0,
    eos_token_id: int | None = None,
    tokenizer: bool = False,
    vocab_size: int = VOCAB_SIZE,
    num_layers: int = 2,
    max_position_embeddings: int = 512,
    sliding_window: int | None = None,
) -> Path:
    """Write a random float32 llama (width 32, 4 query heads on 2 key-value heads) to `folder` and return it.

    The weights depend on `seed` and the shape only. So a test runs plain greedy decoding first and *then*
    writes the same model with a token that it really produced as `eos_token_id`. Weights are large enough for
    greedy text to wander instead of looping.

    Args:
        tokenizer: also write a tokenizer whose tokens are the characters of `ALPHABET`.
        vocab_size: with a tokenizer at least `len(ALPHABET)`; further ids have no text.
        sliding_window: makes it a mistral-shaped model whose queries see only that many positions.
    """
    folder = Path(folder)
    shape: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": num_layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": max_position_embeddings,
        "bos_token_id": None,
        "eos_token_id": eos_token_id,
        "pad_token_id": None,
        "tie_word_embeddings": False,
    }
    model = (
        LlamaForCausalLM(LlamaConfig(**shape))
        if sliding_window is None
        else MistralForCausalLM(MistralConfig(**shape, sliding_window=sliding_window))
    )
    _randomize(model, seed)
    model.save_pretrained(folder)
    if tokenizer:
        character_tokenizer(eos_token_id).save_pretrained(folder)
    return folder


def character_tokenizer(eos_token_id: int | None = None) -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token per character of `ALPHABET`; any other character is an error."""
    backend = Tokenizer(models.WordLevel({character: i for i, character in enumerate(ALPHABET)}))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    eos = None if eos_token_id is None else ALPHABET[eos_token_id]
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token=eos, clean_up_tokenization_spaces=False
    )


def _randomize(model: torch.nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() < 2:
                continue  # the norms stay 1
            scale = 1.0 if "embed_tokens" in name else 2.0 / parameter.shape[1] ** 0.5
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)

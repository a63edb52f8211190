"""Fast twins of what stands around the decoder layers: the same calls, without what a flat batch has no use for."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from .fast_decoder_layer import FastDecoderLayer


class FastDecoder(nn.Module):
    """Takes the class of a decoder whose layers are fast: no masks, no cache, no recording of outputs."""

    embed_tokens: nn.Module
    rotary_emb: nn.Module
    layers: nn.ModuleList
    norm: nn.Module

    @classmethod
    def fits(cls, module: nn.Module) -> bool:
        """Whether `module` has the parts of a decoder, and all its layers are fast."""
        parts = dict(module.named_children())
        return (
            parts.keys() == {"embed_tokens", "layers", "norm", "rotary_emb"}
            and not isinstance(module, cls)
            and all(isinstance(layer, FastDecoderLayer) for layer in parts["layers"].children())
        )

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """Map token ids `[1, T]` to hidden states `[1, T, H]` after the final norm."""
        embedded = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        tables = self.rotary_emb(embedded, position_ids)
        hidden = np.ascontiguousarray(embedded.numpy()[0])
        layer: Any
        for layer in self.layers:
            if layer.is_watched:
                hidden = layer(torch.from_numpy(hidden)[None], position_embeddings=tables).numpy()[0]
            else:
                hidden = layer.run(hidden, tables)
        return BaseModelOutputWithPast(last_hidden_state=self.norm(torch.from_numpy(hidden)[None]))


class FastCausalLM(nn.Module):
    """Takes the class of a `...ForCausalLM` around a fast decoder."""

    model: nn.Module
    lm_head: nn.Module

    @classmethod
    def fits(cls, module: nn.Module) -> bool:
        """Whether `module` is a fast decoder and a head."""
        parts = dict(module.named_children())
        return parts.keys() == {"model", "lm_head"} and isinstance(parts["model"], FastDecoder)

    def forward(self, *, logits_to_keep: int | torch.Tensor = 0, **inputs: Any) -> CausalLMOutputWithPast:
        """Map the inputs of the decoder to logits `[1, R, V]`.

        Args:
            logits_to_keep: the last rows, that many (0: all), or the indices of `R` rows.
        """
        hidden = self.model(**inputs).last_hidden_state
        if isinstance(logits_to_keep, torch.Tensor):
            hidden = hidden[:, logits_to_keep]
        elif logits_to_keep:
            hidden = hidden[:, -logits_to_keep:]
        return CausalLMOutputWithPast(logits=self.lm_head(hidden))

"""Fast twins of what stands around the decoder layers: the same calls, without what a flat batch has no use for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from ..kernels.cpu.decoder import LAYER, layer_record, run_layers
from ..kernels.cpu.weights import padded
from .attention_interface import binding_of
from .fast_decoder_layer import FastDecoderLayer, LlamaShape

_Tables = tuple[torch.Tensor, torch.Tensor]
_Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class _Stack:
    """Fast layers of one size, to be run in one call.

    Attributes:
        records: `[L]` of `kernels.cpu.decoder.LAYER`.
    """

    shapes: list[LlamaShape]
    records: npt.NDArray[np.void]

    @classmethod
    def of(cls, layers: list[FastDecoderLayer]) -> _Stack | None:
        """The stack, or None if the layers differ in size or format, or attention gives no whole steps of a product."""
        shapes = [layer.shape for layer in layers]
        first = shapes[0].sizes
        width = first.num_heads * first.head_size
        if len({(shape.sizes, shape.like.dtype) for shape in shapes}) > 1 or padded(width) != width:
            return None
        records = [layer_record((*shape.before, *shape.after, shape.uses_rotary)) for shape in shapes]
        return cls(shapes, np.array(records, LAYER))

    def run(self, hidden: _Array, tables: _Tables) -> _Array | None:
        """Map `[T, H]` through all layers; None if a layer's attention is not native. Valid until the next call."""
        calls = [binding_of(shape.attention).native_call() for shape in self.shapes]
        if None in calls:
            return None
        first = self.shapes[0]
        step = first.workspace.step(tables, len(hidden), first.sizes)
        run_layers(
            self.records, np.array(calls, np.int64), first.like, hidden, step.even, step.odd, *step.rotary,
            step.no_rotary[0], step.query, step.key, step.value, step.attended, *step.scratch, first.workspace.board,
            first.sizes.intermediate_size, step.num_workers,
        )  # fmt: skip
        return step.even if len(calls) % 2 else step.odd


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
        hidden = self._run_layers(np.ascontiguousarray(embedded.numpy()[0]), tables)
        return BaseModelOutputWithPast(last_hidden_state=self.norm(torch.from_numpy(hidden)[None]))

    def _run_layers(self, hidden: _Array, tables: _Tables) -> _Array:
        layers: Any = self.layers
        if self._stack is not None and not any(layer.is_watched for layer in layers):
            out = self._stack.run(hidden, tables)
            if out is not None:
                return out
        for layer in layers:
            if layer.is_watched:
                hidden = layer(torch.from_numpy(hidden)[None], position_embeddings=tables).numpy()[0]
            else:
                hidden = layer.run(hidden, tables)
        return hidden

    @cached_property
    def _stack(self) -> _Stack | None:
        return _Stack.of(list(self.layers))  # type: ignore[arg-type]


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

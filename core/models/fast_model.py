"""Fast twins of what stands around the decoder layers: the same calls, without what a flat batch has no use for."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from ..kernels.cpu.decoder import AFTER, BEFORE, run_layers
from ..kernels.cpu.decoder_records import CALL
from ..kernels.cpu.decoder_workspace import DecoderWorkspace
from ..kernels.cpu.weights import padded
from .attention_interface import Bindings, bindings_of
from .fast_decoder_layer import FastDecoderLayer, hooks_of
from .rotary_tables import RotaryTables

_Array = npt.NDArray[np.float32]


class _Stack:
    """Fast layers of one size and format, to be run in one call."""

    def __init__(self, layers: list[FastDecoderLayer]) -> None:
        self._attention = [layer.shape.attention for layer in layers]
        self._records = np.concatenate([layer.shape.record for layer in layers])
        self._like = layers[0].shape.like
        self._workspace: DecoderWorkspace = layers[0].workspace
        self._hooks = [hooks for layer in layers for hooks in hooks_of(layer)]
        self._bindings: Bindings | None = None
        self._calls = np.zeros(len(layers), CALL)
        self._forms: dict[Any, tuple[Any, npt.NDArray[np.bool_]]] = {}

    @classmethod
    def of(cls, layers: list[FastDecoderLayer]) -> _Stack | None:
        """The stack, or None if the layers differ, or attention gives no whole steps of a product."""
        sizes = layers[0].shape.sizes
        width = sizes.num_heads * sizes.head_size
        kinds = {(layer.shape.sizes, layer.shape.like.dtype) for layer in layers}
        return cls(layers) if len(kinds) == 1 and padded(width) == width else None

    def run(self, hidden: _Array, rotary: tuple[_Array, _Array]) -> _Array | None:
        """Map `[T, H]` through all layers, valid until the next call.

        Returns:
            None if a layer's attention is not native, or a hook wants to see what enters or leaves a layer.
        """
        if any(self._hooks):
            return None
        bindings = bindings_of(self._attention[0])
        if bindings is not self._bindings and not self._bind(bindings):
            return None
        for partner, layers in self._forms.values():
            self._calls["step"][layers] = partner.native_step()
        space = self._workspace
        space.begin(len(hidden), rotary)
        rows = space.rows("hidden", *hidden.shape)
        rows[:] = hidden
        run_layers(
            self._records.ctypes.data,
            len(self._records),
            self._calls.ctypes.data,
            space.step,
            self._like,
            BEFORE,
            AFTER,
        )
        return rows

    def _bind(self, bindings: Bindings) -> bool:
        """Take what stays the same while these bindings exist; False if a layer's attention is not native."""
        partners = [bindings.partners.get(module) for module in self._attention]
        natives: list[Any] = [getattr(partner, "native", None) for partner in partners]
        if None in natives:
            return False
        self._bindings = bindings
        self._calls["function"] = [native.function for native in natives]
        self._calls["layer"] = [native.layer for native in natives]
        forms = [(native.function, native.form) for native in natives]
        self._forms = {
            form: (partners[forms.index(form)], np.array([other == form for other in forms]))
            for form in set(forms)
        }
        return True


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
        return BaseModelOutputWithPast(
            last_hidden_state=self.hidden_states(input_ids, position_ids, inputs_embeds)
        )

    def hidden_states(
        self,
        input_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """What `forward` wraps."""
        embedded = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        positions = np.arange(embedded.shape[1]) if position_ids is None else position_ids.numpy()[0]
        hidden = self._run_layers(embedded, self._rotary_tables.rows(positions))
        normed: torch.Tensor = self.norm(hidden)
        return normed

    def _run_layers(self, hidden: torch.Tensor, rotary: tuple[_Array, _Array]) -> torch.Tensor:
        out = None if self._stack is None else self._stack.run(hidden.numpy()[0], rotary)
        if out is not None:
            return torch.from_numpy(out)[None]
        tables = tuple(torch.from_numpy(table)[None] for table in rotary)
        for layer in self.layers:
            hidden = layer(hidden, position_embeddings=tables)
        return hidden

    @cached_property
    def _rotary_tables(self) -> RotaryTables:
        return RotaryTables(self.rotary_emb)

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
        model: Any = self.model
        hidden = model(**inputs).last_hidden_state if any(hooks_of(model)) else model.hidden_states(**inputs)
        if isinstance(logits_to_keep, torch.Tensor):
            hidden = hidden[:, logits_to_keep]
        elif logits_to_keep:
            hidden = hidden[:, -logits_to_keep:]
        return CausalLMOutputWithPast(logits=self.lm_head(hidden))

"""Takes hidden states out of a forward as it passes, without asking the architecture for anything but its layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ..api import ModelError


class HiddenStateCapture:
    """Which hidden states of a `...ForCausalLM` to keep in a forward; holds those of the latest one.

    Attributes:
        hidden_states: `[T, H]`, every row of the flat batch after the model's final norm; None unless asked for.
        aux_hidden_states: `[T, H]` per entry of `aux_hidden_layers`: what enters that decoder layer; for the number of
            layers, what leaves the last one, before the final norm.

    Raises:
        ModelError: the model has no decoder or no list of decoder layers that could be watched, or a layer is out of
            range.
    """

    def __init__(
        self, model: torch.nn.Module, *, hidden_states: bool = False, aux_hidden_layers: Sequence[int] = ()
    ) -> None:
        self.hidden_states: torch.Tensor | None = None
        self._aux: list[torch.Tensor | None] = [None] * len(aux_hidden_layers)
        self._decoder = decoder_of(model) if hidden_states else None
        layers = decoder_layers(model) if aux_hidden_layers else torch.nn.ModuleList()
        for index in aux_hidden_layers:
            if not 0 <= index <= len(layers):
                raise ModelError(
                    f"hidden states of layer {index} were asked for; the model has layers 0..{len(layers)}"
                )
        self._watched = [
            (layers[index] if index < len(layers) else layers[-1], index < len(layers))
            for index in aux_hidden_layers
        ]

    @property
    def aux_hidden_states(self) -> tuple[torch.Tensor, ...]:
        """See the class."""
        return tuple(tensor for tensor in self._aux if tensor is not None)

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Watch the model while the context lasts."""
        handles = []
        if self._decoder is not None:
            handles.append(self._decoder.register_forward_hook(self._keep_last))
        for slot, (layer, is_input) in enumerate(self._watched):
            if is_input:
                handles.append(layer.register_forward_pre_hook(self._keep_input(slot), with_kwargs=True))
            else:
                handles.append(layer.register_forward_hook(self._keep_output(slot)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _keep_last(self, _module: torch.nn.Module, _args: Any, output: Any) -> None:
        last = getattr(output, "last_hidden_state", None)
        self.hidden_states = _rows(_first(output) if last is None else last)

    def _keep_input(self, slot: int) -> Callable[[torch.nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        def hook(_module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._aux[slot] = _rows(args[0] if args else kwargs["hidden_states"])

        return hook

    def _keep_output(self, slot: int) -> Callable[[torch.nn.Module, Any, Any], None]:
        def hook(_module: torch.nn.Module, _args: Any, output: Any) -> None:
            self._aux[slot] = _rows(_first(output))

        return hook


def text_config(model: torch.nn.Module) -> Any:
    """The configuration of the language model, also where it is a part of a larger one."""
    config: Any = model.config
    return config.get_text_config()


def decoder_of(model: torch.nn.Module) -> torch.nn.Module:
    """The module that maps token ids to last hidden states.

    Raises:
        ModelError: there is none that is called as a module.
    """
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else None  # type: ignore[operator]
    if not isinstance(decoder, torch.nn.Module) or decoder is model or _has_no_forward(decoder):
        raise ModelError(f"{type(model).__name__} has no decoder module whose hidden states could be taken")
    return decoder


def decoder_layers(model: torch.nn.Module) -> torch.nn.ModuleList:
    """The model's decoder layers, first to last.

    Raises:
        ModelError: no list of modules has as many entries as the configuration says there are layers.
    """
    num_layers = int(text_config(model).num_hidden_layers)
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else model  # type: ignore[operator]
    for module in decoder.modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) == num_layers:
            return module
    raise ModelError(f"{type(model).__name__} has no list of its {num_layers} decoder layers")


def _has_no_forward(module: torch.nn.Module) -> bool:
    return type(module).forward is torch.nn.Module.forward


def _first(output: Any) -> torch.Tensor:
    first: torch.Tensor = output if isinstance(output, torch.Tensor) else output[0]
    return first


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    # A clone, because some architectures add to the residual stream in place.
    return tensor[0].clone()

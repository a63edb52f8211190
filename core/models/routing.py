"""Gives every attention-like module of a model to a backend, and runs the model on their implementations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ..api import (
    AttentionLayer,
    AttentionShape,
    LayerInfo,
    ModelError,
    NativeAttention,
    NativeAttentionLayer,
    PluginError,
)
from ..plugins import GROUPS
from .attention_interface import ATTENTION_IMPLEMENTATION, Bindings
from .discovery import discover_attention
from .hidden_states import HiddenStateCapture


class Backend(Protocol):
    """What routing needs of an attention backend.

    Attributes:
        name: under which its metadata is passed to `RoutedModel.forward`.
        distribution: name and version of the distribution that ships it.
    """

    @property
    def name(self) -> str: ...

    @property
    def distribution(self) -> str: ...

    def claim_layer(self, layer: LayerInfo) -> AttentionLayer | None: ...


@dataclass(frozen=True, slots=True)
class RoutedLayer:
    """A layer and who computes it.

    Attributes:
        name: qualified module name with the model's prefix.
        backend: name of the backend that claimed it.
        attention: how it calls the attention interface; None for a module that is replaced as a whole.
    """

    name: str
    module: torch.nn.Module
    backend: str
    impl: AttentionLayer
    attention: AttentionShape | None


class RoutedModel:
    """A model whose attention-like layers are computed by backends, on a flat batch `[1, T]`.

    Attributes:
        layers: the claimed layers, in the order of the module tree.
        backends: names of the backends that claimed any.
    """

    def __init__(self, module: torch.nn.Module, layers: Sequence[RoutedLayer]) -> None:
        self.module = module
        self.layers = tuple(layers)
        self.backends = frozenset(layer.backend for layer in layers)
        self._steps = {backend: _Step() for backend in self.backends}
        self._bindings = Bindings(
            (layer.module, _binding(layer, self._steps[layer.backend])) for layer in layers
        )

    @classmethod
    def route(
        cls,
        module: torch.nn.Module,
        backends: Sequence[Backend],
        name: str,
        dummy_inputs: Mapping[str, Any],
        device: torch.device,
        dtype: torch.dtype,
    ) -> RoutedModel:
        """Offer every module of `module` to `backends` in turn and bind each to the first that claims it.

        Modules are first offered as a whole, outermost first; inside a claimed module nothing else is offered. Then a
        dummy forward discovers the layers of the attention interface among the others, and those are offered with
        their shape. The attention implementation of `module` must be `outrider`.

        Args:
            name: prefix of the layers' names; may be empty.
            dummy_inputs: keyword inputs beside `input_ids` and `position_ids`; give `use_cache=False` if the model
                knows it.
            device, dtype: of the activations.

        Raises:
            ModelError: the model cannot run as a flat batch; see `discovery`.
            PluginError: an attention layer is claimed by nobody, or there is nothing to claim.
        """

        def offer(path: str, attention: AttentionShape | None) -> RoutedLayer | None:
            layer = module.get_submodule(path)
            full_name = ".".join(part for part in (name, path) if part)
            info = LayerInfo(name=full_name, module=layer, attention=attention, dtype=dtype, device=device)
            for backend in backends:
                impl = backend.claim_layer(info)
                if impl is not None:
                    return RoutedLayer(full_name, layer, backend.name, impl, attention)
            if attention is not None:
                raise PluginError(_nobody_claims(info, attention, backends))
            return None

        routed: dict[str, RoutedLayer] = {}
        for path, _ in module.named_modules():
            if not any(not root or path.startswith(root + ".") for root in routed):
                claimed = offer(path, None)
                if claimed is not None:
                    routed[path] = claimed
        whole = {path: layer.module for path, layer in routed.items()}
        for path, shape in discover_attention(module, whole, dummy_inputs, device).items():
            routed[path] = offer(path, shape)  # type: ignore[assignment]
        if not routed:
            raise PluginError(
                f"{type(module).__name__} {name!r}: no layer calls the transformers attention interface (is"
                f" `config._attn_implementation` {ATTENTION_IMPLEMENTATION!r}?) and no backend claimed a module;"
                f" asked: {_listed(backends)}"
            )
        order = [path for path, _ in module.named_modules() if path in routed]
        return cls(module, [routed[path] for path in order])

    def forward(
        self, metadata: Mapping[str, Any], *, capture: HiddenStateCapture | None = None, **inputs: Any
    ) -> Any:
        """Run the module on `inputs` and return what it returns.

        Args:
            metadata: by backend name, what its `build_attention_metadata` or `build_for_drafting` returned; an entry
                for each of `backends`.
            capture: keeps hidden states of this forward.

        Raises:
            ModelError: the model is inside another forward already, or metadata is missing.
        """
        if torch.is_grad_enabled():
            with torch.no_grad():
                return self.forward(metadata, capture=capture, **inputs)
        with self._bindings, nullcontext() if capture is None else capture.attached():
            for backend, step in self._steps.items():
                if backend not in metadata:
                    raise ModelError(f"no attention metadata of backend {backend!r} was given to the forward")
                step.metadata = metadata[backend]
            return self.module(**inputs)


@dataclass(slots=True)
class _Step:
    """A backend's metadata of the current forward, for all its layers."""

    metadata: Any = None


@dataclass(frozen=True, slots=True)
class _BoundAttention:
    """A backend's layer for the attention interface."""

    impl: AttentionLayer
    step: _Step

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        keywords: dict[str, Any],
    ) -> torch.Tensor:
        return self.impl.forward(self.step.metadata, query, key, value)


@dataclass(frozen=True, slots=True)
class _BoundNativeAttention(_BoundAttention):
    """One that is also a C function."""

    impl: NativeAttentionLayer

    @property
    def native(self) -> NativeAttention | None:
        return self.impl.native

    def native_step(self) -> int:
        return self.impl.native_step(self.step.metadata)


@dataclass(frozen=True, slots=True)
class _BoundModule:
    """A backend's layer for a whole module."""

    impl: AttentionLayer
    step: _Step

    def replace(self, *args: Any, **kwargs: Any) -> Any:
        return self.impl.forward(self.step.metadata, *args, **kwargs)


def _binding(layer: RoutedLayer, step: _Step) -> _BoundAttention | _BoundModule:
    if layer.attention is None:
        return _BoundModule(layer.impl, step)
    if isinstance(layer.impl, NativeAttentionLayer):
        return _BoundNativeAttention(layer.impl, step)
    return _BoundAttention(layer.impl, step)


def _nobody_claims(info: LayerInfo, shape: AttentionShape, backends: Sequence[Backend]) -> str:
    facts = [
        f"{shape.num_heads} query heads on {shape.num_kv_heads} key-value heads",
        f"key size {shape.key_size}, value size {shape.value_size}",
        f"scaling {shape.scaling:g}",
        f"sliding window {shape.sliding_window}",
        f"softcap {shape.softcap}",
        f"sinks {'yes' if shape.sinks is not None else 'no'}",
        f"further keywords {', '.join(sorted(shape.unknown)) or 'none'}",
        f"{info.dtype} on {info.device}",
    ]
    head = f"no attention backend can compute layer {info.name!r} ({type(info.module).__name__}: {'; '.join(facts)})"
    cure = (
        f"Install a distribution that offers one in the entry-point group {GROUPS['attention_backend']!r} (by"
        " convention named `outrider-<backend>`); `outrider plugins` lists what is installed"
    )
    return f"{head}. Asked: {_listed(backends)}. {cure}"


def _listed(backends: Sequence[Backend]) -> str:
    if not backends:
        return "none, because no attention backend is installed or selected"
    return ", ".join(
        f"{backend.name} ({backend.distribution}){_describes_itself(backend)}" for backend in backends
    )


def _describes_itself(backend: Backend) -> str:
    plugin = getattr(backend, "plugin", None)
    summary = (type(plugin).__doc__ or "").strip().partition("\n")[0] if plugin is not None else ""
    return f": {summary}" if summary else ""

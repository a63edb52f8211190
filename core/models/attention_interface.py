"""The attention implementation `outrider` of transformers: hands each call to whatever the calling module is bound to.

A module is bound for the duration of one forward. So any number of engines and routed models can live in one process,
and an unbound module gives an error instead of a wrong answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, causal_mask_function, eager_mask

from ..api import ModelError

ATTENTION_IMPLEMENTATION = "outrider"
"""Value of `config._attn_implementation`. No mask function has this name, so transformers builds no masks."""

DISCOVERY_IMPLEMENTATION = "outrider_discovery"
"""The same with masks: in discovery a layer's mask shows what its keywords may not tell."""

MASK_FUNCTION = "outrider_mask_function"
"""Attribute of a discovery mask: the transformers mask function that it was made from."""


class AttentionBinding(Protocol):
    """What a module of the attention interface is bound to."""

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        keywords: dict[str, Any],
    ) -> torch.Tensor:
        """Return `[T, H, value_size]` for query `[T, H, key_size]`, key and value `[T, Hkv, ...]`, all contiguous."""
        ...


class Bindings:
    """What the modules of one model are bound to. As a context, binds them while it lasts; reusable, not reentrant.

    A partner with a method `replace` also takes the place of the module's `forward`.

    Args:
        bindings: module and partner; each module once.

    Raises:
        ModelError: on entry, a module is bound already: two forwards of it at the same time.
    """

    def __init__(self, bindings: Iterable[tuple[torch.nn.Module, Any]]) -> None:
        self.partners = dict(bindings)
        self._replaced = [
            (module.__dict__, partner.replace)
            for module, partner in self.partners.items()
            if hasattr(partner, "replace")
        ]
        self._before: list[Any] = []

    def __enter__(self) -> None:
        for other in _active:
            both = other.partners.keys() & self.partners.keys()
            if both:
                raise ModelError(
                    f"{type(both.pop()).__name__} is already inside a forward; run one forward of a model at a time"
                )
        _active.append(self)
        self._before = [attributes.get("forward") for attributes, _ in self._replaced]
        for attributes, replacement in self._replaced:
            attributes["forward"] = replacement

    def __exit__(self, *error: object) -> None:
        _active.remove(self)
        for (attributes, _), before in zip(self._replaced, self._before, strict=True):
            if before is None:
                del attributes["forward"]
            else:
                attributes["forward"] = before


_active: list[Bindings] = []
"""Of the forwards that are under way; rarely more than one, and no module is in two of them."""


def binding_of(module: torch.nn.Module) -> AttentionBinding:
    """What `module` is bound to now.

    Raises:
        ModelError: it is bound to nothing.
    """
    return bindings_of(module).partners[module]


def bindings_of(module: torch.nn.Module) -> Bindings:
    """Those of the forward that `module` is in.

    Raises:
        ModelError: there is none.
    """
    for bindings in tuple(_active):  # another thread's forward may end meanwhile
        if module in bindings.partners:
            return bindings
    raise ModelError(
        f"{type(module).__name__} was called outside a routed forward. Its attention is"
        f" {ATTENTION_IMPLEMENTATION!r}, which works inside `RoutedModel.forward` only; to run the model by itself,"
        " call `model.set_attn_implementation('sdpa')` on a copy of its own"
    )


@contextmanager
def attention_implementation(module: torch.nn.Module, name: str) -> Iterator[None]:
    """Let every submodule whose attention is ours use the implementation `name` while the context lasts."""
    configs = {
        id(config): config
        for config in (getattr(submodule, "config", None) for submodule in module.modules())
        if getattr(config, "_attn_implementation", None) == ATTENTION_IMPLEMENTATION
    }
    _set_implementation(configs.values(), name)
    try:
        yield
    finally:
        _set_implementation(configs.values(), ATTENTION_IMPLEMENTATION)


def _set_implementation(configs: Iterable[Any], name: str) -> None:
    for config in configs:
        # Not the public setter: it would also overwrite sub-configurations that use another implementation.
        config._attn_implementation_internal = name


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    **keywords: Any,
) -> tuple[torch.Tensor, None]:
    """Called by transformers with query `[1, H, T, key_size]`, key and value `[1, Hkv, T, ...]`.

    Returns:
        `[1, T, H, value_size]`, contiguous since many architectures `view` it, and no attention weights.
    """
    binding = binding_of(module)
    output = binding.attend(_rows(query), _rows(key), _rows(value), attention_mask, keywords)
    return output.unsqueeze(0).contiguous(), None


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    # The projections of most architectures are laid out by rows, so this copies nothing for them.
    return tensor[0].transpose(0, 1).contiguous()


def _discovery_mask(*args: Any, **kwargs: Any) -> torch.Tensor | None:
    mask: torch.Tensor | None = eager_mask(*args, **kwargs)
    if mask is not None:
        setattr(mask, MASK_FUNCTION, kwargs.get("mask_function", causal_mask_function))
    return mask


AttentionInterface.register(ATTENTION_IMPLEMENTATION, _attention)
AttentionInterface.register(DISCOVERY_IMPLEMENTATION, _attention)
AttentionMaskInterface.register(DISCOVERY_IMPLEMENTATION, _discovery_mask)

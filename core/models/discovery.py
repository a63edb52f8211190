"""Finds a model's attention layers in one dummy forward, and makes sure that the model can run as a flat batch.

A flat batch is sound if, apart from the layers that backends compute, an output row depends only on that row's token
and position. So the dummy forward is repeated with its rows in reverse order: the outputs must come out in reverse
order, to rounding. A convolution or recurrence that nobody claimed, attention that bypasses the interface, or positions
counted from the row number fail that test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from ..api import NUM_DISCOVERY_TOKENS, AttentionShape, ModelError
from .attention_interface import (
    ATTENTION_IMPLEMENTATION,
    DISCOVERY_IMPLEMENTATION,
    Bindings,
    attention_implementation,
)
from .attention_shape import check_mask, plain_attention, shape_of_call

NamedModules = Mapping[str, torch.nn.Module]


@dataclass(slots=True)
class _Recorder:
    """Computes one module's attention plainly and remembers how it was asked."""

    name: str
    module: torch.nn.Module
    positions: torch.Tensor
    checked: bool
    shapes: list[AttentionShape] = field(default_factory=list)

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        keywords: dict[str, Any],
    ) -> torch.Tensor:
        shape = shape_of_call(self.name, self.module, query, key, value, keywords)
        if self.checked:
            check_mask(self.name, shape, mask)
        self.shapes.append(shape)
        return plain_attention(query, key, value, self.positions, shape)


def discover_attention(
    module: torch.nn.Module,
    claimed: NamedModules,
    dummy_inputs: Mapping[str, Any],
    device: torch.device,
) -> dict[str, AttentionShape]:
    """Run the dummy forward and return the shape of each attention layer, by qualified name.

    Args:
        claimed: modules, by qualified name, that a backend computes as a whole; left out of the result with
            everything in them.
        dummy_inputs: keyword inputs beside `input_ids` and `position_ids`, both `[1, NUM_DISCOVERY_TOKENS]`.

    Raises:
        ModelError: the forward fails, a layer's attention is not causal self-attention, a layer is called more than
            once per forward, or rows depend on one another outside the layers found and `claimed`.
    """
    positions = torch.arange(NUM_DISCOVERY_TOKENS, device=device)
    inputs = {**dummy_inputs, "input_ids": positions[None], "position_ids": positions[None]}
    modules = {name: m for name, m in module.named_modules() if not _within(name, claimed)}
    first = _run(module, modules, claimed, inputs, positions, DISCOVERY_IMPLEMENTATION, _keep)
    for name in claimed:
        _once(name, len(first.outputs.get(name, ())))
    reverse = positions.flip(0)
    permuted = tree_map(lambda leaf: leaf[:, reverse] if _is_rows(leaf) else leaf, inputs)
    second = _run(
        module, modules, claimed, permuted, reverse, ATTENTION_IMPLEMENTATION, _Replay(first.outputs)
    )
    _check_rows_are_independent(module, first, second)
    shapes = {}
    for recorder in first.recorders:
        _once(recorder.name, len(recorder.shapes))
        if recorder.shapes:
            shapes[recorder.name] = recorder.shapes[0]
    return shapes


@dataclass(slots=True)
class _Forward:
    """What one dummy forward did: per module, in the order in which they finish, its rows in and out."""

    recorders: list[_Recorder]
    inputs: dict[str, list[Any]] = field(default_factory=dict)
    outputs: dict[str, list[Any]] = field(default_factory=dict)


def _keep(_name: str, output: Any) -> Any:
    """First forward: a claimed module computes its output itself, from no earlier state."""
    return output


@dataclass(slots=True)
class _Replay:
    """Second forward: a claimed module repeats the rows of its first output, in reverse order."""

    outputs: dict[str, list[Any]]

    def __call__(self, name: str, output: Any) -> Any:
        rows = iter(self.outputs[name][0])
        return tree_map(lambda leaf: next(rows).flip(1) if _is_rows(leaf) else leaf, output)


def _run(
    module: torch.nn.Module,
    modules: NamedModules,
    claimed: NamedModules,
    inputs: Mapping[str, Any],
    positions: torch.Tensor,
    implementation: str,
    stand_in: Callable[[str, Any], Any],
) -> _Forward:
    forward = _Forward([_Recorder(name, submodule, positions, True) for name, submodule in modules.items()])
    # Attention inside a claimed module runs too; what it looks like is the claiming backend's business.
    inner = [
        _Recorder(name, m, positions, False) for name, m in module.named_modules() if name not in modules
    ]
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(attention_implementation(module, implementation))
        stack.enter_context(
            Bindings([(recorder.module, recorder) for recorder in [*forward.recorders, *inner]])
        )
        stack.enter_context(_watched({**modules, **claimed}, claimed, forward, stand_in))
        try:
            module(**inputs)
        except ModelError:
            raise
        except Exception as error:
            raise ModelError(
                f"{type(module).__name__}: the dummy forward that discovers attention layers failed with"
                f" {type(error).__name__}: {error}"
            ) from error
    return forward


@contextmanager
def _watched(
    modules: NamedModules, claimed: NamedModules, forward: _Forward, stand_in: Callable[[str, Any], Any]
) -> Iterator[None]:
    """Collect what every module takes and returns, and let `stand_in` replace what claimed ones return."""

    def watch(name: str) -> Callable[[torch.nn.Module, Any, Any, Any], Any]:
        def hook(_module: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
            if name in claimed:
                output = stand_in(name, output)
            forward.inputs.setdefault(name, []).append(_copied([args, kwargs]))
            forward.outputs.setdefault(name, []).append(_copied(output))
            return output

        return hook

    handles = [m.register_forward_hook(watch(name), with_kwargs=True) for name, m in modules.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _copied(values: Any) -> Any:
    # Some architectures add the residual in place.
    return [leaf.clone() for leaf in tree_leaves(values) if _is_rows(leaf)]


def _check_rows_are_independent(module: torch.nn.Module, first: _Forward, second: _Forward) -> None:
    if _reversed_equal(first.outputs[""], second.outputs[""]):
        return
    # The innermost module that got the same rows and made others of them.
    culprit = next(
        name
        for name, outputs in first.outputs.items()
        if not _reversed_equal(outputs, second.outputs.get(name, []))
        and (not name or _reversed_equal(first.inputs[name], second.inputs.get(name, [])))
    )
    where = (
        f"module {culprit!r} ({type(module.get_submodule(culprit)).__name__})" if culprit else "its forward"
    )
    raise ModelError(
        f"{type(module).__name__} cannot run as a flat batch: in {where} a row depends on other rows, outside the"
        " transformers attention interface and outside every module that a backend claimed (for example a recurrence, a"
        " convolution, attention of its own, or positions that are not `position_ids`). Install an attention backend"
        " that claims such modules"
    )


def _reversed_equal(first: Sequence[Any], second: Sequence[Any]) -> bool:
    rows = [leaf for leaf in tree_leaves(list(first)) if _is_rows(leaf)]
    others = [leaf for leaf in tree_leaves(list(second)) if _is_rows(leaf)]
    return len(rows) == len(others) and all(
        _close(a, b.flip(1)) for a, b in zip(rows, others, strict=True) if a.is_floating_point()
    )


def _close(first: torch.Tensor, second: torch.Tensor) -> bool:
    # Row order may change the rounding of a library's matrix product, never more.
    tolerance = 1e-4 if first.dtype == torch.float32 else 3e-2
    scale = float(first.abs().max()) if first.numel() else 0.0
    return bool(torch.allclose(first, second, rtol=tolerance, atol=tolerance * scale, equal_nan=True))


def _is_rows(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.dim() >= 2 and leaf.shape[:2] == (1, NUM_DISCOVERY_TOKENS)


def _within(name: str, claimed: NamedModules) -> bool:
    return any(not root or name == root or name.startswith(root + ".") for root in claimed)


def _once(name: str, calls: int) -> None:
    if calls > 1:
        raise ModelError(
            f"layer {name!r} is called {calls} times in one forward; a layer can keep only one cache entry per token"
        )

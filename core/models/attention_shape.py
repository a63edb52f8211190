"""How one call of the attention interface is read, checked, and computed plainly during discovery."""

from __future__ import annotations

from typing import Any

import torch

from ..api import AttentionShape, ModelError
from .attention_interface import MASK_FUNCTION

_FAR = 1 << 20
"""A position beyond every window and chunk at which a mask function is asked what it shows."""

_OF_NO_CONSEQUENCE = frozenset(
    {
        "cache",
        "cache_position",
        "dropout",
        "is_causal",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "past_key_values",
        "position_embeddings",
        "position_ids",
        "return_dict",
        "use_cache",
    }
)
"""Keywords that do not change what attention computes in a causal forward without dropout or a transformers cache."""

_SINKS = ("s_aux", "sinks")
_KNOWN = _OF_NO_CONSEQUENCE | {"scaling", "sliding_window", "softcap", *_SINKS}


def shape_of_call(
    name: str,
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    keywords: dict[str, Any],
) -> AttentionShape:
    """Read a call with query `[T, H, key_size]`, key and value `[T, Hkv, ...]`.

    Raises:
        ModelError: it is cross-attention, or not causal.
    """
    if key.shape[0] != query.shape[0]:
        raise ModelError(
            f"layer {name!r} attends from {query.shape[0]} rows to {key.shape[0]}: cross-attention is not supported"
        )
    causal = keywords.get("is_causal")
    if not (getattr(module, "is_causal", True) if causal is None else causal):
        raise ModelError(f"layer {name!r} is not causal: only decoder-only language models can be served")
    scaling = keywords.get("scaling")
    window = keywords.get("sliding_window")
    sinks = next((keywords[keyword] for keyword in _SINKS if keywords.get(keyword) is not None), None)
    return AttentionShape(
        num_heads=query.shape[1],
        num_kv_heads=key.shape[1],
        key_size=query.shape[2],
        value_size=value.shape[2],
        scaling=float(query.shape[2] ** -0.5 if scaling is None else scaling),
        sliding_window=int(window) if window is not None and window > 0 else None,
        softcap=float(keywords["softcap"]) if keywords.get("softcap") else None,
        sinks=None if sinks is None else sinks.detach(),
        unknown={k: v for k, v in keywords.items() if v is not None and k not in _KNOWN},
    )


def check_mask(name: str, shape: AttentionShape, mask: torch.Tensor | None) -> None:
    """Make sure that the mask which transformers would use says no more than the keywords of the call.

    Backends get no masks. An architecture whose mask hides or biases something that its keywords do not mention
    would silently compute something else.

    Raises:
        ModelError: the mask differs from causal attention within `shape.sliding_window`.
    """
    if mask is None:
        return
    rows = mask.shape[-1]
    row = torch.arange(rows, device=mask.device)
    visible = _visible(row[:, None], row[None, :], shape.sliding_window)
    shown = mask if mask.dtype == torch.bool else mask == 0
    hidden = ~mask if mask.dtype == torch.bool else mask <= torch.finfo(mask.dtype).min / 2
    plain = bool((torch.where(visible, shown, hidden)).all())
    mask_function = getattr(mask, MASK_FUNCTION, None)
    if not plain or (
        mask_function is not None and not _is_plain(mask_function, shape.sliding_window, mask.device)
    ):
        limits = "no window" if shape.sliding_window is None else f"a window of {shape.sliding_window}"
        raise ModelError(
            f"layer {name!r} relies on an attention mask: its call says causal with {limits}, its mask says something"
            " else (such as chunks, a prefix, or position biases), and backends get no masks"
        )


def _is_plain(mask_function: Any, window: int | None, device: torch.device) -> bool:
    offsets = {1: False, 0: True, -1: window is None or window > 1, -_FAR: window is None}
    if window is not None:
        offsets |= {1 - window: True, -window: False}
    zero, query = torch.zeros((), dtype=torch.int64, device=device), torch.tensor(_FAR, device=device)
    return all(
        bool(mask_function(zero, zero, query, query + offset)) == shown for offset, shown in offsets.items()
    )


def _visible(query: torch.Tensor, key: torch.Tensor, window: int | None) -> torch.Tensor:
    causal = key <= query
    return causal if window is None else causal & (query - key < window)


def plain_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    positions: torch.Tensor,
    shape: AttentionShape,
) -> torch.Tensor:
    """Attention among `T` rows of one sequence at `positions` `[T]`, keys always summed in position order.

    Returns:
        `[T, H, value_size]`; `shape.unknown` is ignored, since only the magnitude of the numbers matters here.
    """
    order = positions.argsort()
    group = shape.num_heads // shape.num_kv_heads
    keys = key[order].repeat_interleave(group, dim=1).float()
    values = value[order].repeat_interleave(group, dim=1).float()
    scores = torch.einsum("thd,shd->hts", query.float(), keys) * shape.scaling
    if shape.softcap is not None:
        scores = shape.softcap * torch.tanh(scores / shape.softcap)
    visible = _visible(positions[:, None], positions[order][None, :], shape.sliding_window)
    scores = scores.masked_fill(~visible, -torch.inf)
    if shape.sinks is not None:
        sinks = shape.sinks.float().reshape(-1, 1, 1).expand(-1, scores.shape[1], 1)
        scores = torch.cat([scores, sinks], dim=-1)
    weights = scores.softmax(dim=-1)[..., : key.shape[0]]
    return torch.einsum("hts,shv->thv", weights, values).to(value.dtype)

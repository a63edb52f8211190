"""Verify drafts: which are accepted, and which token follows the last accepted one.

Either rule decides one token per row of logits, and a request emits its rows' tokens for as long as they equal its
drafts:

* `coupled`: the token is the target's own sample. Its noise depends on (seed, position, token id) only, so what is
  emitted does not depend on the drafter at all (Daliri et al., "Coupling without communication and drafter-invariant
  speculative decoding", 2024).
* `rejection`: the token is the draft `x` with probability `min(1, p(x) / q(x))`, else one from the normalised
  `max(p - q, 0)` (Leviathan et al., "Fast inference from transformers via speculative decoding", 2023). A recovered
  token is not `x`, as it is drawn only if `q(x) > p(x)`. Rows without a draft are sampled as under `coupled`.

`p` is the target's distribution after everything a request asks for: processors, temperature, min_p, top-k, top-p.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from ..kernels.cpu.sampling import NO_TOKEN, judge_rows, sample_rows
from .processors import PROCESSORS, LogitsProcessor
from .sampler import SamplingRows, prepare_logits

Rule = Literal["coupled", "rejection"]


def verify(
    logits: torch.Tensor,
    rows: SamplingRows,
    drafts: Sequence[Sequence[int]],
    draft_probs: torch.Tensor | None = None,
    rule: Rule = "coupled",
    processors: Sequence[LogitsProcessor] = PROCESSORS,
) -> list[list[int]]:
    """Return what each of the `B` requests emits: its accepted drafts, then one recovered or bonus token.

    A request whose row yields no token (see `sampler.sample`) emits only what came before it; nothing at all if that
    was its first row, and then it can never go on.

    Args:
        logits: `[ΣD + B, V]`: per request its `D_i` draft-judging rows, then its bonus row. Not changed.
        rows: one entry per row of logits.
        drafts: of each request, `D_i` of them.
        draft_probs: `[ΣD, V]` distribution that each draft was drawn from; `coupled` ignores it. A row of zeros, and
            None for all rows, means that the draft has none and counts as one-hot, which is right for any draft.

    Raises:
        ValueError: the shapes disagree, or the rule is unknown.
    """
    values = prepare_logits(logits, rows, processors)
    num_drafts = sum(map(len, drafts))
    if num_drafts + len(drafts) != len(values):
        raise ValueError(
            f"{len(values)} rows of logits do not fit {len(drafts)} requests with {num_drafts} drafts; "
            "each needs a row per draft and one more"
        )
    numbers = rows.requests, rows.request_of_row, rows.positions
    if rule == "coupled":
        decided = sample_rows(values, *numbers, np.arange(len(values)))
    elif rule == "rejection":
        probs = _draft_probs(draft_probs, (num_drafts, values.shape[1]))
        decided = _judge(values, numbers, drafts, probs)
    else:
        raise ValueError(f'unknown verification rule {rule!r}; there are "coupled" and "rejection"')
    return _emitted(decided.tolist(), drafts)


def _judge(
    values: npt.NDArray[np.float32],
    numbers: tuple[npt.NDArray[np.void], npt.NDArray[np.int32], npt.NDArray[np.int64]],
    drafts: Sequence[Sequence[int]],
    probs: npt.NDArray[np.float32],
) -> npt.NDArray[np.int64]:
    bonuses = np.cumsum([len(draft) + 1 for draft in drafts], dtype=np.int64) - 1
    targets = np.delete(np.arange(len(values)), bonuses)
    flat = np.array(list(chain.from_iterable(drafts)), np.int64)
    decided = np.empty(len(values), np.int64)
    decided[targets] = judge_rows(values, *numbers, targets, flat, probs)
    decided[bonuses] = sample_rows(values, *numbers, bonuses)
    return decided


def _emitted(decided: list[int], drafts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Each request's tokens up to the first that is not its draft; that one too, unless it is `NO_TOKEN`."""
    emitted = []
    start = 0
    for draft in drafts:
        agreed = 0
        # A draft that is no id must not pass for equal to "no token".
        while agreed < len(draft) and decided[start + agreed] == draft[agreed] != NO_TOKEN:
            agreed += 1
        tokens = decided[start : start + agreed + 1]
        emitted.append(tokens if tokens[-1] != NO_TOKEN else tokens[:-1])
        start += len(draft) + 1
    return emitted


def _draft_probs(draft_probs: torch.Tensor | None, shape: tuple[int, int]) -> npt.NDArray[np.float32]:
    if draft_probs is None:
        return np.empty((shape[0], 0), np.float32)
    if draft_probs.shape != shape:
        raise ValueError(f"draft_probs must be {list(shape)}, not {list(draft_probs.shape)}")
    return np.ascontiguousarray(draft_probs.detach().to("cpu", torch.float32).numpy())

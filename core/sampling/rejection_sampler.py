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
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from ..api import SpecDecodeMetadata
from ..kernels.cpu.sampling import NO_TOKEN, judge_rows, sample_rows
from .processors import PROCESSORS, LogitsProcessor
from .sampler import SamplingRows, prepare_logits

Rule = Literal["coupled", "rejection"]


def verify(
    logits: torch.Tensor,
    rows: SamplingRows,
    spec: SpecDecodeMetadata,
    draft_probs: torch.Tensor | None = None,
    rule: Rule = "coupled",
    processors: Sequence[LogitsProcessor] = PROCESSORS,
) -> torch.Tensor:
    """Return `[B, max_spec_len + 1]` int64 on the CPU: accepted drafts, one recovered or bonus token, then -1.

    A request whose row yields no token (see `sampler.sample`) emits only what came before it; nothing at all if that
    was its first row, and then it can never go on.

    Args:
        logits: `[ΣD + B, V]`: per request its `D_i` draft-judging rows, then its bonus row. Not changed.
        rows: one entry per row of logits.
        draft_probs: `[ΣD, V]` distribution that each draft was drawn from; `coupled` ignores it. A row of zeros, and
            None for all rows, means that the draft has none and counts as one-hot, which is right for any draft.

    Raises:
        ValueError: the shapes disagree, or the rule is unknown.
    """
    values = prepare_logits(logits, rows, processors)
    targets = _indices(spec.target_logits_indices)
    bonuses = _indices(spec.bonus_logits_indices)
    drafts = _indices(spec.draft_token_ids)
    if len(targets) + len(bonuses) != len(values) or len(drafts) != len(targets):
        raise ValueError(
            f"{len(values)} rows of logits do not fit {len(drafts)} drafts with {len(targets)} judging rows "
            f"and {len(bonuses)} bonus rows"
        )
    bits, packed = values.view(np.int32), rows.pack()
    if rule == "coupled":
        decided = sample_rows(values, bits, packed, np.arange(len(values)))
    elif rule == "rejection":
        probs = _draft_probs(draft_probs, (len(drafts), values.shape[1]))
        decided = np.empty(len(values), np.int64)
        decided[targets] = judge_rows(values, bits, packed, targets, drafts, probs)
        decided[bonuses] = sample_rows(values, bits, packed, bonuses)
    else:
        raise ValueError(f'unknown verification rule {rule!r}; there are "coupled" and "rejection"')
    return torch.from_numpy(_emit(decided[targets], decided[bonuses], drafts, spec))


def parse_output(tokens: torch.Tensor, vocab_size: int) -> list[list[int]]:
    """Return the tokens of each request: its row of `tokens` up to the first that is no id below `vocab_size`."""
    parsed = []
    for row in tokens.tolist():
        length = next((i for i, token in enumerate(row) if not 0 <= token < vocab_size), len(row))
        parsed.append(row[:length])
    return parsed


def _emit(
    judged: npt.NDArray[np.int64],
    bonus: npt.NDArray[np.int64],
    drafts: npt.NDArray[np.int64],
    spec: SpecDecodeMetadata,
) -> npt.NDArray[np.int64]:
    emitted = np.full((len(bonus), spec.max_spec_len + 1), NO_TOKEN, np.int64)
    # A draft that is no id must not pass for equal to "no token".
    accepted = (judged == drafts) & (drafts >= 0)
    start = 0
    for i, num_drafts in enumerate(spec.num_draft_tokens):
        end = start + num_drafts
        agreed = 0
        while agreed < num_drafts and accepted[start + agreed]:
            agreed += 1
        emitted[i, :agreed] = drafts[start : start + agreed]
        emitted[i, agreed] = bonus[i] if agreed == num_drafts else judged[start + agreed]
        start = end
    return emitted


def _indices(tensor: torch.Tensor) -> npt.NDArray[np.int64]:
    return np.ascontiguousarray(tensor.detach().to("cpu", torch.int64).numpy())


def _draft_probs(draft_probs: torch.Tensor | None, shape: tuple[int, int]) -> npt.NDArray[np.float32]:
    if draft_probs is None:
        return np.empty((shape[0], 0), np.float32)
    if draft_probs.shape != shape:
        raise ValueError(f"draft_probs must be {list(shape)}, not {list(draft_probs.shape)}")
    return np.ascontiguousarray(draft_probs.detach().to("cpu", torch.float32).numpy())

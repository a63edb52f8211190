"""Rows of logits and their metadata, laid out as the runner lays them out."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

from outrider.api import SpecDecodeMetadata

SpecOf = Callable[[Sequence[Sequence[int]]], SpecDecodeMetadata]


@pytest.fixture(scope="session")
def spec_of() -> SpecOf:
    """Metadata of requests that have nothing but their drafts and their newest token to compute."""

    def build(drafts: Sequence[Sequence[int]]) -> SpecDecodeMetadata:
        lengths = [len(draft) for draft in drafts]
        rows = np.arange(sum(lengths) + len(drafts))
        bonus = np.cumsum(np.array(lengths, np.int64) + 1) - 1
        return SpecDecodeMetadata(
            draft_token_ids=torch.tensor([t for draft in drafts for t in draft], dtype=torch.int64),
            num_draft_tokens=tuple(lengths),
            cu_num_draft_tokens=torch.tensor(np.cumsum(lengths), dtype=torch.int32),
            logits_indices=torch.tensor(rows),
            target_logits_indices=torch.tensor(np.setdiff1d(rows, bonus), dtype=torch.int64),
            bonus_logits_indices=torch.tensor(bonus),
        )

    return build

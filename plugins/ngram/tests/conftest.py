"""Drafting without an engine: the proposer, a few contexts and budgets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pytest
from outrider_ngram import NgramProposer

from outrider.api import DraftRequest, ProposeContext, SamplingParams

Contexts: TypeAlias = Mapping[str, tuple[npt.NDArray[Any], int]]
Draft: TypeAlias = Callable[[NgramProposer, Contexts], dict[str, list[int]]]


def _draft(proposer: NgramProposer, contexts: Contexts) -> dict[str, list[int]]:
    requests = [
        DraftRequest(
            request_id=request_id,
            token_ids=token_ids,
            num_prompt_tokens=1,
            num_new_tokens=1,
            num_computed_tokens=len(token_ids) - 1,
            num_rows=1,
            draft_budget=budget,
            sampling_params=SamplingParams(),
            seed=0,
        )
        for request_id, (token_ids, budget) in contexts.items()
    ]
    context = ProposeContext(
        requests=requests,
        row_start_loc=np.arange(len(requests) + 1, dtype=np.int32),
        hidden_states=None,
        aux_hidden_states=(),
        attention=cast(Any, None),
        sample=cast(Any, None),
    )
    drafts = proposer.propose(context).token_ids
    return {
        request_id: [int(token) for token in draft]
        for request_id, draft in zip(contexts, drafts, strict=True)
    }


@pytest.fixture(scope="session")
def draft() -> Draft:
    """`draft(proposer, {id: (token_ids, budget)})` asks for one step and returns `{id: drafted ids}`."""
    return _draft

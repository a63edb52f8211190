"""A proposer that knows nothing."""

from __future__ import annotations

import numpy as np
from pydantic import BaseModel, ConfigDict

from ...api import DraftTokens, ProposeContext, TargetModel
from ...hookspecs import hookimpl


class RandomProposer:
    """Drafts random tokens. About one of `vocab_size` is right: a verifier that accepts more is broken."""

    outrider_api = 1

    class Options(BaseModel):
        """Attributes: seed: of the drafts."""

        model_config = ConfigDict(extra="forbid")

        seed: int = 0

    def __init__(self, options: Options) -> None:
        self._random = np.random.default_rng(options.seed)
        self._vocab_size = 0

    @hookimpl
    def load_model(self, target: TargetModel) -> None:
        """Remember the vocabulary size."""
        self._vocab_size = target.vocab_size

    @hookimpl
    def propose(self, context: ProposeContext) -> DraftTokens:
        """Fill every budget."""
        return DraftTokens(
            token_ids=[self._random.integers(self._vocab_size, size=r.draft_budget) for r in context.requests]
        )

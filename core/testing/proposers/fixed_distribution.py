"""A proposer that draws from one distribution, whatever the context, and says so."""

from __future__ import annotations

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field

from ...api import DraftTokens, ProposeContext, ProposerCapabilities
from ...hookspecs import hookimpl


class FixedDistributionProposer:
    """Draws every draft from the same distribution and reports that one: what rejection sampling is exact for."""

    outrider_api = 1

    class Options(BaseModel):
        """The distribution.

        Attributes:
            probs: of each token id of the target's vocabulary, up to a common factor.
            seed: of the draws.
        """

        model_config = ConfigDict(extra="forbid")

        probs: list[float] = Field(min_length=1)
        seed: int = 0

    def __init__(self, options: Options) -> None:
        self._probs = np.array(options.probs) / np.sum(options.probs)
        self._random = np.random.default_rng(options.seed)

    @hookimpl
    def capabilities(self) -> ProposerCapabilities:
        """Every draft comes with its distribution."""
        return ProposerCapabilities(probs=True)

    @hookimpl
    def propose(self, context: ProposeContext) -> DraftTokens:
        """Fill every budget."""
        budgets = [request.draft_budget for request in context.requests]
        rows = torch.tensor(self._probs, dtype=torch.float32)
        return DraftTokens(
            token_ids=[self._random.choice(len(self._probs), size=n, p=self._probs) for n in budgets],
            probs=[rows.expand(n, -1) for n in budgets],
        )

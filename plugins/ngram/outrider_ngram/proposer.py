"""Prompt look-up decoding: what followed the last words the previous time is likely to follow again.

After Saxena, "Prompt Lookup Decoding" (2023); lengths and names as in vLLM.
"""

from __future__ import annotations

import secrets

import numpy as np

from outrider import hookimpl
from outrider.api import DraftTokens, ProposeContext, ProposerCapabilities

from .index import Lookup, NgramIndex, draft_batch
from .options import NgramOptions


class NgramProposer:
    """Drafts the tokens that followed an earlier occurrence of the context's longest repeated suffix.

    It needs no model and has no state that the context does not determine: an index that it lost, or never had, is
    rebuilt from `DraftRequest.token_ids`.
    """

    outrider_api = 1
    Options = NgramOptions

    def __init__(self, options: NgramOptions) -> None:
        self._indexes: dict[str, NgramIndex] = {}
        self._lookup = Lookup(
            min_n=options.prompt_lookup_min,
            max_n=options.prompt_lookup_max,
            most_recent=options.choice == "most_recent",
            # Drawn anew, so that nobody can write a prompt whose n-grams all fall on one slot.
            # Drafts do not depend on it.
            multiplier=secrets.randbits(62) | 1,
        )

    @hookimpl
    def capabilities(self) -> ProposerCapabilities:
        """It drafts any number of tokens, from any context, and needs nothing of the target."""
        return ProposerCapabilities()

    @hookimpl
    def propose(self, context: ProposeContext) -> DraftTokens:
        """Draft for each request with a budget; nothing where no suffix occurs earlier."""
        token_ids: list[np.ndarray | tuple[()]] = [()] * len(context.requests)
        asked = [
            i
            for i, request in enumerate(context.requests)
            if request.draft_budget > 0 and len(request.token_ids) > self._lookup.min_n
        ]
        if not asked:
            return DraftTokens(token_ids=token_ids)
        contexts = [np.ascontiguousarray(context.requests[i].token_ids, dtype=np.int32) for i in asked]
        drafts = draft_batch(
            contexts,
            [
                self._index(context.requests[i].request_id, len(tokens))
                for i, tokens in zip(asked, contexts, strict=True)
            ],
            [context.requests[i].draft_budget for i in asked],
            self._lookup,
        )
        for row, i in enumerate(asked):
            token_ids[i] = drafts.token_ids[row, : drafts.lengths[row]]
        return DraftTokens(token_ids=token_ids)

    @hookimpl
    def dummy_run(self, num_tokens: int) -> None:
        """Compile both forms of the kernel, and the growth of an index."""
        tokens = np.zeros(self._lookup.max_n + 1, dtype=np.int32)
        for parallel in (False, True):
            index = NgramIndex(self._lookup.num_tables, len(tokens))
            draft_batch([tokens], [index], [1], self._lookup, parallel=parallel)
            index.reserve(index.capacity)

    @hookimpl
    def request_preempted(self, request_id: str) -> None:
        """Free the request's index; it is rebuilt if the request comes back."""
        self._indexes.pop(request_id, None)

    @hookimpl
    def request_finished(self, request_id: str) -> None:
        """Free the request's index."""
        self._indexes.pop(request_id, None)

    def _index(self, request_id: str, num_tokens: int) -> NgramIndex:
        index = self._indexes.get(request_id)
        if index is None:
            index = self._indexes[request_id] = NgramIndex(self._lookup.num_tables, num_tokens)
        else:
            index.reserve(num_tokens)
        return index

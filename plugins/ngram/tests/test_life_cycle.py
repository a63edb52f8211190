"""As a plugin: hooks fit the specifications, state goes with the request, everything is compiled at warm-up."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

import numpy as np
import pluggy
import pytest
from outrider_ngram import NgramOptions, NgramProposer, kernels

from outrider import hookspecs

TOKENS = np.array([1, 2, 3, 1, 2], dtype=np.int32)


@pytest.fixture
def proposer() -> NgramProposer:
    return NgramProposer(NgramOptions(prompt_lookup_min=1, prompt_lookup_max=3))


def test_every_hook_fits_its_specification(proposer: NgramProposer) -> None:
    manager = pluggy.PluginManager(hookspecs.PROJECT_NAME)
    manager.add_hookspecs(hookspecs)
    manager.register(proposer)
    manager.check_pending()
    assert manager.hook.capabilities().max_draft_tokens is None


def test_the_entry_point_names_the_class() -> None:
    (entry_point,) = entry_points(group="outrider.proposers", name="ngram")
    assert entry_point.load() is NgramProposer
    assert entry_point.dist is not None
    assert entry_point.dist.name == "outrider-ngram"


@pytest.mark.parametrize("leave", ["request_finished", "request_preempted"])
def test_a_request_that_leaves_takes_its_index_along(proposer: NgramProposer, draft: Any, leave: str) -> None:
    for number in range(20):
        draft(proposer, {f"{number}": (TOKENS, 1), "stays": (TOKENS, 1)})
        getattr(proposer, leave)(request_id=f"{number}")
    assert list(proposer._indexes) == ["stays"]


def test_a_request_that_never_drafted_may_finish(proposer: NgramProposer, draft: Any) -> None:
    draft(proposer, {"a": (TOKENS, 0)})
    proposer.request_finished(request_id="a")
    proposer.request_finished(request_id="unknown")
    assert proposer._indexes == {}


def test_a_preempted_request_drafts_as_before_when_it_returns(proposer: NgramProposer, draft: Any) -> None:
    before = draft(proposer, {"a": (TOKENS, 3)})
    proposer.request_preempted(request_id="a")
    assert draft(proposer, {"a": (TOKENS, 3)}) == before == {"a": [3, 1, 2]}


def test_an_id_that_comes_back_with_other_tokens_gets_its_own_drafts(
    proposer: NgramProposer, draft: Any
) -> None:
    draft(proposer, {"a": (TOKENS, 3)})
    assert draft(proposer, {"a": (np.array([7, 8, 9, 4, 7, 8], dtype=np.int32), 2)}) == {"a": [9, 4]}


def test_warm_up_compiles_all_that_a_step_uses(proposer: NgramProposer, draft: Any) -> None:
    proposer.dummy_run(num_tokens=8)
    compiled = (kernels.draft_serial, kernels.draft_parallel, kernels.rehash)
    before = [list(function.signatures) for function in compiled]
    draft(proposer, {"a": (TOKENS, 3), "b": (np.zeros(3000, dtype=np.int32), 3)})
    draft(proposer, {"a": (np.tile(TOKENS, 100), 3)})
    assert all(before)
    assert [list(function.signatures) for function in compiled] == before

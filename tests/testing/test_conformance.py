"""The conformance tests, inherited as a plugin author would, pass for good proposers and fail for bad ones."""

from typing import ClassVar

import pytest

from outrider import hookimpl
from outrider.api import DraftRows, DraftTokens, ProposerError
from outrider.testing.conformance import ProposerConformance
from outrider.testing.proposers import HostileProposer, RandomProposer, SelfProposer


class TestRandom(ProposerConformance):
    proposer = RandomProposer


class TestSelf(ProposerConformance):
    proposer = SelfProposer


class TestByPath(ProposerConformance):
    proposer = "outrider.testing.proposers:SelfProposer"
    options: ClassVar = {"num_layers": 1}
    num_speculative_tokens = 2


class ExpectsNoReturn(RandomProposer):
    """Thinks that a request is added once."""

    def __init__(self, options):
        super().__init__(options)
        self.known = set()

    @hookimpl
    def request_added(self, request_id):
        if request_id in self.known:
            raise RuntimeError(f"{request_id} is here already")
        self.known.add(request_id)


class LeavesHoles(SelfProposer):
    """Runs its model on the newest token only, so its own KV lacks the prompt and the accepted tokens."""

    @hookimpl
    def propose(self, context):
        drafts = [[] for _ in context.requests]
        asked = [i for i, request in enumerate(context.requests) if request.draft_budget]
        if asked:
            newest = [context.requests[i].token_ids[-1:] for i in asked]
            positions = [len(context.requests[i].token_ids) - 1 for i in asked]
            logits = self._forward(context, DraftRows(asked, newest, positions), 0)
            for i, token in zip(
                asked, context.sample(logits, asked, [p + 1 for p in positions]), strict=True
            ):
                drafts[i] = [token]
        return DraftTokens(token_ids=drafts)


def conformance_of(proposer, **options):
    return type("Conformance", (ProposerConformance,), {"proposer": proposer, "options": options})()


@pytest.mark.usefixtures("one_thread")
def test_a_breach_of_contract_fails(tiny_model):
    with pytest.raises(ProposerError, match="outside the vocabulary"):
        conformance_of(HostileProposer, mode="minus_one").test_the_text_is_the_models_own(tiny_model, 0.0)


@pytest.mark.usefixtures("one_thread")
def test_a_life_cycle_that_cannot_take_a_preemption_fails(tiny_model):
    conformance = conformance_of(ExpectsNoReturn)
    conformance.test_the_text_is_the_models_own(tiny_model, 0.0)
    with pytest.raises(ProposerError, match="is here already"):
        conformance.test_also_when_requests_are_preempted(tiny_model, 0.0)


@pytest.mark.usefixtures("one_thread")
def test_reading_kv_that_was_never_written_fails(tiny_model):
    with pytest.raises((ProposerError, AssertionError)):
        conformance_of(LeavesHoles).test_the_text_is_the_models_own(tiny_model, 0.0)

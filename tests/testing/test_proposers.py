"""The rig's proposers, each driven by hand through a context of its own making."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from outrider import SamplingParams
from outrider.api import DraftRequest, DraftTokens, ProposeContext
from outrider.testing.proposers import (
    HARMLESS_MODES,
    HOSTILE_MODES,
    FixedDistributionProposer,
    HiddenStateProposer,
    HostileProposer,
    OracleProposer,
    RandomProposer,
    ScheduleProposer,
)

VOCAB = 64


def request(tokens, budget, request_id="r", num_rows=1):
    token_ids = np.array(tokens, np.int32)
    token_ids.flags.writeable = False
    return DraftRequest(
        request_id=request_id,
        token_ids=token_ids,
        num_prompt_tokens=1,
        num_new_tokens=1,
        num_computed_tokens=len(tokens) - 1 - num_rows,
        num_rows=num_rows,
        draft_budget=budget,
        sampling_params=SamplingParams(),
        seed=0,
    )


def context(*requests, hidden_states=None, aux_hidden_states=()):
    return ProposeContext(
        requests=tuple(requests),
        row_start_loc=np.cumsum([0, *(r.num_rows for r in requests)]).astype(np.int32),
        hidden_states=hidden_states,
        aux_hidden_states=aux_hidden_states,
        attention=None,
        sample=lambda logits, requests, positions: logits.argmax(-1).tolist(),
    )


def lm_head():
    head = torch.nn.Linear(8, VOCAB, bias=False)
    torch.nn.init.normal_(head.weight, generator=torch.Generator().manual_seed(1))
    return head.requires_grad_(False)


def build(proposer_class, **options):
    proposer = proposer_class(proposer_class.Options(**options))
    proposer.load_model(SimpleNamespace(vocab_size=VOCAB, lm_head=lm_head()))
    return proposer


TRUTH = [[1, 2, 3, 63, 5, 6], [1, 9, 8, 7]]


def drafts(proposer, *requests):
    return proposer.propose(context(*requests)).token_ids


def test_oracle_continues_the_truth_that_matches():
    oracle = build(OracleProposer, truth=TRUTH)
    answers = drafts(
        oracle, request([1, 2], 2), request([1, 9], 9), request([1, 2, 4], 3), request([1, 2, 3, 63, 5, 6], 3)
    )
    assert answers == [[3, 63], [8, 7], [], []]


def test_oracle_plants_wrong_tokens_of_the_vocabulary():
    oracle = build(OracleProposer, truth=TRUTH, wrong_at=[3, 5])
    assert drafts(oracle, request([1, 2], 4)) == [[3, 0, 5, 7]]


def test_schedule_counts_per_request_and_starts_over_when_it_is_gone():
    scheduled = build(ScheduleProposer, truth=TRUTH, schedule=[3, 0, 2])
    a, b = request([1, 2], 9, "a"), request([1, 2], 1, "b")
    assert drafts(scheduled, a) == [[3, 63, 5]]
    assert drafts(scheduled, a, b) == [[], [3]]
    assert drafts(scheduled, a, b) == [[3, 63], []]
    scheduled.request_finished(request_id="a")
    assert drafts(scheduled, a, b) == [[3, 63, 5], [3]]


def test_random_drafts_fill_the_budget_and_follow_the_seed():
    first, again, other = (build(RandomProposer, seed=seed) for seed in (1, 1, 2))
    batch = [request([1], 40, "a"), request([1], 0, "b")]
    drafted = [drafts(proposer, *batch) for proposer in (first, again, other)]
    assert [len(d) for d in drafted[0]] == [40, 0]
    assert drafted[0][0].tolist() == drafted[1][0].tolist() != drafted[2][0].tolist()
    assert set(drafted[0][0].tolist()) <= set(range(VOCAB))


def test_fixed_distribution_reports_what_it_draws_from():
    proposer = FixedDistributionProposer(FixedDistributionProposer.Options(probs=[0, 2, 1, 1]))
    answer = proposer.propose(context(request([1], 2000, "a"), request([1], 0, "b")))
    assert [tuple(rows.shape) for rows in answer.probs] == [(2000, 4), (0, 4)]
    assert answer.probs[0][7].tolist() == [0, 0.5, 0.25, 0.25]
    counts = np.bincount(answer.token_ids[0], minlength=4)
    assert counts[0] == 0
    assert abs(counts[1] - 1000) < 100
    assert len(answer.token_ids[1]) == 0


@pytest.mark.parametrize("mode", [*HOSTILE_MODES, *HARMLESS_MODES])
def test_every_hostile_mode_does_what_it_says_and_nothing_else_by_accident(mode):
    hostile = build(HostileProposer, mode=mode)
    batch = context(request([1, 2], 2, "a"), request([1, 2], 3, "b"))
    if mode in ("raises", "writes_token_ids", "removes_requests"):
        with pytest.raises((RuntimeError, ValueError, AttributeError)):
            hostile.propose(batch)
        return
    answer = hostile.propose(batch)
    if mode in HARMLESS_MODES:
        assert isinstance(answer, DraftTokens)
        assert [int(token) for token in answer.token_ids[0]] in ([], [1, 1])
        assert answer.token_ids[1] == []


def test_the_hostile_life_cycle_raises():
    hostile = build(HostileProposer, mode="life_cycle_raises")
    for hook in ("request_added", "tokens_committed", "request_preempted", "request_finished"):
        with pytest.raises(RuntimeError):
            getattr(hostile, hook)()


def test_an_unknown_hostile_mode_is_refused():
    with pytest.raises(ValidationError, match="unknown mode"):
        HostileProposer.Options(mode="polite")


def test_hidden_state_rows_are_kept_by_position_and_drive_the_drafts():
    proposer = build(HiddenStateProposer, aux_hidden_layers=(0, 2))
    rows, aux0, aux2 = torch.randn(3, 3, 8, generator=torch.Generator().manual_seed(0))
    batch = context(
        request([1, 2, 3, 4], 3, "a", num_rows=2),
        request([1, 2], 0, "b", num_rows=1),
        hidden_states=rows,
        aux_hidden_states=[aux0, aux2],
    )
    answer = proposer.propose(batch)
    assert list(proposer.hidden_states["a"]) == [1, 2]
    assert torch.equal(proposer.hidden_states["a"][2], rows[1])
    assert torch.equal(proposer.hidden_states["b"][0], rows[2])
    assert torch.equal(proposer.aux_hidden_states[2]["a"][1], aux2[0])
    assert [len(d) for d in answer.token_ids] == [3, 0]
    changed = context(*batch.requests, hidden_states=rows.roll(1, 0), aux_hidden_states=[aux0, aux2])
    assert proposer.propose(changed).token_ids != answer.token_ids
    assert [newest for _, newest in proposer.newest_tokens[:2]] == [4, 2]

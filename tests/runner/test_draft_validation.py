"""Nothing that a proposer returns is trusted."""

import numpy as np
import pytest
import torch

from outrider.api import DraftRequest, DraftTokens, ProposerCapabilities, SamplingParams
from outrider.runner.draft_validation import validate_drafts

VOCAB = 10


def request(name, budget=3):
    tokens = np.arange(5, dtype=np.int32)
    return DraftRequest(name, tokens, 5, 5, 0, 5, budget, SamplingParams(), 0)


def check(drafts, requests=None, **capabilities):
    requests = [request("a"), request("b")] if requests is None else requests
    return validate_drafts(drafts, requests, ProposerCapabilities(**capabilities), VOCAB)


@pytest.mark.parametrize(
    "tokens",
    [[1, 2, 3], (1, 2, 3), np.array([1, 2, 3]), np.array([1, 2, 3], np.uint8), torch.tensor([1, 2, 3])],
)
def test_any_sequence_of_integers_is_a_draft(tokens):
    valid = check(DraftTokens(token_ids=[tokens, []]))

    assert valid.token_ids == [[1, 2, 3], []]
    assert all(type(token) is int for token in valid.token_ids[0])
    assert valid.errors == []


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        ([1, 2, 3, 4], "draft budget is 3"),
        ([-1], "outside the vocabulary"),
        ([VOCAB], "outside the vocabulary"),
        ([2**70], "not a flat sequence of integers"),
        ([1.0], "not a flat sequence of integers"),
        ([True], "not a flat sequence of integers"),
        (["a"], "not a flat sequence of integers"),
        ([[1], [2]], "not a flat sequence of integers"),
        ([[1], [2, 3]], "not a sequence of token ids"),
        (None, "not a flat sequence of integers"),
        (7, "not a flat sequence of integers"),
    ],
)
def test_an_invalid_draft_costs_only_its_own_request(tokens, said):
    valid = check(DraftTokens(token_ids=[tokens, [5]]))

    assert valid.token_ids == [[], [5]]
    assert len(valid.errors) == 1
    assert "'a'" in valid.errors[0]
    assert said in valid.errors[0]


@pytest.mark.parametrize(
    ("drafts", "said"),
    [
        (None, "returned NoneType"),
        ([[1], [2]], "returned list"),
        (DraftTokens(token_ids=[[1]]), "1 entries for a batch of 2"),
        (DraftTokens(token_ids=[[1]] * 3), "3 entries for a batch of 2"),
        (DraftTokens(token_ids=5), "`token_ids` is int"),
        (
            DraftTokens(token_ids=[[1], []], parents=[[-1], []]),
            "without declaring ProposerCapabilities.trees",
        ),
        (DraftTokens(token_ids=[[1], []], probs=[torch.ones(1, VOCAB)] * 2), "declare probs=False"),
        (DraftTokens(token_ids=[[1], []], confidence=[[0.5], []]), "declare confidence=False"),
    ],
)
def test_a_fault_of_the_whole_answer_drops_every_draft(drafts, said):
    valid = check(drafts)

    assert valid.token_ids == [[], []]
    assert len(valid.errors) == 1
    assert said in valid.errors[0]


def test_promised_probabilities_must_come():
    assert "declare probs=True" in check(DraftTokens(token_ids=[[1], [2]]), probs=True).errors[0]


@pytest.mark.parametrize(
    ("probs", "said"),
    [
        (None, "probs is NoneType"),
        (torch.full((2, VOCAB), 0.1), "has shape (2, 10)"),
        (torch.full((1, VOCAB), 0.2), "not a distribution"),
        (torch.full((1, VOCAB), float("nan")), "not a distribution"),
        (torch.eye(VOCAB)[2:3], "probability 0"),
    ],
)
def test_a_distribution_must_be_the_one_the_token_was_drawn_from(probs, said):
    fine = torch.full((1, VOCAB), 0.1)

    valid = check(DraftTokens(token_ids=[[1], [1]], probs=[probs, fine]), probs=True)

    assert valid.token_ids == [[], [1]]
    assert said in valid.errors[0]


def test_confidence_is_a_number_per_token():
    valid = check(DraftTokens(token_ids=[[1], [1, 2]], confidence=[[1.5], [0.1, 0.9]]), confidence=True)

    assert valid.token_ids == [[], [1, 2]]
    assert "[0, 1]" in valid.errors[0]

"""Acceptance: every draft is compared with what the target emits, verified or not."""

from __future__ import annotations

import random

import pytest

from outrider.engine.draft_acceptance import Acceptance


def test_a_draft_is_compared_token_by_token_over_the_steps_that_follow() -> None:
    acceptance = Acceptance(3)
    for _ in range(200):
        acceptance.add_draft("r", [7, 8, 9], None)
        for token in (7, 8, 5):  # a step each: nothing was verified
            acceptance.add_tokens("r", [token])
    one, two = acceptance.expect("r", 2)
    assert one > 0.9
    assert two > 0.85
    assert len(acceptance.expect("r", 3)) == 2 or acceptance.expect("r", 3)[2] < 0.15


def test_verified_in_one_step_or_not_at_all_it_is_the_same() -> None:
    at_once, later = Acceptance(3), Acceptance(3)
    rng = random.Random(0)
    for _ in range(50):
        draft = [rng.randrange(2) for _ in range(3)]
        emitted = [*draft[: draft.index(0)], 1] if 0 in draft else [*draft, 1]
        for acceptance in (at_once, later):
            acceptance.add_draft("r", draft, None)
        at_once.add_tokens("r", emitted)
        for token in emitted:
            later.add_tokens("r", [token])
    assert at_once.expect("r", 3) == later.expect("r", 3)


def test_a_new_request_starts_from_what_all_of_them_did() -> None:
    acceptance = Acceptance(2)
    for i in range(100):
        acceptance.add_draft(f"r{i}", [1, 1], None)
        acceptance.add_tokens(f"r{i}", [1, 1])
        acceptance.forget(f"r{i}")
    assert acceptance.expect("new", 2)[1] > 0.8


def test_the_request_that_differs_is_told_apart_but_one_token_does_not_convict_it() -> None:
    acceptance = Acceptance(1)
    for _ in range(100):
        for name, truth in (("good", 1), ("bad", 0)):
            acceptance.add_draft(name, [1], None)
            acceptance.add_tokens(name, [truth])
    good, bad = (acceptance.expect(name, 1) or [0.0] for name in ("good", "bad"))
    assert good[0] > 0.8
    assert bad[0] < 0.1
    acceptance.add_draft("good", [1], None)
    acceptance.add_tokens("good", [0])
    acceptance.add_draft("good", [1], None)
    acceptance.add_tokens("good", [1])
    assert acceptance.expect("good", 1)[0] > 0.6


def test_a_request_that_was_just_predicted_well_is_expected_to_go_on_so() -> None:
    acceptance = Acceptance(1)
    rng = random.Random(1)
    right = True
    for _ in range(2000):
        if rng.random() < 0.05:
            right = not right
        acceptance.add_draft("r", [1], None)
        acceptance.add_tokens("r", [int(right)])
    while not right:
        acceptance.add_draft("r", [1], None)
        right = True
        acceptance.add_tokens("r", [1])
    for _ in range(4):
        acceptance.add_draft("r", [1], None)
        acceptance.add_tokens("r", [1])
    after_success = acceptance.expect("r", 1)[0]
    acceptance.add_draft("r", [1], None)
    acceptance.add_tokens("r", [0])
    after_failure = (acceptance.expect("r", 1) or [0.0])[0]
    assert after_success > 0.8
    assert after_failure < 0.3


def test_a_confidence_means_what_it_has_turned_out_to_mean() -> None:
    acceptance = Acceptance(1)
    rng = random.Random(2)
    for _ in range(400):
        sure = rng.random() < 0.5
        acceptance.add_draft("r", [1], [1.0 if sure else 0.0])
        acceptance.add_tokens("r", [int(not sure)])
    assert (acceptance.add_draft("r", [1], [1.0]) or [0.0])[0] < 0.2
    assert acceptance.add_draft("r", [1], [0.0])[0] > 0.8


def test_a_proposer_that_seldom_has_anything_is_expected_to_have_nothing() -> None:
    acceptance = Acceptance(1)
    for i in range(200):
        acceptance.add_draft("r", [1] if i % 10 == 0 else [], None)
        acceptance.add_tokens("r", [1])
    assert (acceptance.expect("r", 1) or [0.0])[0] < 0.3
    assert acceptance.expect("r", 1, is_drafted=True)[0] > 0.7


def test_whether_a_proposer_has_anything_is_expected_by_how_it_did_just_before() -> None:
    """It has something for long, then nothing for long; right is whatever it has."""
    acceptance = Acceptance(1)
    chances = []
    for i in range(400):
        if i in (385, 399):
            chances.append((acceptance.expect("r", 1) or [0.0])[0])
        acceptance.add_draft("r", [1] if i % 20 < 10 else [], None)
        acceptance.add_tokens("r", [1])
    after_drafts, after_nothing = chances
    assert after_drafts > 0.75
    assert after_nothing < 0.25


def test_what_was_forgotten_or_never_known_is_no_error() -> None:
    acceptance = Acceptance(2)
    acceptance.forget("r")
    acceptance.add_tokens("r", [1, 2])
    acceptance.add_draft("r", [1, 2], None)
    acceptance.forget("r")
    acceptance.add_tokens("r", [1])
    assert acceptance.expect("r", 2) == pytest.approx(acceptance.expect("other", 2))

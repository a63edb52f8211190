"""Verification keeps the target's distribution, and the check that says so sees each known mistake."""

import numpy as np
import pytest
import torch
from scipy import stats

from outrider.api import SamplingParams
from outrider.testing.distribution import (
    ACCEPTANCE,
    DRAFT_PROBS,
    NUM_DRAWS,
    TARGET_PROBS,
    assert_distribution,
    chi_square,
    critical_value,
    draw,
    verify_drafts,
)

from ..noise import gumbel_noise

P, Q = np.array(TARGET_PROBS), np.array(DRAFT_PROBS)


# The real verifier -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("position", [0, 7, 8, 100_000])
def test_rejection_gives_the_target_and_accepts_as_often_as_it_can(position):
    drafts = draw(Q, seed=position + 1)
    tokens = verify_drafts(drafts, Q, "rejection", position=position)
    assert_distribution(tokens, P)
    accepted = int((tokens == drafts).sum())
    assert stats.binomtest(accepted, NUM_DRAWS, ACCEPTANCE).pvalue > 1e-4


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
def test_one_hot_drafts_give_the_target_and_both_rules_accept_alike(rule):
    drafts = draw(Q)
    tokens = verify_drafts(drafts, None, rule)
    assert_distribution(tokens, P)
    assert stats.binomtest(int((tokens == drafts).sum()), NUM_DRAWS, float(P @ Q)).pvalue > 1e-4


@pytest.mark.parametrize("token", range(4))
def test_a_drafter_with_one_idea_gives_the_target(token):
    drafts = np.full(NUM_DRAWS, token)
    assert_distribution(verify_drafts(drafts, None, "rejection"), P)
    assert_distribution(verify_drafts(drafts, np.eye(4)[token], "rejection"), P)
    assert_distribution(verify_drafts(drafts, None, "coupled"), P)


@pytest.mark.parametrize("broken", [np.zeros(4), np.full(4, np.nan), -Q, np.full(4, np.inf)])
def test_what_is_no_distribution_counts_as_one_hot(broken):
    drafts = draw(Q)
    tokens = verify_drafts(drafts, broken, "rejection")
    assert np.array_equal(tokens, verify_drafts(drafts, None, "rejection"))


def test_a_draft_to_which_its_own_distribution_gives_nothing_counts_as_one_hot():
    drafts = np.full(NUM_DRAWS, 3)
    assert_distribution(verify_drafts(drafts, np.array([0.5, 0.5, 0.0, 0.0]), "rejection"), P)


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
def test_drafts_sampled_with_the_engines_own_noise_give_the_target(rule):
    position = 7
    noise = np.stack([gumbel_noise(seed, position, 4) for seed in range(NUM_DRAWS)])
    drafts = np.argmax(np.log(Q) + noise, axis=1)
    assert_distribution(drafts, Q)
    tokens = verify_drafts(drafts, Q, rule, position=position)
    assert_distribution(tokens, P)
    if rule == "coupled":
        # With the noise shared it accepts far more often than the 0.2 of P @ Q that independent drafts would get.
        assert (tokens == drafts).mean() > 0.4


def test_drafts_sampled_from_the_target_itself_with_its_noise_are_all_accepted():
    noise = np.stack([gumbel_noise(seed, 7, 4) for seed in range(NUM_DRAWS)])
    drafts = np.argmax(np.log(P) + noise, axis=1)
    assert np.array_equal(verify_drafts(drafts, P, "coupled"), drafts)
    assert np.array_equal(verify_drafts(drafts, P.astype(np.float32), "rejection"), drafts)


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (SamplingParams(top_k=2), [0.5, 0.3, 0, 0]),
        (SamplingParams(top_p=0.9), [0.5, 0.3, 0.15, 0]),
        (SamplingParams(min_p=0.25), [0.5, 0.3, 0.15, 0]),
        (SamplingParams(temperature=0.5), P**2),
        (SamplingParams(temperature=2.0, top_k=3), [0.5**0.5, 0.3**0.5, 0.15**0.5, 0]),
    ],
    ids=repr,
)
def test_the_distribution_that_is_kept_is_the_one_after_the_sampling_parameters(rule, params, expected):
    tokens = verify_drafts(draw(Q), Q, rule, params=params)
    assert_distribution(tokens, np.array(expected) / np.sum(expected))


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
@pytest.mark.parametrize("probs", [None, np.eye(4)[2], Q])
def test_a_draft_outside_top_k_is_never_emitted(rule, probs):
    tokens = verify_drafts(np.full(2000, 2), probs, rule, params=SamplingParams(top_k=2))
    assert set(tokens.tolist()) == {0, 1}


def test_the_scale_of_the_reported_distribution_does_not_matter():
    drafts = draw(Q)
    assert np.array_equal(verify_drafts(drafts, 4 * Q, "rejection"), verify_drafts(drafts, Q, "rejection"))


@pytest.mark.parametrize("seed", range(3))
def test_rejection_gives_the_target_over_a_larger_vocabulary(seed):
    generator = np.random.default_rng(seed)
    p, q = generator.dirichlet(np.full(50, 0.3), 2) + 1e-4
    p, q = p / p.sum(), q / q.sum()
    drafts = draw(q)
    tokens = verify_drafts(drafts, q, "rejection", target_probs=p)
    assert_distribution(tokens, p)
    expected = float(np.minimum(p, q).sum())
    assert stats.binomtest(int((tokens == drafts).sum()), NUM_DRAWS, expected).pvalue > 1e-4


def test_batch_halves_and_types_of_the_reported_distribution_agree():
    drafts = draw(Q, 100)
    q = torch.tensor(Q, dtype=torch.float32)
    whole = verify_drafts(drafts, q, "rejection")
    assert np.array_equal(verify_drafts(drafts[:50], q, "rejection"), whole[:50])
    assert np.array_equal(verify_drafts(drafts, q.repeat(100, 1).double(), "rejection"), whole)


# Wrong verifiers: what each really gives, and that the check refuses it --------------------------------------

uniforms = np.random.default_rng(5).random((2, NUM_DRAWS))


def residual_forgotten():
    """Samples p in place of max(p - q, 0) after a rejection."""
    drafts = draw(Q)
    return np.where(uniforms[0] <= P[drafts] / Q[drafts], drafts, draw(P, seed=9))


def argmax_drafted_but_softmax_reported():
    """A drafter's mistake: the verifier is the real one."""
    return verify_drafts(np.full(NUM_DRAWS, int(Q.argmax())), Q, "rejection")


def argmax_of_p_on_reject():
    drafts = draw(Q)
    return np.where(uniforms[0] <= P[drafts] / Q[drafts], drafts, P.argmax())


def one_uniform_for_accept_and_residual():
    drafts, residual = draw(Q), np.maximum(P - Q, 0) / np.maximum(P - Q, 0).sum()
    recovered = np.searchsorted(np.cumsum(residual)[:-1], uniforms[0], side="right")
    return np.where(uniforms[0] <= P[drafts] / Q[drafts], drafts, recovered)


def recovered_with_the_drafters_noise():
    noise = np.stack([gumbel_noise(seed, 7, 4) for seed in range(NUM_DRAWS)])
    drafts = np.argmax(np.log(Q) + noise, axis=1)
    with np.errstate(divide="ignore"):
        recovered = np.argmax(np.log(np.maximum(P - Q, 0)) + noise, axis=1)
    return np.where(uniforms[0] <= P[drafts] / Q[drafts], drafts, recovered)


@pytest.mark.parametrize(
    ("verifier", "given"),
    [
        (residual_forgotten, [0.35, 0.35, 0.225, 0.075]),
        (argmax_drafted_but_softmax_reported, [0.70, 0.175, 0.0, 0.125]),
        (argmax_of_p_on_reject, [0.60, 0.20, 0.15, 0.05]),
        (one_uniform_for_accept_and_residual, [0.46, 0.34, 0.15, 0.05]),
    ],
)
def test_each_wrong_verifier_fails_the_check(verifier, given):
    tokens = verifier()
    assert_distribution(tokens, given)
    with pytest.raises(AssertionError, match=r"chi-square .* exceeds .*: frequencies .* expected \[0.5, 0.3"):
        assert_distribution(tokens, P)


def test_a_recovered_token_that_shares_the_drafters_noise_fails_the_check():
    with pytest.raises(AssertionError, match="chi-square"):
        assert_distribution(recovered_with_the_drafters_noise(), P)


# The check itself --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("degrees", [1, 2, 3, 10, 63, 1000])
def test_the_critical_value_is_that_of_the_chi_square_distribution(degrees):
    exact = stats.chi2.isf(1e-4, degrees)
    assert exact < critical_value(degrees) < 1.08 * exact


def test_the_statistic_is_pearsons():
    counts = [520, 290, 140, 50]
    assert chi_square(counts, TARGET_PROBS) == pytest.approx(stats.chisquare(counts, P * 1000).statistic)


def test_a_token_that_cannot_occur_fails_whatever_the_rest():
    with pytest.raises(AssertionError, match="chi-square inf"):
        assert_distribution([0] * 500 + [1] * 500 + [2], [0.5, 0.5, 0.0])
    with pytest.raises(AssertionError, match="token 2 is outside the vocabulary of 2"):
        assert_distribution([0, 1, 2], [0.5, 0.5])


def test_draws_follow_what_they_are_drawn_from():
    assert_distribution(draw(Q), Q)
    assert_distribution(draw([0.0, 1.0]), [0.0, 1.0])

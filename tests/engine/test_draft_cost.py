"""Costs: what was measured, what lies between, and what the running engine teaches."""

from __future__ import annotations

import random

import pytest

from outrider.engine.draft_cost import DraftCost, VerifyCost

MEASURED = {1: 0.010, 2: 0.011, 4: 0.012, 9: 0.016, 16: 0.024}


def ratio(cost: VerifyCost, num_rows: int) -> float:
    """How much dearer than one row."""
    return cost.seconds(num_rows) / cost.seconds(1)


def test_the_curve_goes_through_what_was_measured_and_straight_between_and_beyond() -> None:
    cost = VerifyCost(MEASURED)
    assert [cost.seconds(n) for n in MEASURED] == pytest.approx(list(MEASURED.values()))
    assert cost.seconds(3) == pytest.approx(0.0115)
    assert cost.seconds(23) == pytest.approx(0.024 + 7 * (0.024 - 0.016) / 7)


def test_one_measurement_is_enough() -> None:
    assert VerifyCost({1: 0.01}).seconds(9) == pytest.approx(0.01)


def test_more_rows_bound_what_fewer_take() -> None:
    cost = VerifyCost(
        {1: 0.010, 2: 0.050, 4: 0.012, 9: 0.016}
    )  # something else ran while two rows were measured
    assert cost.seconds(2) == pytest.approx(0.012)


def test_a_slower_machine_changes_the_scale_and_not_the_shape() -> None:
    cost = VerifyCost(MEASURED)
    before = ratio(cost, 9)
    for _ in range(100):
        cost.observe(1, 0.020)
    assert cost.seconds(1) == pytest.approx(0.020, rel=0.05)
    assert ratio(cost, 9) == pytest.approx(before, rel=0.1)


def test_a_shape_that_was_measured_wrongly_is_corrected() -> None:
    cost = VerifyCost(MEASURED)
    for _ in range(300):
        cost.observe(1, 0.010)
        cost.observe(5, 0.020)
    assert ratio(cost, 5) == pytest.approx(2.0, rel=0.1)
    assert ratio(cost, 6) > 1.5  # its neighbours go along
    assert ratio(cost, 16) < 3.5  # those far away do not


@pytest.mark.parametrize("num_rows", [1, 5])
def test_spikes_do_not_bend_the_curve(num_rows: int) -> None:
    rng = random.Random(0)
    cost = VerifyCost(MEASURED)
    true = {n: cost.seconds(n) for n in (1, 5)}
    for _ in range(500):
        for n, seconds in true.items():
            spike = 5 if n == num_rows and rng.random() < 0.05 else 1
            cost.observe(n, seconds * spike * rng.lognormvariate(0, 0.05))
    assert ratio(cost, 5) == pytest.approx(true[5] / true[1], rel=0.1)


def test_one_step_that_was_held_up_hardly_changes_the_scale() -> None:
    cost = VerifyCost(MEASURED)
    for _ in range(100):
        cost.observe(1, 0.010)
    cost.observe(1, 1.0)
    assert cost.seconds(1) < 0.012


def test_times_that_cannot_be_are_ignored() -> None:
    cost = VerifyCost(MEASURED)
    cost.observe(1, 0.0)
    cost.observe(1, -1.0)
    assert cost.seconds(1) == pytest.approx(0.010)


def test_a_proposer_costs_a_part_per_call_and_a_part_per_token() -> None:
    cost = DraftCost()
    for length in [8, 0, 3, 8, 1, 8] * 5:
        cost.observe(length, 0.002 + 0.0005 * length)
    assert cost.per_call == pytest.approx(0.002, rel=0.05)
    assert cost.per_token == pytest.approx(0.0005, rel=0.05)


def test_what_cannot_be_told_apart_counts_per_token() -> None:
    cost = DraftCost()
    for _ in range(50):
        cost.observe(4, 0.004)
    assert cost.seconds(4) == pytest.approx(0.004, rel=0.01)
    assert cost.seconds(1) == pytest.approx(0.001, rel=0.05)


def test_a_slow_first_call_is_forgotten_at_the_second_and_a_late_spike_hardly_counts() -> None:
    cost = DraftCost()
    cost.observe(4, 3.0)  # it compiled
    for _ in range(20):
        cost.observe(4, 0.001)
    assert cost.seconds(4) == pytest.approx(0.001, rel=0.01)
    cost.observe(4, 5.0)
    assert cost.seconds(4) < 0.0013


def test_a_proposer_that_has_become_slower_is_noticed() -> None:
    cost = DraftCost()
    for seconds in [0.001] * 50 + [0.01] * 150:
        cost.observe(4, seconds)
    assert cost.seconds(4) == pytest.approx(0.01, rel=0.05)

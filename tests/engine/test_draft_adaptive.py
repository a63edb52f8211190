"""Adaptive drafting in a simulated world: never slower than plain decoding, and near the best fixed length."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from statistics import mean
from typing import Any

import pytest

from outrider.engine.draft_acceptance import Acceptance
from outrider.engine.draft_adaptive import AdaptiveDrafts
from outrider.engine.draft_cost import VerifyCost

from .draft_simulation import RIGHT, WRONG, World, skinny

STEP = 0.01
LENGTH = 8


def measured(world: World, spread: float = 0.0) -> VerifyCost:
    """What start-up would have measured."""
    rng = random.Random(world.seed)
    return VerifyCost({n: world.verify(n) * rng.lognormvariate(0, spread) for n in (1, 2, 4, 9, 16, 32, 64)})


def any_world(seed: int, dearest_call: float) -> World:
    """A world at random; a call of the proposer takes up to `dearest_call` plain steps."""
    rng = random.Random(seed)
    num_requests, step = rng.choice([1, 1, 2, 8]), 10 ** rng.uniform(-3, -1)
    per_call = step * dearest_call * 10 ** rng.uniform(-4, 0)
    per_token = step * 10 ** rng.uniform(-4, -1)
    return World(
        [rng.random() ** rng.choice([0.5, 1, 3]) for _ in range(num_requests)],
        skinny(step, 10 ** rng.uniform(-2, 0), rng.choice([1, 2, 4, 8])),
        lambda length: per_call + per_token * length,
        other=0.02 * step,
        noise=0.05,
        seed=seed,
    )


@pytest.mark.parametrize("seed", range(25))
def test_any_stationary_world_is_served_nearly_as_well_as_by_its_best_fixed_length(seed: int) -> None:
    world = any_world(seed, dearest_call=0.2)
    policy = AdaptiveDrafts(LENGTH, measured(world, spread=0.05))
    fixed = [world.expect(length) for length in range(LENGTH + 1)]
    assert world.run(policy, 1000) >= 0.97 * fixed[0]
    assert world.run(policy, 1000) >= 0.95 * max(fixed)


@pytest.mark.parametrize("seed", range(25))
def test_a_proposer_however_dear_never_makes_it_slower(seed: int) -> None:
    world = any_world(seed, dearest_call=20)
    assert world.run(AdaptiveDrafts(LENGTH, measured(world, spread=0.05)), 2000) >= 0.97 * world.expect(0)


@pytest.mark.parametrize("seconds", [1e-5, 0.1 * STEP, 10 * STEP])
@pytest.mark.parametrize("num_requests", [1, 8])
def test_a_drafter_that_is_always_wrong_is_hardly_verified(num_requests: int, seconds: float) -> None:
    world = World([0.0] * num_requests, skinny(STEP, 0.1), lambda length: seconds, noise=0.05)
    speed = world.run(AdaptiveDrafts(LENGTH, measured(world)), 2000)
    assert sum(world.num_verified) < 20 * num_requests
    assert sum(world.num_verified[200:]) == 0
    assert speed >= 0.975 * world.expect(0)


def test_a_dear_drafter_that_is_always_wrong_is_asked_rarely_and_a_cheap_one_always() -> None:
    dear = World([0.0], skinny(STEP, 0.1), lambda length: 0.2 * STEP)
    cheap = World([0.0], skinny(STEP, 0.1), lambda length: 0.002 * STEP)
    for world in (dear, cheap):
        world.run(AdaptiveDrafts(LENGTH, measured(world)), 1000)
    assert dear.num_asked < 60
    assert cheap.num_asked == 1000


def test_what_was_found_not_to_pay_is_looked_at_again_only_now_and_then_until_something_is_learnt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Estimates of a large batch take as long as a small part of a step: too long for nothing."""
    num_estimates = 0
    expect = Acceptance.expect

    def counted(*args: Any, **more: Any) -> list[float]:
        nonlocal num_estimates
        num_estimates += 1
        return expect(*args, **more)

    monkeypatch.setattr(Acceptance, "expect", counted)
    world = World([0.0] * 8, skinny(STEP, 0.1), lambda length: 10 * STEP)
    world.run(AdaptiveDrafts(LENGTH, measured(world)), 2000)
    num_steps_with_lessons = world.num_asked * (LENGTH + 1)
    assert num_estimates <= 8 * (2000 / 16 + num_steps_with_lessons + 1)
    assert num_estimates < 0.2 * 8 * 2000


def held_up_now_and_then() -> Callable[[int], float]:
    rng = random.Random(0)
    return lambda length: 10 * STEP if rng.random() < 0.1 else 0.005 * STEP


def slow_from_a_hundred_calls_on() -> Callable[[int], float]:
    calls = itertools.count()
    return lambda length: 5 * STEP if next(calls) > 100 else 0.005 * STEP


@pytest.mark.parametrize("answers", [0.0, 1.0])
@pytest.mark.parametrize("latency", [held_up_now_and_then, slow_from_a_hundred_calls_on])
def test_a_useless_drafter_whose_calls_differ_in_length_costs_no_more_than_another(
    latency: Callable[[], Callable[[int], float]], answers: float
) -> None:
    world = World([0.0], skinny(STEP, 0.1), latency(), answers=answers)
    assert world.run(AdaptiveDrafts(LENGTH, measured(world)), 3000) >= 0.97 * world.expect(0)


def test_a_drafter_that_is_always_right_gets_all_the_room() -> None:
    world = World([1.0] * 2, skinny(STEP, 0.05), lambda length: 1e-5)
    world.run(AdaptiveDrafts(LENGTH, measured(world)), 100)
    assert world.num_verified[20:] == [2 * LENGTH] * 80


def test_a_drafter_that_becomes_good_is_noticed_and_so_is_one_that_becomes_bad() -> None:
    world = World([0.0], skinny(STEP, 0.1), lambda length: 0.05 * STEP, noise=0.05)
    policy = AdaptiveDrafts(LENGTH, measured(world))
    world.run(policy, 1000)
    world.chances = [0.95]
    world.run(policy, 400)
    assert world.run(policy, 300) >= 0.95 * max(world.expect(length) for length in range(9))
    world.chances = [0.0]
    world.run(policy, 100)
    assert world.run(policy, 1000) >= 0.97 * world.expect(0)


def test_a_dear_drafter_that_becomes_good_is_noticed_from_short_drafts() -> None:
    """Those of full length are too dear to be tried often."""
    gains = []
    for seed in range(8):
        world = World([0.0], skinny(STEP, 0.1), lambda length: 0.1 * STEP * length, noise=0.05, seed=seed)
        policy = AdaptiveDrafts(LENGTH, measured(world))
        world.run(policy, 1000)
        world.chances = [0.9]
        gains.append(world.run(policy, 400) / world.expect(0))
    assert mean(gains) > 1.2


def test_a_drafter_that_takes_longer_than_a_step_and_becomes_good_is_noticed() -> None:
    world = World([0.0], skinny(STEP, 0.02), lambda length: 2 * STEP, noise=0.05)
    policy = AdaptiveDrafts(LENGTH, measured(world))
    world.run(policy, 1000)
    world.chances = [1.0]
    world.run(policy, 4000)
    assert world.run(policy, 300) >= 0.95 * max(world.expect(length) for length in range(9))


def test_noise_does_not_make_a_draft_that_costs_a_little_too_much_look_worth_it() -> None:
    worlds = [World([0.5], skinny(STEP, 1.05 * 0.5), other=0, noise=0.05, seed=seed) for seed in range(24)]
    for world in worlds:
        world.run(AdaptiveDrafts(LENGTH, measured(world, spread=0.05)), 1500)
    assert mean(sum(world.num_verified) for world in worlds) < 0.12 * 1500


def test_requests_that_end_early_hold_those_that_stay_up_little() -> None:
    """Drafts make the good half end early; the batch then still waits for the others, whose steps were longer."""
    gains = []
    for seed in range(8):
        chances = [0.9] * 4 + [0.1] * 4
        world = World(chances, skinny(STEP, 0.1), num_tokens=100, noise=0.05, seed=seed)
        world.run(AdaptiveDrafts(LENGTH, measured(world)), 100)
        gains.append(100 * (world.verify(8) + world.other) / world.seconds)
    assert mean(gains) > 0.95


def test_a_step_that_was_held_up_outside_the_forward_does_not_make_rows_look_cheap() -> None:
    world = World([0.2], skinny(STEP, 0.3))
    policy = AdaptiveDrafts(LENGTH, measured(world))
    world.run(policy, 300)
    policy.observe_step(1, 1, STEP, 100 * STEP, has_prompt=False)
    assert policy.lengths({"r0": [RIGHT] * LENGTH}, {}, 1) == {"r0": 0}


def test_requests_are_told_apart() -> None:
    world = World([0.95, 0.02], skinny(STEP, 0.1), lambda length: 0.02 * STEP, noise=0.05)
    policy = AdaptiveDrafts(LENGTH, measured(world))
    world.run(policy, 300)
    both = {name: [RIGHT] * LENGTH for name in ("r0", "r1")}
    lengths = policy.lengths(both, {}, 2)
    assert lengths["r0"] >= 4
    assert lengths["r1"] <= 1


def test_confidence_is_learnt_whatever_its_scale() -> None:
    def upside_down(is_right: bool) -> float:
        return 0.2 if is_right else 0.8

    blind = World([0.5], skinny(STEP, 0.3))
    telling = World([0.5], skinny(STEP, 0.3), confidence=upside_down)
    gain = telling.run(AdaptiveDrafts(LENGTH, measured(telling)), 600) / blind.run(
        AdaptiveDrafts(LENGTH, measured(blind)), 600
    )
    assert gain > 1.15


def test_sampled_drafts_are_cut_without_a_look_at_them() -> None:
    world = World([0.6], skinny(STEP, 0.15), confidence=lambda is_right: 0.9 if is_right else 0.1)
    policy = AdaptiveDrafts(LENGTH, measured(world), sampled_drafts=True)
    world.run(policy, 300)
    first = [RIGHT] * LENGTH, [0.9] * LENGTH
    second = [WRONG] * LENGTH, [0.1] * LENGTH
    lengths = []
    for tokens, confidence in (first, second):
        lengths.append(policy.lengths({"r0": tokens}, {"r0": confidence}, 1)["r0"])
    assert lengths[0] == lengths[1] > 0


def test_sampled_drafts_that_become_good_are_noticed_although_only_verified_ones_teach() -> None:
    world = World([0.0], skinny(STEP, 0.05), noise=0.05)
    policy = AdaptiveDrafts(LENGTH, measured(world), sampled_drafts=True)
    assert world.run(policy, 1000) >= 0.97 * world.expect(0)
    world.chances = [0.95]
    world.run(policy, 2000)
    assert world.run(policy, 300) >= 0.9 * max(world.expect(length) for length in range(9))


def test_what_is_not_verified_teaches() -> None:
    world = World([0.0], skinny(STEP, 0.1))
    policy = AdaptiveDrafts(LENGTH, measured(world))
    world.run(policy, 300)
    assert sum(world.num_verified[100:]) == 0
    world.chances, world.num_verified = [1.0], []
    world.run(policy, 100)
    assert world.num_verified[-1] == LENGTH


def test_a_proposer_that_runs_anyway_is_not_charged_for_it() -> None:
    """Its cache must follow the target in every step, so only what a draft adds counts."""
    world = World([0.5], skinny(STEP, 0.05), lambda length: 0.8 * STEP + 0.01 * STEP * length)
    policies = [AdaptiveDrafts(LENGTH, measured(world), always_asked=anyway) for anyway in (False, True)]
    num_verified = []
    for policy in policies:
        policy.observe_proposal({"r0": 0}, 0.8 * STEP)
        world.num_verified = []
        world.run(policy, 300)
        num_verified.append(sum(world.num_verified[-100:]))
    assert num_verified[0] < 20
    assert num_verified[1] > 100


def test_a_jump_in_the_cost_of_rows_does_not_hide_what_is_behind_it() -> None:
    def in_tiles(num_rows: int) -> float:
        return STEP * (1 if num_rows == 1 else 1.6 if num_rows <= 9 else 3)

    world = World([0.8], in_tiles)
    world.run(AdaptiveDrafts(LENGTH, measured(world)), 200)
    assert min(world.num_verified[50:]) >= 6


def test_every_request_has_an_entry_in_order_and_no_more_than_its_room() -> None:
    policy = AdaptiveDrafts(4, VerifyCost({1: STEP, 8: 1.1 * STEP}))
    assert policy.budgets({"a": 0, "b": 0}) == {"a": 0, "b": 0}
    policy.observe_step(3, 3, STEP, 0.0, has_prompt=False)
    budgets = policy.budgets({"a": 3, "b": 0, "c": 9})
    assert list(budgets.items()) == [("a", 3), ("b", 0), ("c", 4)]
    policy.observe_proposal(budgets, 100 * STEP)  # from now on too dear
    budgets = policy.budgets({"c": 9, "b": 0, "a": 3})
    assert list(budgets.items()) == [("c", 0), ("b", 0), ("a", 0)]


def test_steps_with_rows_of_a_prompt_say_nothing_about_costs() -> None:
    """Or a dear proposer would look cheap beside them."""
    world = World([0.0], skinny(STEP, 0.1), lambda length: 2 * STEP)
    policy = AdaptiveDrafts(LENGTH, measured(world))
    world.run(policy, 100)
    for _ in range(20):
        policy.observe_step(1, 500, 50 * STEP, STEP, has_prompt=True)
        assert policy.budgets({"r0": LENGTH}) == {"r0": 0}

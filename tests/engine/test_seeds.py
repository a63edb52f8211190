"""A seed makes a request's tokens its own; a request without one is given one, and told."""

from __future__ import annotations

from outrider.engine.request_output import RequestOutput

from .fake_runner import oracle
from .harness import Harness


def test_a_seeded_request_does_not_depend_on_its_neighbours_nor_on_a_preemption() -> None:
    def run(neighbours: int, num_blocks: int) -> tuple[RequestOutput, int]:
        harness = Harness(num_speculative_tokens=3, drafter=oracle(wrong_at=[9]), num_blocks=num_blocks)
        for index in range(neighbours):
            harness.add(f"n{index}", [1, 2, 3], max_tokens=14)
        harness.add("mine", [1, 2, 3], max_tokens=14, seed=42)
        output = harness.run()["mine"]
        harness.assert_clean()
        return output, harness.events.names("mine").count("preempted")

    alone, _ = run(0, 64)
    batched, _ = run(2, 64)
    crowded, num_preemptions = run(2, 8)
    assert num_preemptions > 0
    assert alone.seed == batched.seed == crowded.seed == 42
    assert alone.outputs[0].token_ids == batched.outputs[0].token_ids == crowded.outputs[0].token_ids


def test_unseeded_requests_differ_and_report_a_seed_that_repeats_them() -> None:
    harness = Harness()
    for name in ("a", "b"):
        harness.add(name, [1, 2, 3], max_tokens=10)
    outputs = harness.run()
    assert outputs["a"].seed != outputs["b"].seed
    assert outputs["a"].outputs[0].token_ids != outputs["b"].outputs[0].token_ids
    harness.add("again", [1, 2, 3], max_tokens=10, seed=outputs["a"].seed)
    assert harness.run()["again"].outputs[0].token_ids == outputs["a"].outputs[0].token_ids


def test_drawn_seeds_follow_from_the_engine_seed_and_from_nothing_else() -> None:
    def seeds(engine_seed: int, *, with_others: bool) -> list[int | None]:
        harness = Harness(seed=engine_seed)
        for index in range(3):
            if with_others:
                harness.add(f"seeded{index}", [1], seed=7)
            harness.add(f"r{index}", [1])
        outputs = harness.run()
        return [outputs[f"r{index}"].seed for index in range(3)]

    assert seeds(1, with_others=False) == seeds(1, with_others=True)
    assert seeds(1, with_others=False) != seeds(2, with_others=False)


def test_seed_zero_is_a_seed() -> None:
    harness = Harness()
    harness.add("r", [1, 2], seed=0)
    assert harness.run()["r"].seed == 0

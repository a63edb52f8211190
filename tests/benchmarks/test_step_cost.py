"""Steps of a given shape through the real runner, and what is made of their times."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from step_cost import CONTEXTS, Measured, cases_of, measure, tables
from step_runner import Case, Runner, Sample

from outrider import LLM
from outrider.engine.outputs import ModelRunnerOutput, SchedulerOutput
from outrider.testing.tiny_models import tiny_transformer


class Spy:
    """The runner of an engine, and the plans it was given."""

    def __init__(self, runner: Any) -> None:
        self.runner = runner
        self.plans: list[SchedulerOutput] = []

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        self.plans.append(plan)
        return self.runner.execute(plan)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    backend = "outrider.testing.torch_attention:TorchAttentionBackend"
    folder = tiny_transformer(tmp_path_factory.mktemp("tiny"))
    with LLM(str(folder), attention_backend=backend, max_num_seqs=3, num_kv_blocks=12) as llm:
        yield llm


@pytest.mark.parametrize("case", [Case(1, 40), Case(5, 40), Case(3, 17, num_reqs=3), Case(20, 20)])
def test_a_step_has_the_rows_and_the_context_that_were_asked_for(llm: LLM, case: Case) -> None:
    core: Any = llm.engine.core
    spy = core.runner = Spy(core.runner)
    try:
        runner = Runner(llm, temperature=0.0)
        runner.measure(Case(2, 9, num_reqs=2))
        sample = runner.measure(case)
    finally:
        core.runner = spy.runner
    assert sample.seconds > sample.model_seconds > 0
    plan = spy.plans[-1]
    assert list(plan.num_scheduled_tokens.values()) == [case.num_rows] * case.num_reqs
    drafts = 0 if case.is_prompt else case.num_rows - 1
    assert sum(map(len, plan.scheduled_spec_decode_tokens.values())) == drafts * case.num_reqs
    requests = plan.scheduled_new_reqs if case.is_prompt else plan.scheduled_cached_reqs
    assert [one.num_computed_tokens + case.num_rows for one in requests] == [case.context] * case.num_reqs
    assert spy.plans[2].finished_req_ids == {"000", "001"}  # those before


def test_the_first_round_does_not_count_and_each_begins_elsewhere() -> None:
    order = []

    class System:
        def __init__(self, name: str) -> None:
            self.name = name

        def measure(self, case: Case) -> Sample:
            order.append(self.name)
            return Sample(1.0, 0.5)

    case = Case(1, 4)
    results = measure([(name, System(name), case) for name in "abc"], 2, lambda _: None)
    assert "".join(order) == "abc" + "bca" + "cab"
    assert [len(one.samples) for one in results.values()] == [2, 2, 2]


def test_the_tables_show_every_shape_and_the_formats_side_by_side() -> None:
    longest = CONTEXTS[2]
    cases = cases_of(longest)
    assert max(case.context for case in cases) == longest
    results = {
        (name, case): Measured(name, case, [Sample(seconds, seconds / 2), Sample(9.0, 8.0)])
        for name, factor in (("outrider float32", 2.0), ("outrider int8", 1.0), ("other", 3.0))
        for case in cases
        for seconds in [factor * 1e-3 * case.num_rows * case.num_reqs]
    }
    rows, contexts, batches, outside, prompt = (
        table.splitlines()[2:]
        for table in tables(results, ["outrider float32", "outrider int8"], ["other"], longest)
    )
    assert rows[:4] == [
        "| rows | float32 ms | int8 ms | float32 / first | int8 / first |",
        "| ---: | ---: | ---: | ---: | ---: |",
        "| 1 | 2.00 | 1.00 | 1.00 | 1.00 |",
        "| 2 | 4.00 | 2.00 | 2.00 | 2.00 |",
    ]
    # Each number of rows has a first line of its own.
    assert contexts[5] == "| 5 | 128 | 10.00 | 5.00 | 1.00 | 1.00 |"
    assert batches[3] == "| 2 | 4.00 | 2.00 | 2.00 | 2.00 |"
    assert outside[2] == "| 1 | 50.0% | 50.0% |"
    assert prompt == [
        "| system | ms |",
        "| :--- | ---: |",
        "| outrider float32 | 1024.00 |",
        "| outrider int8 | 512.00 |",
        "| other | 1536.00 |",
    ]
    # One row at the shortest context stands in three tables, five and nine rows in two; the prompt is in its own.
    assert sum(len(table) - 2 for table in (rows, contexts, batches)) == len(cases) - 1 + 4

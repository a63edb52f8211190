"""From measured runs to the numbers of the table."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

from outrider.api import ConfigError
from outrider.config import SpeculativeConfig
from outrider.engine.request_output import CompletionOutput, RequestMetrics, RequestOutput
from outrider.entrypoints.bench import BatchRun, BenchResult, Method, parse_methods
from outrider.entrypoints.bench_report import as_json, footnotes, table, time_table
from outrider.entrypoints.bench_summary import Difference, summarize
from outrider.entrypoints.prompt_files import FilePrompt
from outrider.metrics.stats import EngineStats

PROMPTS = [FilePrompt("q0", "easy", "a"), FilePrompt("q1", "hard", "b")]


def output(token_ids: list[int], error: str | None = None) -> RequestOutput:
    return RequestOutput(
        request_id="0",
        prompt=None,
        prompt_token_ids=[1, 2],
        outputs=[CompletionOutput(finish_reason="length", _token_ids=token_ids, _stop=len(token_ids))],
        finished=True,
        metrics=RequestMetrics(),
        error=error,
    )


def run(method: str, prompt: int, token_ids: list[int], seconds: float, repeat: int = 0) -> BatchRun:
    return BatchRun(
        method=method,
        repeat=repeat,
        batch=prompt,
        prompts=[PROMPTS[prompt]],
        outputs=[output(token_ids)],
        seconds=seconds,
    )


def result(runs: list[BatchRun]) -> BenchResult:
    labels = list(dict.fromkeys(one.method for one in runs))
    methods = [Method(m, None if m == "plain" else SpeculativeConfig(method=m)) for m in labels]
    stats = {
        label: EngineStats(num_steps=4, model_seconds=0.125, draft_seconds=0.25, verify_seconds=0.5)
        for label in labels
    }
    for label in labels:
        stats[label].spec.observe(num_draft_tokens=2, num_accepted_tokens=1, num_emitted_tokens=2)
    return BenchResult(methods, runs, stats)


def test_speeds_are_pooled_and_compared_with_plain_of_the_same_session() -> None:
    plain, fast = summarize(
        result(
            [
                run("plain", 0, [1, 2, 3, 4], 2.0),
                run("fast", 0, [1, 2, 3, 4], 1.0),
                run("plain", 1, [5, 6], 2.0),
                run("fast", 1, [5, 6], 2.0),
            ]
        )
    )
    assert (plain.num_tokens, plain.seconds, plain.tokens_per_second) == (6, 4.0, 1.5)
    assert (fast.tokens_per_second, fast.median_tokens_per_second) == (2.0, 2.5)
    assert (plain.speed_up, fast.speed_up) == (1.0, 2.0 / 1.5)
    assert [(one.category, one.speed_up) for one in fast.categories] == [("easy", 2.0), ("hard", 1.0)]
    assert (fast.num_identical, fast.num_compared, fast.differences) == (2, 2, [])
    assert (fast.model_seconds, fast.runner_seconds, fast.draft_seconds) == (0.125, 0.375, 0.25)
    assert (fast.num_steps, fast.other_seconds, fast.outside_model) == (4, 2.25, 1 - 0.125 / 3.0)
    assert (fast.mean_acceptance_length, fast.acceptance_rate_per_pos) == (2.0, [1.0, 0.0])


def test_a_category_has_its_spread_over_the_repeats_and_its_own_acceptance() -> None:
    runs = [
        run("plain", 0, [1, 2], 1.0),
        run("fast", 0, [1, 2], 0.5),
        run("plain", 1, [3], 1.0),
        run("fast", 1, [3], 1.0),
        run("plain", 0, [1, 2], 3.0, repeat=1),
        run("fast", 0, [1, 2], 3.5, repeat=1),
        run("plain", 1, [3], 1.0, repeat=1),
        run("fast", 1, [3], 1.0, repeat=1),
    ]
    for one in runs:
        if one.method == "fast" and one.category == "easy":
            one.outputs[0].metrics.observe(num_draft_tokens=2, num_accepted_tokens=1, num_emitted_tokens=2)
    summaries = summarize(result(runs))
    easy, hard = summaries[1].categories
    assert (easy.category, easy.num_prompts, easy.num_tokens, easy.seconds) == ("easy", 1, 4, 4.0)
    assert (easy.speed_up, easy.speed_up_per_repeat, easy.speed_up_of_best) == (1.0, [2.0, 3.0 / 3.5], 2.0)
    assert (easy.mean_acceptance_length, hard.mean_acceptance_length) == (2.0, None)
    assert "fast: speed-up easy 1.00x (0.86 to 2.00), hard 1.00x (1.00 to 1.00)" in footnotes(summaries)


def test_the_median_is_over_prompts_not_runs() -> None:
    [plain] = summarize(
        result([run("plain", 0, [1], 1.0), run("plain", 1, [1], 0.1), run("plain", 0, [1], 3.0, repeat=1)])
    )
    assert plain.median_tokens_per_second == pytest.approx((0.5 + 10.0) / 2)


def test_a_difference_is_found_in_its_repeat() -> None:
    _, other = summarize(
        result(
            [
                run("plain", 0, [1, 2], 1.0),
                run("other", 0, [1, 2], 1.0),
                run("plain", 0, [1, 2], 1.0, repeat=1),
                run("other", 0, [1, 9], 1.0, repeat=1),
            ]
        )
    )
    assert (other.num_identical, other.num_compared) == (1, 2)
    assert other.differences == [Difference(question_id="q0", repeat=1, first_token=1)]


def test_without_plain_there_is_no_speed_up_but_still_a_comparison() -> None:
    first, second = summarize(result([run("one", 0, [1], 1.0), run("two", 0, [2], 1.0)]))
    assert (first.speed_up, second.speed_up) == (None, None)
    assert (first.num_identical, second.num_identical, second.num_compared) == (1, 0, 1)


def test_a_refused_prompt_is_an_error_and_not_a_difference() -> None:
    refused = BatchRun(
        method="plain", repeat=0, batch=0, prompts=PROMPTS[:1], outputs=[output([], "too long")], seconds=0.1
    )
    [plain] = summarize(result([refused]))
    assert (plain.num_errors, plain.num_compared, plain.num_tokens) == (1, 0, 0)


def test_the_table_and_the_file_have_every_method() -> None:
    measured = result([run("plain", 0, [1], 1.0), run("./x[y].py:Mine", 0, [1], 0.5)])
    summaries = summarize(measured)
    console = Console(width=80)
    with console.capture() as capture:
        console.print(table(summaries, "title"))
    assert "./x[y].py:M" in capture.get()
    assert "2.00x" in capture.get()
    with console.capture() as capture:
        console.print(time_table(summaries))
    plain_line = next(line for line in capture.get().splitlines() if line.startswith("plain"))
    assert plain_line.split() == ["plain", "4", "250.00", "31.25", "93.75", "62.50", "62.50", "87.5%"]
    document = json.loads(json.dumps(as_json(summaries, measured, {"model": "m"})))
    assert [one["method"] for one in document["methods"]] == ["plain", "./x[y].py:Mine"]
    assert document["runs"][1]["prompts"][0]["token_ids"] == [1]
    assert document["settings"] == {"model": "m"}


def test_the_footnotes_tell_where_outputs_differ() -> None:
    summaries = summarize(result([run("plain", 0, [1, 2], 1.0), run("other", 0, [1, 3], 1.0)]))
    lines = footnotes(summaries)
    assert "other: prompt q0 DIFFERENT from output token 1" in lines
    assert "other: accepted per position 1.00 0.00" in lines


def test_methods_are_read_with_their_options() -> None:
    methods = parse_methods("plain, a:size=3:mode=last ,./b.py:Mine:num_speculative_tokens=7", 2)
    assert [method.label for method in methods] == [
        "plain",
        "a:size=3:mode=last",
        "./b.py:Mine:num_speculative_tokens=7",
    ]
    assert methods[0].speculative is None
    assert methods[1].speculative == SpeculativeConfig(
        method="a", num_speculative_tokens=2, options={"size": 3, "mode": "last"}
    )
    assert methods[2].speculative == SpeculativeConfig(method="./b.py:Mine", num_speculative_tokens=7)


def test_an_option_may_be_a_list_or_an_object() -> None:
    plain, tabled = parse_methods('plain,a:table=[[1,4],[5,8]]:names={"x":1,"y":2}:size=3')
    assert plain.speculative is None
    assert tabled.speculative == SpeculativeConfig(
        method="a", options={"table": [[1, 4], [5, 8]], "names": {"x": 1, "y": 2}, "size": 3}
    )


@pytest.mark.parametrize("text", ["", " , ", "plain,plain", "a,a", "plain:size=3", "a:=3", ":size=3"])
def test_methods_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_methods(text)

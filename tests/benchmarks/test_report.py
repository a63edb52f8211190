"""The page of `make bench`: the right figures, and nothing that has to be fetched."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace
from typing import Any

import pytest
from report import Run, SpeedUp, Worst, draw, render

from outrider.config import SpeculativeConfig
from outrider.entrypoints.bench import BenchResult, Method
from outrider.entrypoints.bench_report import as_json
from outrider.entrypoints.bench_summary import CategorySummary, MethodSummary


def category(name: str, speed_up: float | None, *repeats: float) -> CategorySummary:
    return CategorySummary(
        category=name,
        num_prompts=3,
        num_tokens=30,
        seconds=1.0,
        tokens_per_second=30.0,
        speed_up=speed_up,
        speed_up_per_repeat=list(repeats),
        speed_up_of_best=speed_up and max(repeats),
        mean_acceptance_length=None,
    )


def summary(method: str, rates: list[float], *categories: CategorySummary) -> MethodSummary:
    return MethodSummary(
        method=method,
        num_tokens=100,
        seconds=4.0,
        tokens_per_second=25.0,
        median_tokens_per_second=25.0,
        speed_up=categories[0].speed_up,
        mean_acceptance_length=2.5 if rates else None,
        acceptance_rate_per_pos=rates,
        num_drafts=len(rates),
        num_draft_tokens=0,
        num_accepted_tokens=0,
        num_steps=50,
        model_seconds=2.0,
        runner_seconds=1.0,
        draft_seconds=0.75,
        other_seconds=0.25,
        outside_model=0.5,
        num_compared=12,
        num_identical=12,
        num_errors=0,
        num_plugin_errors=0,
        differences=[],
        categories=list(categories),
    )


PLAIN = summary("plain", [], category("writing", 1.0, 1.0, 1.0), category("qa", 1.0, 1.0, 1.0))
FAST = summary("<b>fast", [0.75, 0.5], category("writing", 1.5, 1.25, 1.75), category("qa", 0.96, 0.95, 0.98))


def document(*summaries: MethodSummary) -> dict[str, Any]:
    methods = [
        Method(one.method, None if one.method == "plain" else SpeculativeConfig(method="fast"))
        for one in summaries
    ]
    settings = {
        "model": "tiny",
        "dtype": "auto",
        "prompts_file": None,
        "num_prompts": 6,
        "batch_size": 8,
        "repeats": 2,
        "sampling_params": {"temperature": 1.0, "max_tokens": 64},
        "speculative_configs": {one.label: one.speculative and {} for one in methods},
    }
    written = as_json(list(summaries), BenchResult(methods, [], {}), settings)
    return json.loads(json.dumps(written))  # type: ignore[no-any-return]


def test_the_category_that_gains_least_is_named_and_marked_if_it_loses() -> None:
    run = Run(document(PLAIN, FAST))
    [fast] = run.drafting
    assert run.title == "temperature 1, batch size 8"
    assert run.speed_ups(fast) == {
        "writing": SpeedUp(1.5, 1.25, 1.75, best=1.75),
        "qa": SpeedUp(0.96, 0.95, 0.98, best=0.98),
    }
    assert run.worst(fast) == Worst("qa", SpeedUp(0.96, 0.95, 0.98, best=0.98))
    assert [one.is_low for one in run.speed_ups(fast).values()] == [False, True]
    assert not SpeedUp(0.97, 0.9, 1.0, best=0.95).is_low


def test_time_is_split_per_step_and_per_token() -> None:
    run = Run(document(PLAIN))
    assert run.milliseconds(run.methods[0], "num_steps") == [40.0, 20.0, 15.0, 5.0]
    assert run.milliseconds(run.methods[0], "num_tokens") == [20.0, 10.0, 7.5, 2.5]


def test_the_page_has_the_figures_of_every_run_and_category() -> None:
    page = render([document(PLAIN, FAST), document(PLAIN)], [{}, {}], "python spec_bench.py --limit 1")
    words = " ".join(re.sub("<[^>]*>", " ", page).split())
    assert "Temperature 1, batch size 8" in words
    assert "writing 3 30.0 30.0 1.50 (1.25 to 1.75) 1.75 -" in words
    assert "0.96 (0.95 to 0.98) qa" in words
    assert "50 40.00 20.00 15.00 5.00 0.75 0.50" in words
    assert "12/12" in words
    assert "python spec_bench.py --limit 1" in words
    assert page.count('class="low"') == 2  # qa, in the overview and among the categories


def test_the_tables_come_as_markdown_too() -> None:
    text = render([document(PLAIN, FAST), document(PLAIN)], [{}, {}], "python x.py", "report.md.jinja")
    lines = text.splitlines()
    assert "| writing | 3 | 30.0 | 30.0 | 1.50 (1.25 to 1.75) | 1.75 | - |" in lines
    assert "| qa | 3 | 30.0 | 30.0 | **0.96 (0.95 to 0.98)** | 0.98 | - |" in lines
    assert "| all | 6 | 25.0 | 25.0 | 1.50 | | 2.50 |" in lines
    assert "| <b>fast | 50 | 40.00 | 20.00 | 15.00 | 5.00 | 50.0 % | 12/12 | 0.75 0.50 |" in lines
    for previous, line in itertools.pairwise(lines):
        if line.startswith("|") and previous.startswith("|"):
            assert line.count("|") == previous.count("|")


def test_output_that_differs_is_marked() -> None:
    page = render([document(replace(PLAIN, num_identical=11))], [{}], None)
    assert '<td class="low">11/12</td>' in page


def test_names_are_text() -> None:
    page = render([document(PLAIN, FAST)], [{}], None)
    assert "&lt;b&gt;fast" in page
    assert "<b>" not in page


def test_without_plain_decoding_there_is_a_page_without_speed_ups() -> None:
    alone = document(summary("alone", [], category("qa", None)))
    page = render([alone], [{}], None)
    assert Run(alone).worst(Run(alone).methods[0]) is None
    assert 'class="low"' not in page


def test_the_page_with_its_plots_needs_nothing_beside_itself() -> None:
    pytest.importorskip("matplotlib")
    measured = document(PLAIN, FAST)
    drawn = draw(Run(measured))
    assert set(drawn) == {"times", "speed_ups", "acceptance"}
    assert drawn == draw(Run(measured))
    page = render([measured], [drawn], None)
    assert page.count("</svg>") == 3
    assert "humanities" not in drawn["speed_ups"]
    assert "writing" in drawn["speed_ups"]
    assert not re.search(r"<script|<link|<img|\bsrc=|@import", page)
    assert set(re.findall(r"https?://[^\"]*", page)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }


def test_what_was_not_measured_is_not_drawn() -> None:
    pytest.importorskip("matplotlib")
    assert set(draw(Run(document(summary("alone", [], category("qa", None)))))) == {"times"}

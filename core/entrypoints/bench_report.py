"""What `outrider bench` measured, as numbers, as a table and as JSON."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from rich.table import Table
from rich.text import Text

from .bench import BatchRun, BenchResult
from .compare import first_difference
from .generate import per_position


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A prompt whose tokens are not the baseline's."""

    question_id: str
    repeat: int
    first_token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodSummary:
    """One row of the table.

    Attributes:
        num_tokens: output tokens of all runs.
        seconds: of all runs, the sum of model (inside the target), runner (laying out steps, sampling, verification),
            draft (in the proposer) and other (the engine around them).
        outside_model: the share of `seconds` that is not model.
        tokens_per_second: pooled: `num_tokens / seconds`.
        median_tokens_per_second: median over the batches (prompts, if a batch is one) of their pooled speed.
        speed_up: `tokens_per_second` over that of plain decoding in the same session; None without plain.
        num_compared, num_identical: outputs that were held against the baseline's: plain's, or the first method's. A
            refused prompt is not compared.
        num_errors: prompts that were refused, in all runs.
        speed_up_per_category: as `speed_up`; with a batch of several categories, by the category of its first prompt.
    """

    method: str
    num_tokens: int
    seconds: float
    tokens_per_second: float
    median_tokens_per_second: float
    speed_up: float | None
    mean_acceptance_length: float | None
    acceptance_rate_per_pos: list[float]
    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    num_steps: int
    model_seconds: float
    runner_seconds: float
    draft_seconds: float
    other_seconds: float
    outside_model: float
    num_compared: int
    num_identical: int
    num_errors: int
    num_plugin_errors: int
    differences: list[Difference]
    speed_up_per_category: dict[str, float]


def summarize(result: BenchResult) -> list[MethodSummary]:
    """One summary per method, in their order."""
    labels = [method.label for method in result.methods]
    plain = next((method.label for method in result.methods if method.speculative is None), None)
    by_method = {label: [run for run in result.runs if run.method == label] for label in labels}
    baseline = by_method[plain or labels[0]]
    return [_summarize(label, by_method[label], baseline, plain is not None, result) for label in labels]


def _summarize(
    label: str, runs: Sequence[BatchRun], baseline: Sequence[BatchRun], is_plain: bool, result: BenchResult
) -> MethodSummary:
    stats = result.stats[label]
    seconds = sum(run.seconds for run in runs)
    compared, differences = _compare(runs, baseline)
    return MethodSummary(
        method=label,
        num_tokens=sum(map(_num_tokens, runs)),
        seconds=seconds,
        tokens_per_second=_speed(runs),
        median_tokens_per_second=median(
            _speed([run for run in runs if run.batch == batch]) for batch in {run.batch for run in runs}
        ),
        speed_up=_ratio(runs, baseline) if is_plain else None,
        mean_acceptance_length=stats.spec.mean_acceptance_length,
        acceptance_rate_per_pos=stats.spec.acceptance_rate_per_pos,
        num_drafts=stats.spec.num_drafts,
        num_draft_tokens=stats.spec.num_draft_tokens,
        num_accepted_tokens=stats.spec.num_accepted_tokens,
        num_steps=stats.num_steps,
        model_seconds=stats.model_seconds,
        runner_seconds=stats.verify_seconds - stats.model_seconds,
        draft_seconds=stats.draft_seconds,
        other_seconds=seconds - stats.draft_seconds - stats.verify_seconds,
        outside_model=1 - stats.model_seconds / seconds if seconds > 0 else 0.0,
        num_compared=compared,
        num_identical=compared - len(differences),
        num_errors=sum(output.error is not None for run in runs for output in run.outputs),
        num_plugin_errors=stats.num_plugin_errors,
        differences=differences,
        speed_up_per_category=_per_category(runs, baseline) if is_plain else {},
    )


def _compare(runs: Sequence[BatchRun], baseline: Sequence[BatchRun]) -> tuple[int, list[Difference]]:
    expected = {(run.repeat, run.batch): run for run in baseline}
    num_compared = 0
    differences = []
    for run in runs:
        theirs = expected[run.repeat, run.batch].outputs
        for prompt, output, other in zip(run.prompts, run.outputs, theirs, strict=True):
            if output.error is not None or other.error is not None:
                continue
            num_compared += 1
            index = first_difference(output.outputs[0].token_ids, other.outputs[0].token_ids)
            if index is not None:
                differences.append(
                    Difference(question_id=prompt.question_id, repeat=run.repeat, first_token=index)
                )
    return num_compared, differences


def _per_category(runs: Sequence[BatchRun], baseline: Sequence[BatchRun]) -> dict[str, float]:
    categories = dict.fromkeys(run.prompts[0].category for run in runs)
    return {
        category: _ratio(
            *([run for run in side if run.prompts[0].category == category] for side in (runs, baseline))
        )
        for category in categories
    }


def _ratio(runs: Sequence[BatchRun], baseline: Sequence[BatchRun]) -> float:
    plain = _speed(baseline)
    return _speed(runs) / plain if plain else 0.0


def _speed(runs: Sequence[BatchRun]) -> float:
    seconds = sum(run.seconds for run in runs)
    return sum(map(_num_tokens, runs)) / seconds if seconds > 0 else 0.0


def _num_tokens(run: BatchRun) -> int:
    return sum(len(output.outputs[0].token_ids) for output in run.outputs)


def table(summaries: Sequence[MethodSummary], title: str) -> Table:
    """Speeds and acceptance, for a terminal of 80 columns."""
    grid = _grid(title, ("tokens/s", "median", "speed-up", "length", "identical"))
    for one in summaries:
        same = one.num_identical == one.num_compared
        grid.add_row(
            Text(one.method),
            f"{one.tokens_per_second:.1f}",
            f"{one.median_tokens_per_second:.1f}",
            "-" if one.speed_up is None else f"{one.speed_up:.2f}x",
            "-" if one.mean_acceptance_length is None else f"{one.mean_acceptance_length:.2f}",
            f"[{'green' if same else 'bold red'}]{one.num_identical}/{one.num_compared}[/]",
        )
    return grid


def time_table(summaries: Sequence[MethodSummary]) -> Table:
    """Where a step's time goes, for a terminal of 80 columns."""
    grid = _grid(
        "milliseconds per step", ("steps", "all", "model", "runner", "draft", "other", "outside model")
    )
    for one in summaries:
        parts = (
            one.seconds,
            one.model_seconds,
            one.runner_seconds,
            one.draft_seconds,
            one.other_seconds,
        )
        grid.add_row(
            Text(one.method),
            str(one.num_steps),
            *(f"{1e3 * part / max(one.num_steps, 1):.2f}" for part in parts),
            f"{one.outside_model:.1%}",
        )
    return grid


def _grid(title: str, numbers: Sequence[str]) -> Table:
    grid = Table(title=title, box=None, padding=(0, 1), collapse_padding=True, pad_edge=False)
    grid.add_column("method", overflow="fold")
    for name in numbers:
        grid.add_column(name, justify="right", no_wrap=True)
    return grid


def footnotes(summaries: Sequence[MethodSummary]) -> list[str]:
    """What the tables have no room for: acceptance per position, and where outputs differ."""
    lines = [
        "length: mean acceptance length, tokens per verification step",
        "runner: laying out steps, sampling, verification; other: the engine around the runner",
    ]
    for one in summaries:
        if one.acceptance_rate_per_pos:
            lines.append(f"{one.method}: accepted per position {per_position(one.acceptance_rate_per_pos)}")
        if one.num_errors:
            lines.append(f"{one.method}: {one.num_errors} prompts refused")
        if one.num_plugin_errors:
            lines.append(f"{one.method}: {one.num_plugin_errors} errors of plugins")
        lines += [
            f"{one.method}: prompt {d.question_id} DIFFERENT from output token {d.first_token}"
            for d in one.differences
        ]
    return lines


def as_json(
    summaries: Sequence[MethodSummary], result: BenchResult, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Everything for a file: settings, machine, summaries, and each run of each prompt.

    Args:
        settings: how the benchmark was called.
    """
    return {
        "settings": dict(settings),
        "machine": {
            "outrider": importlib.metadata.version("outrider"),
            "torch": importlib.metadata.version("torch"),
            "python": platform.python_version(),
            "processor": platform.processor() or platform.machine(),
            "num_cpus": os.cpu_count(),
        },
        "methods": [asdict(one) for one in summaries],
        "runs": [
            {
                "method": run.method,
                "repeat": run.repeat,
                "batch": run.batch,
                "seconds": run.seconds,
                "prompts": [
                    {
                        "question_id": prompt.question_id,
                        "category": prompt.category,
                        "num_prompt_tokens": len(output.prompt_token_ids),
                        "token_ids": output.outputs[0].token_ids,
                        "finish_reason": output.outputs[0].finish_reason,
                        "error": output.error,
                        "mean_acceptance_length": output.metrics.mean_acceptance_length,
                    }
                    for prompt, output in zip(run.prompts, run.outputs, strict=True)
                ],
            }
            for run in result.runs
        ],
    }

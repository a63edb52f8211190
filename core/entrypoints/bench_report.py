"""What `outrider bench` measured, as tables and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table
from rich.text import Text

from .bench import BenchResult
from .bench_machine import describe_machine
from .bench_summary import CategorySummary, MethodSummary
from .generate import per_position


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
        # Plain decoding is what the others are compared with: always 1.
        if len(one.categories) > 1 and any(set(each.speed_up_per_repeat) - {1.0} for each in one.categories):
            lines.append(f"{one.method}: speed-up {', '.join(filter(None, map(_category, one.categories)))}")
        if one.num_errors:
            lines.append(f"{one.method}: {one.num_errors} prompts refused")
        if one.num_plugin_errors:
            lines.append(f"{one.method}: {one.num_plugin_errors} errors of plugins")
        lines += [
            f"{one.method}: prompt {d.question_id} DIFFERENT from output token {d.first_token}"
            for d in one.differences
        ]
    return lines


def _category(one: CategorySummary) -> str | None:
    if one.speed_up is None:
        return None
    repeats = one.speed_up_per_repeat
    spread = f" ({min(repeats):.2f} to {max(repeats):.2f})" if len(repeats) > 1 else ""
    return f"{one.category} {one.speed_up:.2f}x{spread}"


def as_json(
    summaries: Sequence[MethodSummary], result: BenchResult, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Everything for a file: settings, machine, summaries, and each run of each prompt.

    Args:
        settings: how the benchmark was called.
    """
    return {
        "settings": dict(settings),
        "machine": describe_machine(),
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

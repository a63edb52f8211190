"""What `outrider bench` measured, as numbers per method and per category."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from .bench import BatchRun, BenchResult
from .compare import first_difference


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A prompt whose tokens are not the baseline's."""

    question_id: str
    repeat: int
    first_token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CategorySummary:
    """One method on the prompts of one category.

    Attributes:
        num_prompts: in one repeat; a prompt that fills a batch more than once counts as often.
        speed_up: pooled over the repeats; None without plain decoding in the same session.
        speed_up_per_repeat: the same, repeat by repeat: how far they lie apart is the noise.
        speed_up_of_best: the same, of the fastest repeat of each batch: what other work on the machine disturbs least.
    """

    category: str
    num_prompts: int
    num_tokens: int
    seconds: float
    tokens_per_second: float
    speed_up: float | None
    speed_up_per_repeat: list[float]
    speed_up_of_best: float | None
    mean_acceptance_length: float | None


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
        categories: in the order of the prompts.
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
    categories: list[CategorySummary]


def summarize(result: BenchResult) -> list[MethodSummary]:
    """One summary per method, in their order."""
    labels = [method.label for method in result.methods]
    plain = next((method.label for method in result.methods if method.speculative is None), None)
    by_method = {label: [run for run in result.runs if run.method == label] for label in labels}
    baseline = by_method[plain or labels[0]]
    return [_summarize(label, by_method[label], baseline, plain, result) for label in labels]


def _summarize(
    label: str, runs: Sequence[BatchRun], baseline: Sequence[BatchRun], plain: str | None, result: BenchResult
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
        speed_up=None if plain is None else _ratio(runs, baseline),
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
        categories=[
            _summarize_category(
                category,
                [run for run in runs if run.category == category],
                None if plain is None else [run for run in baseline if run.category == category],
            )
            for category in dict.fromkeys(run.category for run in runs)
        ],
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


def _summarize_category(
    category: str, runs: Sequence[BatchRun], plain: Sequence[BatchRun] | None
) -> CategorySummary:
    repeats = sorted({run.repeat for run in runs})
    metrics = [output.metrics for run in runs for output in run.outputs]
    num_drafts = sum(one.num_drafts for one in metrics)
    return CategorySummary(
        category=category,
        num_prompts=sum(len(run.prompts) for run in runs) // len(repeats),
        num_tokens=sum(map(_num_tokens, runs)),
        seconds=sum(run.seconds for run in runs),
        tokens_per_second=_speed(runs),
        speed_up=None if plain is None else _ratio(runs, plain),
        speed_up_per_repeat=[]
        if plain is None
        else [_ratio(_of_repeat(runs, repeat), _of_repeat(plain, repeat)) for repeat in repeats],
        speed_up_of_best=None if plain is None else _ratio(_fastest(runs), _fastest(plain)),
        mean_acceptance_length=sum(one.num_verified_tokens for one in metrics) / num_drafts
        if num_drafts
        else None,
    )


def _of_repeat(runs: Sequence[BatchRun], repeat: int) -> list[BatchRun]:
    return [run for run in runs if run.repeat == repeat]


def _fastest(runs: Sequence[BatchRun]) -> list[BatchRun]:
    return [
        min((run for run in runs if run.batch == batch), key=lambda run: run.seconds)
        for batch in dict.fromkeys(run.batch for run in runs)
    ]


def _ratio(runs: Sequence[BatchRun], baseline: Sequence[BatchRun]) -> float:
    plain = _speed(baseline)
    return _speed(runs) / plain if plain else 0.0


def _speed(runs: Sequence[BatchRun]) -> float:
    seconds = sum(run.seconds for run in runs)
    return sum(map(_num_tokens, runs)) / seconds if seconds > 0 else 0.0


def _num_tokens(run: BatchRun) -> int:
    return sum(len(output.outputs[0].token_ids) for output in run.outputs)

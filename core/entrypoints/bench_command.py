"""`outrider bench`, once its flags are read: run, print the table, write the file."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console
from rich.text import Text

from ..api import ConfigError, SamplingParams
from ..config import EngineConfig
from .bench import PLAIN, Benchmark, Method, parse_methods
from .bench_report import as_json, footnotes, table, time_table
from .bench_summary import summarize
from .built_in_prompts import BUILT_IN_PROMPTS
from .generate import method_name
from .prompt_files import limit_per_category, read_prompts


def run_bench_command(
    config: EngineConfig,
    *,
    methods: str | None,
    num_speculative_tokens: int | None,
    prompts_file: Path | None,
    limit: int | None,
    sampling_params: SamplingParams,
    batch_size: int,
    repeats: int,
    json_file: Path | None,
) -> int:
    """Run a benchmark; the flags of `outrider bench` say what they mean.

    Args:
        methods: None: plain decoding, and what `config` drafts with, if anything.

    Returns:
        Exit status: 2 if a prompt was refused, 1 if a method's tokens are not the baseline's, else 0.
    """
    if methods is not None:
        parsed = parse_methods(methods, num_speculative_tokens)
    else:
        parsed = _configured_methods(config, num_speculative_tokens)
    prompts = BUILT_IN_PROMPTS if prompts_file is None else read_prompts(prompts_file)
    prompts = limit_per_category(prompts, limit)
    if json_file is not None and not json_file.parent.is_dir():
        raise ConfigError(f"--json {str(json_file)!r}: there is no folder {str(json_file.parent)!r}")
    result = Benchmark(
        config,
        parsed,
        prompts,
        sampling_params,
        batch_size=batch_size,
        repeats=repeats,
        console=Console(stderr=True),
    ).run()
    summaries = summarize(result)
    title = (
        f"{config.model.model}: {len(prompts)} prompts, batch size {batch_size},"
        f" temperature {sampling_params.temperature:g}, repeats {repeats}"
    )
    out = Console(highlight=False)
    out.print(table(summaries, title))
    out.print()
    out.print(time_table(summaries))
    for line in footnotes(summaries):
        out.print(Text(line), soft_wrap=True)
    if json_file is not None:
        settings = {
            **config.model.model_dump(mode="json"),
            "attention_backend": config.model_dump(mode="json")["attention_backend"],
            "speculative_configs": {
                one.label: one.speculative and one.speculative.model_dump(mode="json") for one in parsed
            },
            "prompts_file": None if prompts_file is None else prompts_file.name,
            "limit_per_category": limit,
            "num_prompts": len(prompts),
            "batch_size": batch_size,
            "repeats": repeats,
            "sampling_params": sampling_params.model_dump(),
        }
        document = as_json(summaries, result, settings)
        json_file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if any(one.num_errors for one in summaries):
        return 2
    return int(any(one.num_identical < one.num_compared for one in summaries))


def _configured_methods(config: EngineConfig, num_speculative_tokens: int | None) -> list[Method]:
    methods = [Method(PLAIN, None)]
    if config.speculative is not None:
        speculative = config.speculative.overridden_by({"num_speculative_tokens": num_speculative_tokens})
        methods.append(Method(method_name(speculative), speculative))
    return methods

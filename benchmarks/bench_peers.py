"""Outrider beside transformers, vLLM and llama.cpp, turn by turn in one run: `python benchmarks/bench_peers.py`.

All engines get the same checkpoint and the same token ids; see peers/README.md. `--systems vllm outrider-bf` runs those
whose names begin so.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from peers.client import Worker
from peers.environments import FOLDER, InstallError, ensure
from peers.measure import Job, Measurement, Turn
from peers.protocol import Request, WorkerError
from peers.report import as_json, instruction_sets, ratios_table, systems_table
from peers.summary import ratios, summarize
from peers.systems import REFERENCE, System, all_systems, select
from rich.console import Console
from rich.progress import Progress
from transformers import AutoTokenizer

from outrider.entrypoints.bench_machine import describe_machine
from outrider.entrypoints.built_in_prompts import BUILT_IN_PROMPTS
from outrider.entrypoints.prompt_files import FilePrompt, limit_per_category, read_prompts
from outrider.entrypoints.prompts import user_turn
from outrider.models.smollm2 import smollm2_folder

PREFILL_TOKENS = 512
_LEAST_TOKENS = 16
_IDLE_SECONDS = 3.0
_IDLE_CORES = 0.05


def jobs_of(prompts: Sequence[FilePrompt], tokenizer: Any, max_tokens: int) -> list[Job]:
    """Each prompt as a user's turn, and one prompt of `PREFILL_TOKENS` tokens, made of them all."""
    jobs = []
    for prompt in prompts:
        ids = user_turn(prompt.text, tokenizer)["prompt_token_ids"]
        jobs.append(Job(prompt.question_id, prompt.category, Request(ids, max_tokens)))
    every = [token for job in jobs for token in job.request.prompt_token_ids]
    long = (every * (PREFILL_TOKENS // len(every) + 1))[:PREFILL_TOKENS]
    return [*jobs, Job(f"prefill-{PREFILL_TOKENS}", "prefill", Request(long, 1), is_prefill=True)]


def prepare(systems: Sequence[System], console: Console) -> dict[str, str]:
    """Make the environments. Returns the systems that cannot run, with the reason."""
    reasons: dict[str, str] = {}
    for name in dict.fromkeys(system.environment for system in systems):
        with console.status(f"preparing the environment of {name} (minutes, the first time) ..."):
            try:
                ensure(name)
            except InstallError as error:
                reasons[name] = str(error)
    return {
        system.name: f"not installed: {reasons[system.environment]}"
        for system in systems
        if system.environment in reasons
    }


def start(
    systems: Sequence[System], missing: dict[str, str], stack: ExitStack, console: Console
) -> dict[str, Worker]:
    """Load one system after the other; one that does not load goes to `missing`."""
    workers = {}
    for system in systems:
        if system.name in missing:
            continue
        with console.status(f"loading {system.name} ..."):
            try:
                workers[system.name] = stack.enter_context(Worker(system))
            except WorkerError as error:
                missing[system.name] = f"did not start: {error}"
    return workers


def measure(measurement: Measurement, num_turns: int, repeats: int, console: Console) -> list[Turn]:
    """All turns, with a bar."""
    turns = []
    with Progress(console=console) as progress:
        task = progress.add_task("measuring", total=num_turns)
        for turn in measurement.turns(repeats):
            turns.append(turn)
            progress.update(task, advance=1, description=turn.system)
    return turns


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument(
        "--prompts-file", type=Path, help="JSONL in Spec-Bench's form; default: built-in prompts"
    )
    parser.add_argument("--limit", type=int, help="prompts per category")
    parser.add_argument("--max-tokens", type=int, default=64, help=f"per answer, at least {_LEAST_TOKENS}")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--systems", nargs="+", default=[], help="names or their beginnings; default: all")
    parser.add_argument(
        "--patience",
        type=int,
        default=2,
        help="how often a turn is run again if other processes disturbed it",
    )
    parser.add_argument("--json", type=Path, default=FOLDER / "results.json", help="every figure goes there")
    args = parser.parse_args()
    if args.max_tokens < _LEAST_TOKENS or args.repeats < 1 or args.patience < 0:
        parser.error(f"--max-tokens is at least {_LEAST_TOKENS}, --repeats 1, --patience 0")
    return args


def main() -> None:
    """Prepare, load, warm up, measure, report. A system that is missing does not stop the others."""
    args = arguments()
    console = Console()
    checkpoint = smollm2_folder()
    try:
        systems = select(all_systems(checkpoint), args.systems)
    except ValueError as error:
        sys.exit(str(error))
    prompts = BUILT_IN_PROMPTS if args.prompts_file is None else read_prompts(args.prompts_file)
    jobs = jobs_of(
        limit_per_category(prompts, args.limit), AutoTokenizer.from_pretrained(checkpoint), args.max_tokens
    )
    missing = prepare(systems, console)
    with ExitStack() as stack:
        workers = start(systems, missing, stack, console)
        versions = {name: worker.ready.versions for name, worker in workers.items()}
        measurement = Measurement(workers, jobs, patience=args.patience)
        with console.status("warming up ..."):
            measurement.warm_up()
        idle = measurement.idle_cores(_IDLE_SECONDS)
        for name, cores in idle.items():
            if cores is not None and cores > _IDLE_CORES:
                console.print(f"[yellow]{name} keeps {cores:.2f} cores busy while it waits")
        turns = measure(measurement, len(workers) * len(jobs) * args.repeats, args.repeats, console)
    missing.update({name: f"failed: {reason}" for name, reason in measurement.failed.items()})

    order = {system.name: place for place, system in enumerate(systems)}
    turns = sorted(
        (turn for turn in turns if turn.system not in missing), key=lambda turn: order[turn.system]
    )
    summaries = summarize(turns, REFERENCE)
    ours = {system.name for system in systems if system.is_ours}
    compared = ratios(
        [one for one in summaries if one.name in ours], [one for one in summaries if one.name not in ours]
    )
    console.print(systems_table(summaries, missing, PREFILL_TOKENS))
    if compared:
        console.print(ratios_table(compared))
    for name, reason in missing.items():
        console.print(f"[red]missing[/] {name}: {reason}", markup=True, highlight=False)
    document = as_json(
        machine={**describe_machine(), "instruction_sets": instruction_sets()},
        command=shlex.join(["python", "benchmarks/bench_peers.py", *sys.argv[1:]]),
        versions=versions,
        idle_cores=idle,
        summaries=summaries,
        ratios=compared,
        missing=missing,
        turns=turns,
    )
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    console.print(f"every figure: {args.json}", highlight=False)


if __name__ == "__main__":
    main()

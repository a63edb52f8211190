"""What one step of the runner costs: `python benchmarks/step_cost.py --model smollm2 --weights bfloat16 int8`.

Against the rows of the forward, the length of the context and the size of the batch; and a prompt against transformers'
own forward on the same checkpoint. Everything is measured in turn in each round, so that whatever else the machine does
meets all of it. The keys and values of the context are made up: what they are does not change what a step costs. Times
are the best of all rounds, the step's median beside them; `outside` is what is not the model: describing the step's
rows, sampling, verification.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from step_runner import BLOCK_SIZE, Case, Runner, Sample, Transformers

from outrider import LLM
from outrider.entrypoints.bench_machine import describe_machine
from outrider.models.sources import find_source

ROWS = [1, 2, 4, 5, 8, 9, 16, 32, 64]
CONTEXTS = [128, 512, 1024, 2048, 4096, 8192]
VERIFIED_ROWS = [1, 5, 9]
BATCHES = [1, 2, 4, 8, 16, 32]
SHORT = 128
PROMPT = 512
TRANSFORMERS = ("float32", "bfloat16")


@dataclass(frozen=True, slots=True)
class Measured:
    """All samples of one shape on one system."""

    system: str
    case: Case
    samples: list[Sample]

    @property
    def seconds(self) -> float:
        """Of the fastest step."""
        return min(one.seconds for one in self.samples)

    def cells(self, unit: Measured) -> list[str]:
        """Values of `COLUMNS`; `unit` is the first of the table."""
        model = min(one.model_seconds for one in self.samples)
        outside = min(one.seconds - one.model_seconds for one in self.samples)
        return [
            f"{1e3 * self.seconds:.2f}",
            f"{1e3 * median(one.seconds for one in self.samples):.2f}",
            f"{self.seconds / unit.seconds:.2f}",
            f"{1e3 * model:.2f}",
            f"{1e3 * outside:.2f}",
            f"{outside / (model + outside):.1%}",
        ]


Results = dict[tuple[str, Case], Measured]
COLUMNS = ["ms", "median ms", "times the first", "model ms", "outside ms", "outside"]


def measure(jobs: Sequence[tuple[str, Any, Case]], repeats: int, say: Callable[[str], None]) -> Results:
    """Every job once per round, each round beginning with another one; a round before them does not count."""
    results: Results = {(name, case): Measured(name, case, []) for name, _, case in jobs}
    for number in range(repeats + 1):
        say(f"round {number} of {repeats}" if number else "warming up")
        first = number * len(jobs) // (repeats + 1)
        for name, system, case in (*jobs[first:], *jobs[:first]):
            sample = system.measure(case)
            if number:
                results[name, case].samples.append(sample)
    return results


def markdown(title: str, first: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; the columns of `first`, then `COLUMNS`."""
    lines = [[*first, *COLUMNS], ["---:"] * (len(first) + len(COLUMNS)), *rows]
    return "\n".join([f"### {title}", "", *("| " + " | ".join(line) + " |" for line in lines), ""])


def tables(results: Results, systems: Sequence[str], others: Sequence[str], longest: int) -> list[str]:
    """Markdown tables: per system of ours rows, context and batch; then the prompt on all systems."""
    found = []
    for system in systems:

        def rows(cases: Sequence[Case], head: Callable[[Case], list[str]], system: str = system) -> Any:
            unit = results[system, cases[0]]
            return [[*head(case), *results[system, case].cells(unit)] for case in cases]

        found += [
            markdown(
                f"{system}: rows of one request, context {SHORT}",
                ["rows"],
                rows([Case(num, SHORT) for num in ROWS], lambda case: [str(case.num_rows)]),
            ),
            markdown(
                f"{system}: context of one request",
                ["rows", "context"],
                [
                    row
                    for num in VERIFIED_ROWS
                    for row in rows(
                        [Case(num, context) for context in CONTEXTS if context <= longest],
                        lambda case: [str(case.num_rows), str(case.context)],
                    )
                ],
            ),
            markdown(
                f"{system}: batch, one row per request, context {SHORT}",
                ["requests"],
                rows([Case(1, SHORT, num) for num in BATCHES], lambda case: [str(case.num_reqs)]),
            ),
        ]
    prompt = Case(PROMPT, PROMPT)
    unit = results[systems[0], prompt]
    lines = [[name, *results[name, prompt].cells(unit)] for name in (*systems, *others)]
    return [*found, markdown(f"A prompt of {PROMPT} tokens", ["system"], lines)]


def cases_of(longest: int) -> list[Case]:
    """All shapes, each once."""
    every = [
        *(Case(num, SHORT) for num in ROWS),
        *(Case(num, context) for num in VERIFIED_ROWS for context in CONTEXTS if context <= longest),
        *(Case(1, SHORT, num) for num in BATCHES),
        Case(PROMPT, PROMPT),
    ]
    return list(dict.fromkeys(every))


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--weights", nargs="+", default=[None], help="formats, side by side; default: auto")
    parser.add_argument("--repeats", type=int, default=7, help="rounds")
    parser.add_argument("--longest", type=int, default=CONTEXTS[-1], help="longest context")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--no-transformers", action="store_true", help="leave transformers out")
    parser.add_argument("--json", type=Path, help="write every sample to this file")
    args = parser.parse_args()

    cases = cases_of(args.longest)
    jobs: list[tuple[str, Any, Case]] = []
    runners: dict[str, Runner] = {}
    for weights in args.weights:
        name = f"outrider {weights or 'auto'}"
        llm = LLM(
            args.model,
            max_num_seqs=max(BATCHES),
            block_size=BLOCK_SIZE,
            num_kv_blocks=max(case.num_reqs * case.blocks_per_request for case in cases),
            **({} if weights is None else {"weights": weights}),
        )
        runners[name] = Runner(llm, args.temperature)
    others = {}
    if not args.no_transformers:
        location = find_source(args.model).location
        others = {
            f"transformers {dtype}": Transformers(location, dtype, llm.engine.loaded.vocab_size)
            for dtype in TRANSFORMERS
        }
    for case in cases:
        jobs += [(name, runner, case) for name, runner in runners.items()]
        jobs += [(name, other, case) for name, other in others.items() if case.is_prompt]

    machine = describe_machine()
    results = measure(jobs, args.repeats, lambda text: print(text, file=sys.stderr, flush=True))
    command = " ".join(["python benchmarks/step_cost.py", *sys.argv[1:]])
    print(f"`{command}`  ")
    print(", ".join(f"{key} {value}" for key, value in machine.items()), end="\n\n")
    for table in tables(results, list(runners), list(others), args.longest):
        print(table)
    if args.json is not None:
        document = {
            "machine": machine,
            "command": command,
            "results": [asdict(one) for one in results.values()],
        }
        args.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""What one step of the runner costs: `python benchmarks/step_cost.py --weights float32 bfloat16 int8`.

Against the rows of the forward, the length of the context and the size of the batch; and a prompt against transformers'
own forward on the same checkpoint. Everything is measured in turn in each round, so that whatever else the machine does
meets all of it. The keys and values of the context are made up: what they are does not change what a step costs. Times
are the best of all rounds; outside the model are describing the step's rows, sampling and verification.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
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

    @property
    def outside(self) -> float:
        """Share of a step that is not the model, each of the two at its fastest."""
        model = min(one.model_seconds for one in self.samples)
        outside = min(one.seconds - one.model_seconds for one in self.samples)
        return outside / (model + outside)


Results = dict[tuple[str, Case], Measured]


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


def markdown(title: str, head: Sequence[str], rows: Sequence[Sequence[str]], align: str = "---:") -> str:
    """A table; `align` is for its first column, the others hold numbers."""
    lines = [head, [align, *["---:"] * (len(head) - 1)], *rows]
    return "\n".join([f"### {title}", "", *("| " + " | ".join(line) + " |" for line in lines), ""])


def tables(results: Results, systems: Sequence[str], others: Sequence[str], longest: int) -> list[str]:
    """Markdown tables: rows, context and batch, our systems side by side; then the prompt on all systems."""
    names = [system.removeprefix("outrider ") for system in systems]
    head = [*(f"{name} ms" for name in names), *(f"{name} / first" for name in names)]

    def cells(cases: Sequence[Case]) -> list[list[str]]:
        """Milliseconds, and times the first of the cases."""
        times = [[results[system, case].seconds for system in systems] for case in cases]
        return [
            [
                *(f"{1e3 * seconds:.2f}" for seconds in line),
                *(f"{seconds / first:.2f}" for seconds, first in zip(line, times[0], strict=True)),
            ]
            for line in times
        ]

    rows = [Case(num, SHORT) for num in ROWS]
    contexts = [[Case(num, context) for context in CONTEXTS if context <= longest] for num in VERIFIED_ROWS]
    batches = [Case(1, SHORT, num) for num in BATCHES]
    prompt = Case(PROMPT, PROMPT)
    return [
        markdown(
            f"Rows of one request, context {SHORT}: what verifying costs",
            ["rows", *head],
            [[str(case.num_rows), *line] for case, line in zip(rows, cells(rows), strict=True)],
        ),
        markdown(
            "Context of one request, plain (1 row) and verifying (5 and 9 rows)",
            ["rows", "context", *head],
            [
                [str(case.num_rows), str(case.context), *line]
                for cases in contexts
                for case, line in zip(cases, cells(cases), strict=True)
            ],
        ),
        markdown(
            f"Batch, one row per request, context {SHORT}",
            ["requests", *head],
            [[str(case.num_reqs), *line] for case, line in zip(batches, cells(batches), strict=True)],
        ),
        markdown(
            "Share of those steps outside the model",
            ["requests", *names],
            [
                [str(case.num_reqs), *(f"{results[system, case].outside:.1%}" for system in systems)]
                for case in batches
            ],
        ),
        markdown(
            f"A prompt of {PROMPT} tokens",
            ["system", "ms"],
            [[name, f"{1e3 * results[name, prompt].seconds:.2f}"] for name in (*systems, *others)],
            align=":---",
        ),
    ]


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

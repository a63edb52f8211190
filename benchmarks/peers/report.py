"""The figures as tables for a terminal, and everything as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from .measure import Turn
from .summary import Ratio, SystemSummary


def systems_table(
    summaries: Sequence[SystemSummary], missing: Mapping[str, str], prefill_tokens: int
) -> Table:
    """A line per system, for a terminal of 80 columns; the missing ones at the end."""
    columns = ("tokens/s", "repeats", "best", f"prefill {prefill_tokens}", "same", "noisy")
    table = _table("greedy, batch 1", "system", columns)
    for one in summaries:
        repeats = one.repeats_tokens_per_second
        table.add_row(
            one.name,
            f"{one.tokens_per_second:.1f}",
            f"{min(repeats):.1f}-{max(repeats):.1f}",
            f"{one.best_tokens_per_second:.1f}",
            "-" if one.prefill_seconds is None else f"{one.prefill_seconds * 1e3:.0f} ms",
            f"{one.num_identical}/{one.num_compared}" if one.num_compared else "-",
            f"{one.num_disturbed}/{one.num_turns}",
        )
    for name in missing:
        table.add_row(name, "missing")
    return table


def ratios_table(ratios: Sequence[Ratio]) -> Table:
    """A line per peer, a column per system of ours: how many times as fast it decodes, all repeats and the best."""
    table = _table(
        "tokens/s of ours over tokens/s of the peer",
        "peer",
        list(dict.fromkeys(ratio.ours for ratio in ratios)),
    )
    for peer in dict.fromkeys(ratio.peer for ratio in ratios):
        own = [ratio for ratio in ratios if ratio.peer == peer]
        table.add_row(peer, *(f"{one.decode:.2f}, best {one.best:.2f}" for one in own))
    return table


def _table(title: str, first: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, box=None, padding=(0, 1), collapse_padding=True, pad_edge=False)
    table.add_column(first, no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def as_json(
    *,
    machine: Mapping[str, Any],
    command: str,
    versions: Mapping[str, Mapping[str, str]],
    idle_cores: Mapping[str, float | None],
    summaries: Sequence[SystemSummary],
    ratios: Sequence[Ratio],
    missing: Mapping[str, str],
    turns: Sequence[Turn],
) -> dict[str, Any]:
    """All of it, down to each turn with its token ids."""
    return {
        "machine": dict(machine),
        "command": command,
        "versions": {name: dict(one) for name, one in versions.items()},
        "idle_cores": dict(idle_cores),
        "systems": [asdict(one) for one in summaries],
        "ratios": [asdict(one) for one in ratios],
        "missing": dict(missing),
        "turns": [
            {
                "system": turn.system,
                "repeat": turn.repeat,
                "job": turn.job.name,
                "category": turn.job.category,
                "num_prompt_tokens": len(turn.job.request.prompt_token_ids),
                "first_seconds": turn.reply.first_seconds,
                "num_first": turn.reply.num_first,
                "seconds": turn.reply.seconds,
                "others_cores": turn.others,
                "tries": turn.tries,
                "token_ids": list(turn.reply.token_ids),
            }
            for turn in turns
        ],
    }


def instruction_sets(cpuinfo: Path = Path("/proc/cpuinfo")) -> list[str]:
    """The processor's vector instructions that decide between kernels; empty where they cannot be read."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), [])
    return [flag for flag in flags if flag.startswith(("avx", "amx", "fma"))]

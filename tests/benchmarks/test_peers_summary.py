"""Figures of systems, ratios, and what is shown of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from peers.measure import Job, Turn
from peers.protocol import Reply, Request
from peers.report import as_json, instruction_sets, ratios_table, systems_table
from peers.summary import pooled_rate, ratios, summarize
from rich.console import Console

PREFILL = Job("long", "prefill", Request([3] * 8, 1), is_prefill=True)


def turn(
    system: str,
    repeat: int,
    name: str,
    tokens: list[int],
    *,
    first: tuple[float, int],
    seconds: float,
    **more: Any,
) -> Turn:
    job = Job(name, "qa", Request([1], len(tokens)))
    return Turn(system, repeat, job, Reply(tokens, *first, seconds), more.get("others"), 1)


def prefill(system: str, seconds: float) -> Turn:
    return Turn(system, 0, PREFILL, Reply([1], seconds, 1, seconds), None, 1)


TURNS = [
    turn("ref", 0, "a", [1, 2, 3, 4, 5], first=(1.0, 1), seconds=3.0),
    turn("ref", 0, "b", [1, 2, 3, 4, 5], first=(1.0, 1), seconds=9.0, others=0.9),
    turn("ref", 1, "a", [1, 2, 3, 4, 5], first=(1.0, 1), seconds=5.0),
    turn("ref", 1, "b", [1, 2, 3, 4, 5], first=(1.0, 1), seconds=5.0),
    *(prefill("ref", seconds) for seconds in (4.0, 1.0, 2.0)),
    turn("ours", 0, "a", [1, 2, 3, 4, 5], first=(1.0, 1), seconds=2.0),
    turn("ours", 0, "b", [1, 2, 3, 4, 5], first=(1.0, 1), seconds=2.0),
    turn("ours", 1, "a", [1, 2, 3, 4, 5], first=(1.0, 1), seconds=2.0),
    turn("ours", 1, "b", [1, 2, 3, 4, 9], first=(1.0, 1), seconds=2.0),
    prefill("ours", 0.5),
]


def test_rates_are_pooled_over_the_time_behind_the_first_tokens() -> None:
    turns = [
        turn("x", 0, "a", [1, 2, 3, 4, 5], first=(100.0, 2), seconds=101.0),
        turn("x", 0, "b", [1, 2, 3, 4, 5], first=(50.0, 1), seconds=56.0),
    ]
    assert pooled_rate(turns) == (3 + 4) / (1.0 + 6.0)


def test_a_systems_figures() -> None:
    ref, ours = summarize(TURNS, "ref")
    assert ref.name == "ref"
    assert ref.tokens_per_second == 16 / (2 + 8 + 4 + 4)
    assert ref.repeats_tokens_per_second == [8 / 10, 8 / 8]
    assert ref.best_tokens_per_second == 8 / (2 + 4)
    assert ref.prefill_seconds == 2.0
    assert (ref.num_disturbed, ref.num_turns) == (1, 7)
    assert ours.prefill_seconds == 0.5


def test_tokens_must_be_the_references_in_every_repeat() -> None:
    ref, ours = summarize(TURNS, "ref")
    assert (ref.num_identical, ref.num_compared) == (2, 2)
    assert (ours.num_identical, ours.num_compared) == (1, 2)


def test_without_a_reference_nothing_is_compared() -> None:
    assert [(one.num_identical, one.num_compared) for one in summarize(TURNS, "absent")] == [(0, 0), (0, 0)]


def test_a_system_without_a_decoding_turn_is_left_out() -> None:
    assert summarize([prefill("x", 1.0)], "ref") == []


def test_ratios_are_ours_over_the_peer() -> None:
    ref, ours = summarize(TURNS, "ref")
    (ratio,) = ratios([ours], [ref])
    assert (ratio.ours, ratio.peer) == ("ours", "ref")
    assert ratio.decode == pytest.approx(4.0 / (16 / 18))
    assert ratio.lowest == pytest.approx(4.0)
    assert ratio.highest == pytest.approx(5.0)
    assert ratio.best == pytest.approx(4.0 / (8 / 6))
    assert ratio.prefill == 4.0


def test_a_missing_prefill_leaves_its_ratio_open() -> None:
    ref, ours = summarize([one for one in TURNS if not (one.job.is_prefill and one.system == "ref")], "ref")
    assert ref.prefill_seconds is None
    assert ratios([ours], [ref])[0].prefill is None


def test_the_tables_show_missing_systems_and_ratios() -> None:
    summaries = summarize(TURNS, "ref")
    console = Console(width=80, record=True, quiet=False)
    with console.capture() as capture:
        console.print(systems_table(summaries, {"lost": "no wheel"}, 512))
        console.print(ratios_table(ratios(summaries[1:], summaries[:1])))
    lines = [line.split() for line in capture.get().splitlines()]
    assert ["ours", "4.0", "4.0-4.0", "4.0", "500", "ms", "1/2", "0/5"] in lines
    assert ["lost", "missing"] in lines
    assert ["ref", "4.50,", "best", "3.00"] in lines


def test_the_document_is_json_and_holds_each_turn() -> None:
    document = as_json(
        machine={"commit": "c"},
        command="run",
        versions={"ref": {"torch": "2"}},
        idle_cores={"ref": None},
        summaries=summarize(TURNS, "ref"),
        ratios=[],
        missing={"lost": "no wheel"},
        turns=TURNS,
    )
    read = json.loads(json.dumps(document))
    assert read == document
    assert [one["token_ids"] for one in read["turns"]] == [one.reply.token_ids for one in TURNS]
    assert read["missing"] == {"lost": "no wheel"}


def test_instruction_sets_are_those_of_vectors(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("model name\t: X\nflags\t\t: fpu avx2 fma avx512_bf16 sse2\n")
    assert instruction_sets(cpuinfo) == ["avx2", "fma", "avx512_bf16"]
    assert instruction_sets(tmp_path / "absent") == []

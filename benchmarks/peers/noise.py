"""How busy other processes keep the processors while one system is measured (Linux; elsewhere it is not known)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc")


class Sample(NamedTuple):
    """Readings at one moment, in seconds.

    Attributes:
        wall: the clock.
        all_busy: computed so far on all cores by all, and what a hypervisor took.
        sessions: computed so far by each session that was asked for.
    """

    wall: float
    all_busy: float
    sessions: dict[int, float]


def sample(sessions: Iterable[int]) -> Sample | None:
    """Read the clocks of the machine and of these sessions; None where there is no `/proc`."""
    try:
        cpu = (_PROC / "stat").read_text(encoding="ascii").split("\n", 1)[0]
    except OSError:
        return None
    per_second = os.sysconf("SC_CLK_TCK")
    found = dict.fromkeys(sessions, 0.0)
    for folder in _PROC.iterdir():
        if folder.name.isdigit():
            try:
                session, ticks = session_ticks(
                    (folder / "stat").read_text(encoding="utf-8", errors="replace")
                )
            except OSError:  # it has just ended
                continue
            if session in found:
                found[session] += ticks / per_second
    return Sample(time.monotonic(), busy_ticks(cpu) / per_second, found)


def busy_ticks(line: str) -> int:
    """Of the line `cpu` of `/proc/stat`: user, nice, system, irq, softirq and steal; not idle and iowait."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, line.split()[1:9])
    return user + nice + system + irq + softirq + steal


def session_ticks(line: str) -> tuple[int, int]:
    """Session and computed ticks of a line of `/proc/<pid>/stat`; waited-for children count too."""
    fields = line.rpartition(")")[2].split()  # the name before may hold anything
    return int(fields[3]), sum(map(int, fields[11:15]))


def others_cores(before: Sample | None, after: Sample | None, session: int) -> float | None:
    """How many cores, on average, somebody other than `session` kept busy; None if not known."""
    if before is None or after is None:
        return None
    own = after.sessions[session] - before.sessions[session]
    wall = max(after.wall - before.wall, 1e-9)
    return max(0.0, (after.all_busy - before.all_busy - own) / wall)


def session_cores(before: Sample | None, after: Sample | None, session: int) -> float | None:
    """How many cores, on average, `session` kept busy; None if not known."""
    if before is None or after is None:
        return None
    return (after.sessions[session] - before.sessions[session]) / max(after.wall - before.wall, 1e-9)

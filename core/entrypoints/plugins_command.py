"""`outrider plugins`: which plugins are installed, and with `--check` whether they work. Imports no torch itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from ..plugins import PluginInfo, discover, examine

_COLUMNS = ("kind", "name", "distribution", "version", "status")


def run_plugins_command(*, as_json: bool = False, check: bool = False) -> int:
    """Print the installed plugins as a table, or as a JSON list.

    Args:
        check: import each of them; without it none is imported.

    Returns:
        Exit status: 1 if `check` finds a broken one, else 0.
    """
    infos = discover()
    if check:
        infos = [examine(info) for info in infos]
    print(json.dumps([asdict(info) for info in infos], indent=2) if as_json else _table(infos))
    return int(check and any(info.status == "broken" for info in infos))


def _table(infos: Sequence[PluginInfo]) -> str:
    if not infos:
        return "no plugins are installed; pip install outrider-<name>"
    rows = [_COLUMNS, *(tuple(getattr(info, column) for column in _COLUMNS) for info in infos)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    broken = [f"{info.name} ({info.shipped_by}): {info.error}" for info in infos if info.status == "broken"]
    return "\n".join([*lines, *([""] if broken else []), *broken])

"""`outrider plugins`: a table or JSON, without importing a plugin, and fast because of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from outrider.entrypoints.plugins_command import run_plugins_command


@pytest.fixture(autouse=True)
def _installed(fake_site):
    """A good and a bad proposer, beside whatever is really installed."""
    fake_site.proposer("good", version="1.5")
    fake_site.proposer("bad", "import module_that_is_missing")


def listed(capsys: Any) -> dict[str, dict[str, str]]:
    return {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}


def test_json(capsys):
    assert run_plugins_command(as_json=True) == 0
    entries = listed(capsys)
    assert entries["good"] == {
        "kind": "proposer",
        "name": "good",
        "distribution": "outrider-good",
        "version": "1.5",
        "value": "fake_good:Proposer",
        "status": "installed",
        "error": None,
    }
    assert entries["bad"]["status"] == "installed"


def test_check_imports_and_tells_the_broken_ones(capsys, monkeypatch):
    monkeypatch.setenv("OUTRIDER_PLUGINS", "good,bad")
    assert run_plugins_command(as_json=True, check=True) == 1
    entries = listed(capsys)
    assert (entries["good"]["status"], entries["good"]["error"]) == ("ok", None)
    assert entries["bad"]["status"] == "broken"
    assert "No module named 'module_that_is_missing'" in entries["bad"]["error"]


def test_check_of_good_plugins_succeeds(capsys, monkeypatch):
    monkeypatch.setenv("OUTRIDER_PLUGINS", "good")
    assert run_plugins_command(as_json=True, check=True) == 0
    assert listed(capsys)["bad"]["status"] == "excluded"


def test_table(capsys, monkeypatch):
    monkeypatch.setenv("OUTRIDER_PLUGINS", "good,bad")
    assert run_plugins_command(check=True) == 1
    table, reasons = capsys.readouterr().out.split("\n\n")
    rows = [line.split() for line in table.splitlines()]
    assert rows[0] == ["kind", "name", "distribution", "version", "status"]
    assert ["proposer", "good", "outrider-good", "1.5", "ok"] in rows
    assert ["proposer", "bad", "outrider-bad", "1.0", "broken"] in rows
    assert reasons.startswith("bad (outrider-bad 1.0): cannot be imported: ModuleNotFoundError: ")


def test_nothing_installed(capsys, monkeypatch):
    monkeypatch.setattr("outrider.entrypoints.plugins_command.discover", list)
    assert run_plugins_command() == 0
    assert capsys.readouterr().out == "no plugins are installed; pip install outrider-<name>\n"


COMMAND = """
import sys
from outrider.entrypoints.cli import main
sys.argv = ["outrider", "plugins", "--json"]
try:
    main()
finally:
    heavy = {"torch", "transformers", "numba", "numpy", "fake_good", "fake_bad"} & set(sys.modules)
    print(*sorted(heavy), file=sys.stderr)
"""


def test_the_command_loads_no_plugin_and_no_tensor_library(fake_site):
    done = subprocess.run(
        [sys.executable, "-c", COMMAND],
        env={**os.environ, "PYTHONPATH": str(fake_site.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "good" in {entry["name"] for entry in json.loads(done.stdout)}
    assert done.stderr.strip() == ""

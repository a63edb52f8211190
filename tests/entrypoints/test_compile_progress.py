"""A cold start says what it compiles, and a warm one says nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from outrider.entrypoints.compile_progress import compile_progress

SCRIPT = """
from numba import njit
from outrider.entrypoints.compile_progress import compile_progress

@njit
def a_part(x):
    return x + 1

@njit(cache=True)
def a_cached_part(x):
    return x + 2

@njit(cache=True)
def a_kernel(x):
    return a_part(x) * a_cached_part(x)

@njit
def of_a_plugin(x):
    return x + 3

@njit(cache=True)
def broken(x):
    return x + nothing_of_this_name

with compile_progress():
    assert a_kernel(1) == a_kernel(1) == 6
    of_a_plugin(1)
    try:
        broken(1)
    except Exception:
        pass
    assert a_kernel(0.5) == 3.75
a_kernel(2j)
"""


def test_nothing_is_printed_when_nothing_is_compiled(capsys: pytest.CaptureFixture[str]) -> None:
    with compile_progress():
        pass
    assert capsys.readouterr() == ("", "")


def test_a_kernel_is_named_once_per_compilation_and_its_parts_are_not(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    cold, warm = (
        subprocess.run(
            [sys.executable, str(script)],
            env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")},
            capture_output=True,
            text=True,
            check=True,
        )
        for _ in range(2)
    )
    first, *lines = cold.stderr.splitlines()
    assert first == "Compiling kernels for this machine and these weights, once (up to a minute) ..."
    assert [line.split(" ... ")[0] for line in lines] == ["  a_kernel", "  broken", "  a_kernel"]
    assert all(line.endswith(" s") for line in lines)
    # What cannot be compiled is not in the cache either.
    assert [line.split(" ... ")[0] for line in warm.stderr.splitlines()[1:]] == ["  broken"]
    assert cold.stdout == warm.stdout == ""

"""The lists that have to agree: dependencies and constraints, versions and folders."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECTS = [ROOT / "pyproject.toml", *sorted((ROOT / "plugins").glob("*/pyproject.toml"))]


def project(path: Path) -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
    return table


def requirements(path: Path) -> list[Requirement]:
    table = project(path)
    extras = [line for lines in table.get("optional-dependencies", {}).values() for line in lines]
    return [Requirement(line) for line in (*table["dependencies"], *extras)]


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pairs}


@pytest.mark.parametrize("path", PROJECTS, ids=lambda path: path.parent.name)
def test_every_dependency_is_a_range_and_is_pinned_within_it(path):
    pinned = {**pins(), "outrider": project(ROOT / "pyproject.toml")["version"]}
    for requirement in requirements(path):
        if requirement.name.startswith("types-"):
            continue
        assert requirement.specifier, f"{requirement} has no lower bound"
        version = pinned.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement.name} is not in constraints.txt"
        assert requirement.specifier.contains(version), f"{requirement} excludes the pinned {version}"


def test_the_extras():
    assert {"gguf", "llguidance"} <= set(project(ROOT / "pyproject.toml")["optional-dependencies"])


@pytest.mark.parametrize("path", PROJECTS[1:], ids=lambda path: path.parent.name)
def test_a_plugin_is_an_ordinary_distribution_that_depends_on_the_core(path):
    table = project(path)
    assert re.fullmatch(r"outrider-[a-z]+", table["name"])
    assert "outrider" in {requirement.name for requirement in requirements(path)}
    assert table["license"] == "Apache-2.0"
    assert (path.parent / "README.md").is_file()
    assert any((path.parent / "tests").glob("test_*.py"))


def test_the_changelog_knows_the_version():
    version = project(ROOT / "pyproject.toml")["version"]
    assert f"\n## {version}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_ci_script_can_be_run_and_runs_lint_and_tests():
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    assert [line for line in script.read_text(encoding="utf-8").splitlines() if line.startswith("make ")] == [
        "make lint",
        "make test",
    ]


def test_importing_the_front_door_loads_no_torch():
    code = "import sys, outrider; outrider.SamplingParams(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"

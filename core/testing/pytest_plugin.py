"""A pytest plugin that comes with Outrider: fixtures for the tests of proposers and attention backends.

Installed packages load it into every pytest run, so it imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("outrider.testing.conformance", "outrider.testing.harness")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the tiny transformer, with its tokenizer of single characters."""
    from .tiny_models import tiny_transformer

    return tiny_transformer(tmp_path_factory.mktemp("tiny-model"), tokenizer=True)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Compute a module's tests on one thread: on models this small a second one only waits."""
    import numba
    import torch

    before = torch.get_num_threads(), numba.get_num_threads()
    torch.set_num_threads(1)
    numba.set_num_threads(1)
    yield
    torch.set_num_threads(before[0])
    numba.set_num_threads(before[1])

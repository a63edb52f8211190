"""Models for the whole folder."""

import pytest

from outrider.testing.recurrent import toy_recurrent
from outrider.testing.tiny_models import tiny_transformer


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """The tiny transformer, without a tokenizer."""
    return tiny_transformer(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def tiny_text(tmp_path_factory):
    """The tiny transformer with the tokenizer of single characters."""
    return tiny_transformer(tmp_path_factory.mktemp("tiny-text"), tokenizer=True)


@pytest.fixture(scope="session")
def tiny_with_eos(tmp_path_factory):
    """Function: the tiny transformer with this end token, and the tokenizer."""
    folders = {}

    def build(eos_token_id):
        if eos_token_id not in folders:
            folder = tmp_path_factory.mktemp(f"tiny-eos-{eos_token_id}-")
            folders[eos_token_id] = tiny_transformer(folder, eos_token_id=eos_token_id, tokenizer=True)
        return folders[eos_token_id]

    return build


@pytest.fixture(scope="session")
def recurrent(tmp_path_factory):
    """The toy recurrent model."""
    return toy_recurrent(tmp_path_factory.mktemp("recurrent"))

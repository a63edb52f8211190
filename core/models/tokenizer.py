"""Loads the tokenizer that goes with a model, if there is one."""

from __future__ import annotations

from typing import Any

from transformers import AutoTokenizer
from transformers.utils import cached_file

from ..api import ModelError
from .gguf import load_gguf_tokenizer
from .sources import ModelSource

_FILES = ("tokenizer_config.json", "tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")


def load_tokenizer(source: ModelSource, name: str | None, trust_remote_code: bool) -> Any:
    """Load the tokenizer `name`, or the model's own if None.

    Returns:
        A transformers tokenizer; None if `name` is None and the model has none: it then works on token ids.

    Raises:
        ModelError: `name` has no tokenizer.
        Exception: whatever transformers raises for a broken one.
    """
    if name is None and source.gguf_file is not None:
        return load_gguf_tokenizer(source.gguf_file)
    location = name or source.location
    if not _has_tokenizer(location):
        if name is None:
            return None
        raise ModelError(
            f"tokenizer {name!r} not found: no folder or hub id of that name has one of {', '.join(_FILES)}"
        )
    return AutoTokenizer.from_pretrained(location, trust_remote_code=trust_remote_code)


def _has_tokenizer(location: str) -> bool:
    # Asked file by file: for some model types transformers builds an empty tokenizer rather than say there is none.
    return any(
        cached_file(
            location,
            file,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_gated_repo=False,
            _raise_exceptions_for_connection_errors=False,
        )
        is not None
        for file in _FILES
    )

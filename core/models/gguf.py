"""GGUF files, read through transformers."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ..api import ModelError

_NEEDED = ("gguf", "accelerate")


def load_gguf_model(path: Path, dtype: torch.dtype, attention: str) -> tuple[Any, dict[str, Any]]:
    """Dequantise a GGUF file into a transformers model; takes seconds even for a small one.

    Args:
        attention: name of the attention implementation.

    Returns:
        The model, and transformers' report of missing and unexpected weights.

    Raises:
        ModelError: the packages that read GGUF are not installed.
    """
    require_gguf_packages(path.name)
    model, report = AutoModelForCausalLM.from_pretrained(
        str(path.parent),
        gguf_file=path.name,
        dtype=dtype,
        attn_implementation=attention,
        output_loading_info=True,
    )
    # The weights are plain tensors now. These two leftovers of the reader make `save_pretrained` refuse the model.
    del model.config.quantization_config
    model.hf_quantizer = None
    return model, report


def load_gguf_tokenizer(path: Path) -> Any:
    """Build the tokenizer that a GGUF file describes; its chat template comes along."""
    require_gguf_packages(path.name)
    return AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)


def require_gguf_packages(name: str) -> None:
    """Raise ModelError if a package that reads GGUF is missing; `name` says which file needs it."""
    missing = [package for package in _NEEDED if importlib.util.find_spec(package) is None]
    if missing:
        raise ModelError(
            f"reading {name} needs {' and '.join(missing)}, not installed here: pip install 'outrider[gguf]'"
        )

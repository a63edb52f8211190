"""What a model name stands for."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..api import ModelError
from .smollm2 import ALIAS as SMOLLM2
from .smollm2 import smollm2_folder

ACCEPTED = f"a local folder, a hub id such as 'organisation/name', the path of a GGUF file, or {SMOLLM2!r}"
_ALIASES: Mapping[str, Callable[[], Path]] = {SMOLLM2: smollm2_folder}
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a model comes from: exactly one of the three.

    Attributes:
        name: as the user wrote it.
    """

    name: str
    folder: Path | None = None
    gguf_file: Path | None = None
    hub_id: str | None = None

    @property
    def location(self) -> str:
        """What transformers' `from_pretrained` takes first."""
        if self.gguf_file is not None:
            return str(self.gguf_file.parent)
        return str(self.folder) if self.folder is not None else str(self.hub_id)


def find_source(name: str) -> ModelSource:
    """Tell a model name's kind, without loading anything; `smollm2` is converted if this is the first time.

    Aliases come first; a folder of the same name is `./name`. A hub id is taken on trust.

    Raises:
        ModelError: nothing that the name could stand for exists.
    """
    if name in _ALIASES:
        return ModelSource(name, folder=_ALIASES[name]())
    path = Path(name).expanduser()
    if path.is_dir():
        return ModelSource(name, folder=path)
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelError(f"model {name!r} is a file, but not a GGUF file; a model is {ACCEPTED}")
        return ModelSource(name, gguf_file=path)
    near = difflib.get_close_matches(name.lower(), _ALIASES, n=1, cutoff=0.7)
    if near or path.suffix == ".gguf" or not _HUB_ID.fullmatch(name) or name.startswith("."):
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ModelError(
            f"there is no model {name!r}: it is no folder, no file and no known alias{hint}; a model is {ACCEPTED}"
        )
    return ModelSource(name, hub_id=name)

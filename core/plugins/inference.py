"""Which proposer a `speculative_config` means when it names only a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..api import ConfigError
from ..config import SpeculativeConfig
from ..config.hints import did_you_mean, listed
from .discovery import discover
from .loading import is_dotted, is_file_reference

CUSTOM_CLASS = "custom_class"
"""vLLM's method name for "`model` is the path of a class"."""


def infer_method(speculative: SpeculativeConfig) -> tuple[str | type[Any], str | None]:
    """Return the method, and the drafter's model if there is one.

    Without `method`, `model` is an installed proposer's name, the path of a class, or a local folder whose
    `config.json` names the method: `speculators_config.algorithm` (the "speculators" format), or a `model_type` that
    is an installed proposer's name.

    Raises:
        ConfigError: the model does not tell.
    """
    method, model = speculative.method, speculative.model
    if method is not None and method != CUSTOM_CLASS:
        return method, model
    if model is None:
        raise ConfigError(f"speculative_config: method={CUSTOM_CLASS!r} needs model='package.module:Class'")
    installed = [info.name for info in discover("proposer")]
    if Path(model).is_dir():
        return _from_checkpoint(Path(model), installed), model
    if model in installed or is_file_reference(model) or is_dotted(model):
        return model, None
    raise ConfigError(
        f"speculative_config: no method is given and model={model!r} does not tell it: it is no installed proposer"
        f"{did_you_mean(model, installed) or ','} no path of a class, and no local folder; "
        f"give a `method` (installed: {listed(installed)})"
    )


def _from_checkpoint(folder: Path, installed: list[str]) -> str:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"speculative_config: no method is given and model={str(folder)!r} does not tell it: its config.json "
            f"cannot be read ({error}); give a `method` (installed: {listed(installed)})"
        ) from error
    config = config if isinstance(config, dict) else {}
    speculators = config.get("speculators_config")
    if isinstance(speculators, dict) and isinstance(speculators.get("algorithm"), str):
        algorithm: str = speculators["algorithm"]
        return algorithm
    model_type = config.get("model_type")
    if isinstance(model_type, str) and model_type in installed:
        return model_type
    raise ConfigError(
        f"speculative_config: no method is given and model={str(folder)!r} does not tell it: its config.json has "
        f"no speculators_config.algorithm, and model_type={model_type!r} is no installed proposer; "
        f"give a `method` (installed: {listed(installed)})"
    )

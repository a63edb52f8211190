"""Outrider: lossless speculative decoding as a plugin framework."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .api import SamplingParams
from .hookspecs import hookimpl

if TYPE_CHECKING:
    from .entrypoints.llm import LLM

__all__ = ["LLM", "SamplingParams", "hookimpl"]


def __getattr__(name: str) -> Any:
    # Importing torch takes seconds; `outrider plugins` and plugin modules must not pay for it.
    if name == "LLM":
        from .entrypoints.llm import LLM

        return LLM
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

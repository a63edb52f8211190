"""Outrider: lossless speculative decoding as a plugin framework."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from .api import SamplingParams
from .hookspecs import hookimpl

if TYPE_CHECKING:
    from .entrypoints.llm import LLM

# A thread that waits for the others at the end of a parallel loop spins, by default for milliseconds, on a core that
# the others (or another process) may need. A short spin bridges the gap between two kernels of a layer; then it
# sleeps. GNU OpenMP reads this once, when torch or numba loads it, so it must be set before either is imported.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

__all__ = ["LLM", "SamplingParams", "hookimpl"]


def __getattr__(name: str) -> Any:
    # Importing torch takes seconds; `outrider plugins` and plugin modules must not pay for it.
    if name == "LLM":
        from .entrypoints.llm import LLM

        return LLM
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

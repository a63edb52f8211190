"""Sentences that help a user who misspelt something. No imports beyond the standard library."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate that `name` was most likely meant to be, or None if none is close."""
    by_folded = {_fold(candidate): candidate for candidate in candidates}
    matches = difflib.get_close_matches(_fold(name), by_folded, n=1, cutoff=0.6)
    return by_folded[matches[0]] if matches else None


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """`"; did you mean 'x'?"`, or an empty string if nothing is close."""
    match = nearest(name, candidates)
    return f"; did you mean {match!r}?" if match is not None and match != name else ""


def listed(names: Iterable[str]) -> str:
    """The names in alphabetical order, or "none"."""
    return ", ".join(sorted(names)) or "none"


def _fold(name: str) -> str:
    return name.lower().replace("-", "_")

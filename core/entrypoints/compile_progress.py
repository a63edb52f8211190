"""Says what a cold start does: kernels are compiled once for a machine, and that takes a while."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numba.core import event
from numba.core.caching import NullCache


class _Listener(event.Listener):
    """Hears of every function that numba compiles; those it loads from its cache on disk make no event."""

    def __init__(self) -> None:
        self._depth = 0  # a kernel's parts are compiled while the kernel is
        self._begin: float | None = None
        self._said = False

    def on_start(self, event: Any) -> None:
        self._depth += 1
        dispatcher = event.data["dispatcher"]
        if self._depth > 1 or isinstance(dispatcher._cache, NullCache):
            return
        if not self._said:
            print(
                "Compiling kernels for this machine and these weights, once (up to a minute) ...",
                file=sys.stderr,
            )
            self._said = True
        self._begin = time.perf_counter()
        print(f"  {dispatcher.py_func.__name__} ...", end="", file=sys.stderr, flush=True)

    def on_end(self, event: Any) -> None:
        self._depth -= 1
        if self._depth == 0 and self._begin is not None:
            print(f" {time.perf_counter() - self._begin:.0f} s", file=sys.stderr, flush=True)
            self._begin = None


@contextmanager
def compile_progress() -> Iterator[None]:
    """Print a line for each kernel that is compiled while the context lasts."""
    listener = _Listener()
    event.register("numba:compile", listener)
    try:
        yield
    finally:
        event.unregister("numba:compile", listener)

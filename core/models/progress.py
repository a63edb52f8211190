"""What a user sees on stderr while a model is loaded."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from transformers.utils import logging as transformers_logging


@contextmanager
def quiet() -> Iterator[None]:
    """Hide transformers' progress bars: loading safetensors takes a second."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


def announce(what: str) -> None:
    """Say what is going to take a while; transformers' own progress bars follow."""
    print(f"{what} ...", file=sys.stderr, flush=True)

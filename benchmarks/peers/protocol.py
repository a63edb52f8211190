"""What driver and workers say to each other: one JSON object a line, over the worker's stdin and stdout.

The worker speaks first: a `Ready`, or a line with the one key `error`. From then on every `Request` is answered by one
`Reply` or `error`. Standard library only, since every engine's environment runs it.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TextIO, TypeVar


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker is loaded.

    Attributes:
        versions: of the packages that do the work.
    """

    versions: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Request:
    """Continue `prompt_token_ids` greedily by exactly `max_tokens` tokens, past any end of text."""

    prompt_token_ids: Sequence[int]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Reply:
    """What came of one request.

    Attributes:
        token_ids: the continuation, of the length asked for.
        first_seconds: from the request to its first tokens: the prompt's part.
        num_first: how many tokens these were; a drafter may bring several.
        seconds: from the request to its last token.
    """

    token_ids: Sequence[int]
    first_seconds: float
    num_first: int
    seconds: float


class WorkerError(Exception):
    """A worker could not be started, stopped, or said something that is no answer."""


Message = TypeVar("Message", Ready, Request, Reply)

Emit = Callable[[Iterable[int]], None]
"""Takes new token ids, at the moment at which the engine hands them out."""

Decode = Callable[[Sequence[int], int, Emit], None]
"""`decode(prompt_token_ids, max_tokens, emit)`: runs one request."""

Load = Callable[[Mapping[str, Any]], Decode]
"""Loads an engine, from the system's options."""


def encode(message: Ready | Request | Reply) -> str:
    """One line, without its end."""
    return json.dumps(asdict(message))


def decode_line(line: str, kind: type[Message]) -> Message:
    """Read what `encode` wrote.

    Raises:
        WorkerError: the line is an `error`, or not a message of this kind.
    """
    try:
        fields = json.loads(line)
        error = fields.get("error")
        message = None if error is not None else kind(**fields)
    except (ValueError, TypeError, AttributeError):
        raise WorkerError(f"expected a {kind.__name__}, got the line {line[:200]!r}") from None
    if message is None:
        raise WorkerError(str(error))
    return message


def answer(request: Request, decode: Decode, clock: Callable[[], float] = time.perf_counter) -> Reply:
    """Run a request and time it.

    Raises:
        WorkerError: the engine gave another number of tokens than it was asked for. Tokens per second would not
            compare then.
    """
    token_ids: list[int] = []
    first: tuple[float, int] | None = None
    start = last = clock()

    def emit(new: Iterable[int]) -> None:
        nonlocal first, last
        token_ids.extend(new)
        last = clock()
        if first is None and token_ids:
            first = (last - start, len(token_ids))

    decode(request.prompt_token_ids, request.max_tokens, emit)
    if first is None or len(token_ids) != request.max_tokens:
        raise WorkerError(f"asked for {request.max_tokens} tokens, got {len(token_ids)}")
    return Reply(token_ids, first[0], first[1], last - start)


def serve(load: Load, packages: Sequence[str]) -> None:
    """Be a worker: load, then answer requests until stdin ends. Options are the first argument, as JSON.

    Args:
        packages: distributions whose versions to report.
    """
    out = _claim_stdout()
    try:
        decode = load(json.loads(sys.argv[1]))
        print(encode(Ready({name: importlib.metadata.version(name) for name in packages})), file=out)
        for line in sys.stdin:
            print(encode(answer(decode_line(line, Request), decode)), file=out)
    except Exception as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=out)
        raise  # the traceback goes to the log


def _claim_stdout() -> TextIO:
    """The only handle to stdout: engines print there as they like, and from now on that goes to stderr."""
    own = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(own, "w", buffering=1, encoding="utf-8")

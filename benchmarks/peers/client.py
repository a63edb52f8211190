"""A worker process, seen from the driver."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from threading import Timer

from .environments import FOLDER, last_line, python_of
from .protocol import Ready, Reply, Request, WorkerError, decode_line, encode
from .systems import THREADS, System

_LOAD_SECONDS = 900.0
_ANSWER_SECONDS = 600.0


class Worker:
    """One system, loaded and waiting. Close it, or use it in a `with` statement.

    Attributes:
        session: id of the session (as in `setsid`) that all its processes belong to.
        ready: what it said when it had loaded.

    Raises:
        WorkerError: it did not load; with its error, or the last line of its log, `logs/<system>.log`.
    """

    def __init__(self, system: System, folder: Path = FOLDER) -> None:
        self._log = folder / "logs" / f"{system.name}.log"
        self._log.parent.mkdir(parents=True, exist_ok=True)
        module = f"{__package__}.workers.{system.environment}_worker"
        environment = str(folder / system.environment)
        variables = {name: text.format(environment=environment) for name, text in system.variables.items()}
        with self._log.open("w", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                [str(python_of(system.environment)), "-m", module, json.dumps(dict(system.options))],
                cwd=Path(__file__).parents[1],  # where `-m` finds this package
                env={**os.environ, **THREADS, **variables},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self.session = self._process.pid
        try:
            self.ready = decode_line(self._read_line(_LOAD_SECONDS), Ready)
        except BaseException:
            self.close()
            raise

    def run(self, request: Request) -> Reply:
        """Send a request and wait for its end.

        Raises:
            WorkerError: the engine failed, stopped, or took more than ten minutes. The worker is of no use then.
        """
        assert self._process.stdin is not None
        with suppress(OSError):  # it has ended; its output says why
            print(encode(request), file=self._process.stdin, flush=True)
        return decode_line(self._read_line(_ANSWER_SECONDS), Reply)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(OSError):
            self._process.stdin.close()  # it leaves its loop
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._kill()
            self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.session, signal.SIGKILL)  # what it has started, too

    def _read_line(self, seconds: float) -> str:
        assert self._process.stdout is not None
        timer = Timer(seconds, self._kill)
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            text = self._log.read_text(encoding="utf-8", errors="replace")
            raise WorkerError(f"the process ended; the last line of its log: {last_line(text)}")
        return line

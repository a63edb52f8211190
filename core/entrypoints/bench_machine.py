"""What a benchmark ran on: the machine, the software, the day."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


def describe_machine() -> dict[str, Any]:
    """Versions, commit, processor, threads, and the date in UTC, as JSON takes them."""
    import numba

    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "outrider": importlib.metadata.version("outrider"),
        "torch": importlib.metadata.version("torch"),
        "transformers": importlib.metadata.version("transformers"),
        "python": platform.python_version(),
        "processor": _processor(),
        "num_cpus": os.cpu_count(),
        "num_threads": numba.get_num_threads(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _commit() -> str | None:
    """Of the checkout that this file belongs to; None if it was installed without one."""
    here = Path(__file__)
    # An installed copy may lie in the folder of a repository that knows nothing of it.
    git = ["git", "-C", str(here.parent)]
    if _output([*git, "ls-files", "--error-unmatch", here.name]) is None:
        return None
    return _output([*git, "describe", "--always", "--dirty", "--exclude=*"])


def _output(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()

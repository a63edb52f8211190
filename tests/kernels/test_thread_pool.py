"""Waiting threads give their core away, unless the user says otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
import os, sys
import outrider
assert "torch" not in sys.modules and "numba" not in sys.modules
print(os.environ["GOMP_SPINCOUNT"])
"""


@pytest.mark.parametrize(("given", "expected"), [(None, "1000"), ("7", "7")])
def test_the_spin_of_waiting_threads_is_set_before_a_thread_pool_can_be_loaded(
    given: str | None, expected: str
) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "GOMP_SPINCOUNT"}
    if given is not None:
        environment["GOMP_SPINCOUNT"] = given
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [expected]

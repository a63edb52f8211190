"""Waiting threads give their core away, unless the user says otherwise."""

from __future__ import annotations

import importlib
import os

import pytest

from outrider.kernels import cpu


@pytest.mark.parametrize(("given", "expected"), [(None, "1000"), ("7", "7")])
def test_the_spin_of_waiting_threads_is_short_by_default(
    monkeypatch: pytest.MonkeyPatch, given: str | None, expected: str
) -> None:
    monkeypatch.setenv("GOMP_SPINCOUNT", "")  # restored afterwards, whatever happens
    monkeypatch.delenv("GOMP_SPINCOUNT")
    if given is not None:
        monkeypatch.setenv("GOMP_SPINCOUNT", given)
    importlib.reload(cpu)
    assert os.environ["GOMP_SPINCOUNT"] == expected

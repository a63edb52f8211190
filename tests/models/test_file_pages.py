"""Which memory is given back: pages that are those of a file, and no others."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from outrider.models.file_pages import drop_file_pages

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

SIZE = 1 << 20


@pytest.fixture
def mapped(tmp_path: Path) -> npt.NDArray[np.uint8]:
    """A private mapping of a file, all of it read."""
    (tmp_path / "file").write_bytes(np.arange(SIZE, dtype=np.uint32).astype(np.uint8).tobytes())
    array = np.memmap(tmp_path / "file", np.uint8, "c")
    assert array.sum() > 0
    return array


def resident(array: npt.NDArray[np.uint8]) -> int:
    """Bytes of the mapping that holds `array` that are in memory."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    begin = f"{array.ctypes.data:x}-"
    at = next(i for i, line in enumerate(lines) if line.startswith(begin))
    return next(1024 * int(line.split()[1]) for line in lines[at:] if line.startswith("Rss:"))


def test_pages_of_a_file_are_dropped_and_read_again(mapped: npt.NDArray[np.uint8]) -> None:
    before = mapped.copy()
    assert resident(mapped) == SIZE
    assert drop_file_pages(mapped)
    assert resident(mapped) == 0
    assert (mapped == before).all()


def test_pages_that_an_array_shares_with_others_stay(mapped: npt.NDArray[np.uint8]) -> None:
    assert drop_file_pages(mapped[100 : SIZE // 2 + 100])
    assert resident(mapped) == SIZE // 2 + 4096
    assert (mapped[:256] == np.arange(256)).all()


def test_what_was_written_is_kept(mapped: npt.NDArray[np.uint8]) -> None:
    mapped[SIZE // 2] = 77
    assert not drop_file_pages(mapped)
    assert resident(mapped) == SIZE
    assert mapped[SIZE // 2] == 77


def test_memory_of_no_file_is_kept() -> None:
    array = np.arange(SIZE)
    assert not drop_file_pages(array)
    assert (array == np.arange(SIZE)).all()
    assert not drop_file_pages(np.zeros(0, np.uint8))

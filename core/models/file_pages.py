"""Gives back memory that holds nothing but what a mapped file holds."""

from __future__ import annotations

import ctypes
import mmap
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

_PRESENT, _SWAPPED, _OF_FILE = (np.uint64(1 << bit) for bit in (63, 62, 61))
_BYTES_PER_PAGE = 8  # in /proc/self/pagemap, see the kernel's admin-guide/mm/pagemap
_DONT_NEED = 4


def drop_file_pages(array: npt.NDArray[Any]) -> bool:
    """Let the pages of a contiguous array be read from its file again when they are needed next.

    Returns:
        Whether the array lies in a mapped file and was never written to. If not, nothing is done.
    """
    if sys.platform != "linux" or not array.flags.c_contiguous or array.nbytes == 0:
        return False
    begin, end = array.ctypes.data, array.ctypes.data + array.nbytes
    first, last = begin // mmap.PAGESIZE, -(-end // mmap.PAGESIZE)
    try:
        with Path("/proc/self/pagemap").open("rb", buffering=0) as file:
            file.seek(first * _BYTES_PER_PAGE)
            pages = np.frombuffer(file.read((last - first) * _BYTES_PER_PAGE), np.uint64)
    except OSError:
        return False
    present = (pages & _PRESENT) != 0
    if (pages & _SWAPPED).any() or not present.any() or ((pages & _OF_FILE) == 0)[present].any():
        return False
    inner, end_inner = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    if inner < end_inner:
        size = ctypes.c_size_t(end_inner - inner)
        ctypes.CDLL(None).madvise(ctypes.c_void_p(inner), size, ctypes.c_int(_DONT_NEED))
    return True

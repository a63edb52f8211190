"""Which version of the sources a compiled function was built from."""

from __future__ import annotations

import hashlib
from pathlib import Path


def source_fingerprint() -> int:
    """A digest of the sources of this package.

    numba's cache on disk notices changes of the file of a function only, but its machine code contains that of the
    files it imports. So each compiled function returns this number: what it captures is part of the cache key.
    """
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return int.from_bytes(digest.digest()[:4])

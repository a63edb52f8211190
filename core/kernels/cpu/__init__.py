"""CPU kernels in numba: pure functions on arrays, each row's bits independent of its batch."""

import os

# A thread that waits for the others at the end of a parallel loop spins, by default for milliseconds, on a core that
# the others (or torch's pool, or another process) may need. A short spin bridges the gap between two kernels of a
# layer; then it sleeps. Read by GNU OpenMP when numba loads it, which is at the first parallel call.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

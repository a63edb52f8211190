"""CPU kernels in numba: pure functions on arrays, each row's bits independent of its batch."""

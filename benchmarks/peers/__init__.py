"""Outrider beside other engines, in one run: `python -m benchmarks.peers`; see README.md."""

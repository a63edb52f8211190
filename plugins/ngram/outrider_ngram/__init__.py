"""The n-gram (prompt lookup) proposer for Outrider."""

from .options import NgramOptions
from .proposer import NgramProposer

__all__ = ["NgramOptions", "NgramProposer"]

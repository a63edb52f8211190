"""Paged attention on the CPU, as an Outrider attention backend."""

from .backend import FlashBackend, FlashOptions

__all__ = ["FlashBackend", "FlashOptions"]

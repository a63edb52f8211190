"""Configuration of an engine: from Python, from a file, from flags. Mistakes are `ConfigError`s that name the cure."""

from .cache import CacheConfig
from .engine import FLAT_NAMES, EngineConfig
from .model import ModelConfig
from .scheduler import SchedulerConfig
from .speculative import SpeculativeConfig

__all__ = [
    "FLAT_NAMES",
    "CacheConfig",
    "EngineConfig",
    "ModelConfig",
    "SchedulerConfig",
    "SpeculativeConfig",
]

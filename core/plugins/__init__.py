"""Plugins: discovered without importing them, loaded only if the configuration names them, every failure explained."""

from .discovery import ALLOWED_VARIABLE, GROUPS, Kind, PluginInfo, Status, discover
from .facades import BackendHooks, ProposerHooks
from .lifecycle import LifecycleGuard
from .loaded import LoadedPlugin
from .loading import examine
from .manager import PluginManager

__all__ = [
    "ALLOWED_VARIABLE",
    "GROUPS",
    "BackendHooks",
    "Kind",
    "LifecycleGuard",
    "LoadedPlugin",
    "PluginInfo",
    "PluginManager",
    "ProposerHooks",
    "Status",
    "discover",
    "examine",
]

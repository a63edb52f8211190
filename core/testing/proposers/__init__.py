"""Proposers that are good at exactly one thing: showing whether an engine treats drafts rightly.

They are plain plugins: `method="outrider.testing.proposers:OracleProposer"`, or the class itself.
"""

from .fixed_distribution import FixedDistributionProposer
from .hidden_state import HiddenStateProposer
from .hostile import HARMLESS_MODES, HOSTILE_MODES, HostileProposer
from .oracle import OracleProposer, ScheduleProposer
from .random_drafts import RandomProposer
from .self_drafts import SelfProposer

__all__ = [
    "HARMLESS_MODES",
    "HOSTILE_MODES",
    "FixedDistributionProposer",
    "HiddenStateProposer",
    "HostileProposer",
    "OracleProposer",
    "RandomProposer",
    "ScheduleProposer",
    "SelfProposer",
]

"""Proposals: language models, a policy of our own and plain chance fill holes and choose configurations."""

from .archive import Archive, ArchivedSource
from .proposer import Proposer, ProposerError, Reply, Request, SpendingCap
from .reward import RewardSettings, reward
from .spending import Meter

__all__ = [
    "Archive",
    "ArchivedSource",
    "Meter",
    "Proposer",
    "ProposerError",
    "Reply",
    "Request",
    "RewardSettings",
    "SpendingCap",
    "reward",
]

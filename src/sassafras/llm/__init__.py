"""Proposals: language models and plain chance fill holes in kernels' sources and choose configurations."""

from .archive import Archive, ArchivedSource
from .proposer import Proposer, ProposerError, Reply, Request, SpendingCap
from .reward import reward
from .spending import Meter, Spend

__all__ = [
    "Archive",
    "ArchivedSource",
    "Meter",
    "Proposer",
    "ProposerError",
    "Reply",
    "Request",
    "Spend",
    "SpendingCap",
    "reward",
]

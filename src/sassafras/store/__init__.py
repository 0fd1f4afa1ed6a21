"""The store: one SQLite file that keeps every evaluation and every tuned kernel."""

from .records import ModelledWinner, RunRecord, StoredStep, Winner, redrawn_facts
from .schema import default_path
from .store import Store

__all__ = [
    "ModelledWinner",
    "RunRecord",
    "Store",
    "StoredStep",
    "Winner",
    "default_path",
    "redrawn_facts",
]

"""Strategies, and the loop that runs them: budget, record, resumption, progress."""

from .anneal import Anneal
from .contract import Evaluate, Found, Recorded, Recorder, Session, Strategy
from .greedy import Greedy
from .loop import Finished, Progress, run
from .ppo import Ppo
from .random_walk import RandomWalk
from .registry import get, names, parse_settings, settings_of

__all__ = [
    "Anneal", "Evaluate", "Finished", "Found", "Greedy", "Ppo", "Progress", "RandomWalk", "Recorded",
    "Recorder", "Session", "Strategy", "get", "names", "parse_settings", "run", "settings_of",
]  # fmt: skip

"""Strategies, and the loop that runs them: budget, record, resumption, progress."""

from .anneal import Anneal
from .contract import Evaluate, Found, Recorded, Recorder, Session, Strategy
from .descent import Descent, Stage
from .greedy import Greedy
from .guided import Guided
from .list_schedule import ListSchedule
from .loop import Finished, Progress, run, seconds_left
from .ppo import Ppo
from .random_walk import RandomWalk
from .registry import check_settings, get, names, parse_settings, preset, settings_of
from .sip import Sip

__all__ = [
    "Anneal",
    "Descent",
    "Evaluate",
    "Finished",
    "Found",
    "Greedy",
    "Guided",
    "ListSchedule",
    "Ppo",
    "Progress",
    "RandomWalk",
    "Recorded",
    "Recorder",
    "Session",
    "Sip",
    "Stage",
    "Strategy",
    "check_settings",
    "get",
    "names",
    "parse_settings",
    "preset",
    "run",
    "seconds_left",
    "settings_of",
]

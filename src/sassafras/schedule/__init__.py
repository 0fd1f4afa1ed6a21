"""The space of legal schedules of a kernel: order and stall counts of its native instructions."""

from .space import ScheduleSpace
from .state import REORDER, RESTALL, Move, ScheduleState

__all__ = ["REORDER", "RESTALL", "Move", "ScheduleSpace", "ScheduleState"]

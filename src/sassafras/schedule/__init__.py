"""The space of legal schedules of a kernel: order and stall counts of its native instructions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .state import REORDER, RESTALL, Move, ScheduleState

if TYPE_CHECKING:
    from .space import ScheduleSpace

__all__ = ["REORDER", "RESTALL", "Move", "ScheduleSpace", "ScheduleState"]


def __getattr__(name: str) -> Any:
    if name == "ScheduleSpace":
        from .space import ScheduleSpace

        return ScheduleSpace
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

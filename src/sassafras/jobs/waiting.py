"""A time budget is what the user waits: the search gets what opening and confirmation leave of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from sassafras.core import Budget, Device
from sassafras.search import Progress
from sassafras.store import Store

#: share of a time budget that is searched, however long the rest takes
LEAST_SHARE = 0.5
#: in a run's environment: budget -> seconds of it that are the search's
_PARTS = "search_seconds"


def confirmation_s(device: Device) -> float:
    """Seconds that choosing among the leaders and re-measuring the winner will take, as the open device
    expects; 0 where it has no idea."""
    expected: Callable[[], float] | None = getattr(device, "confirmation_s", None)
    return 0.0 if expected is None else expected()


def search_budget(
    budget: Budget, began: float | None, reserved: float, store: Store | None = None, run: int | None = None
) -> Budget:
    """The part of a budget that the search gets.

    The run notes it, and a sitting that goes on has the same: a strategy sees the share that is spent.

    Args:
        began: when the user's wait began (`time.monotonic`); None: the budget is the search's alone.
        reserved: seconds for the confirmation.
        store, run: where the run is kept, if anywhere.
    """
    if budget.seconds is None or began is None:
        return budget
    left = budget.seconds - (time.monotonic() - began) - reserved
    seconds = round(max(left, LEAST_SHARE * budget.seconds), 2)
    if store is not None and run is not None:
        parts = dict(store.run(run).environment.get(_PARTS, {}))
        seconds = float(parts.setdefault(str(budget), seconds))
        store.note(run, **{_PARTS: parts})
    return replace(budget, seconds=seconds)


def with_confirmation(
    progress: Callable[[Progress], None] | None, reserved: float
) -> Callable[[Progress], None] | None:
    """`progress`, with what is left to the answer instead of to the end of the search."""
    if progress is None:
        return None
    told = progress
    return lambda event: told(replace(event, left=None if event.left is None else event.left + reserved))

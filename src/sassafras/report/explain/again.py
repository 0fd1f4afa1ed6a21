"""The figures that an explanation reports: measured in fresh processes, or modelled on fresh draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from sassafras.core import Candidate, Device, Kernel, Modelled, Redrawing
from sassafras.core.statistics import quotient_interval

from .explanation import Explained

#: looks at one schedule at most, on a device that draws
MOST_TURNS = 4


def redrawn(drawing: Redrawing | None, kernel: Kernel) -> Modelled | None:
    """The figure to report of a schedule on draws that nothing was chosen on; None of a device that has
    none."""
    if drawing is None:
        return None
    outcome = drawing.remeasure(Candidate(kernel, {"space": "explain"}))
    return outcome if isinstance(outcome, Modelled) and outcome.cost is not None else None


def turns(drawing: Redrawing | None, kernel: Kernel, whole: Modelled | None) -> int:
    """How many looks tell a part of a schedule's gain from none: as many as make a sixth of it two standard
    errors, at most `MOST_TURNS`.

    Args:
        drawing: an open device that draws, or None.
        kernel: the schedule.
        whole: its gain.
    """
    if whole is None or drawing is None:
        return 1
    error = float(drawing.look(Candidate(kernel), 0).facts.get("error", 0.0))
    gain = max(abs((whole.modelled_ratio or 1.0) - 1.0), 1e-6)
    return max(1, min(MOST_TURNS, math.ceil((12 * error / gain) ** 2)))


def remeasured(
    device: Device, found: Sequence[tuple[Explained, Kernel]], reduced: Kernel, most: int, notes: list[str]
) -> list[Explained]:
    """The largest moves with gains from fresh processes or draws, the null experiment beside them; then the
    others.

    Args:
        device: open.
        found: moves and the schedules that lack them, the largest gain first.
        reduced: the schedule with all of them.
        most: how many are re-measured.
        notes: what could not be.
    """
    moves = [move for move, _ in found]
    fresh = getattr(device, "remeasure", None)
    done, looked = "re-measured", "quick looks of one process"
    if device.modelled:
        done, looked = "re-drawn", "looks at few draws"
    if fresh is None or most < 1:
        notes.append(f"gains are {looked}, not {done}")
        return moves
    present = fresh(Candidate(reduced, {"space": "explain"}))
    if present.cost is None or not present.interval:
        notes.append(f"the reduced schedule could not be {done}: {present.detail}")
        return moves
    for n, (move, kernel) in enumerate(found[:most]):
        lacking = fresh(Candidate(kernel, {"space": "explain"}))
        if lacking.cost is None or not lacking.interval:
            notes.append(f"move {n + 1} could not be {done}: {lacking.detail}")
            continue
        gain = lacking.cost / present.cost
        moves[n] = replace(
            move,
            gain=gain,
            interval=quotient_interval(gain, present.interval, lacking.interval),
            null=lacking.null,
            null_interval=lacking.null_interval,
        )
    if len(found) > most:
        notes.append(f"moves from {most + 1} on are {looked}, not {done}")
    return sorted(moves[:most], key=lambda move: -move.gain) + moves[most:]

"""From rows along a path to cycles, and to a trace of one warp."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .kernel_model import KernelModel


class Deadlock(Exception):
    """Warps wait for a barrier that never opens on the predicted path."""


@dataclass(frozen=True)
class Trace:
    """What one warp of the first CTA did.

    Attributes:
        positions: int32 (steps,): code position of each issue.
        issue: int64 (steps,): cycle of each issue.
        stalled: int64 (steps,): cycles since the previous issue of this warp, less one.
        reasons: why each issue came no earlier, as text (steps,).
        cycles: modelled cycles of the whole kernel.
    """

    positions: np.ndarray
    issue: np.ndarray
    stalled: np.ndarray
    reasons: tuple[str, ...]
    cycles: float


def drawn(
    model: KernelModel,
    steps: np.ndarray,
    starts: np.ndarray,
    traced: int = -1,
    issue: np.ndarray | None = None,
    reason: np.ndarray | None = None,
) -> np.ndarray:
    """Modelled cycles of the kernel for each draw of start times: float64 (draws,).

    One SM runs the simulated CTAs. (With many warps a single run is chaotic: small changes of order moved it
    by 1 %.) Iterations left out of a main loop are added at the steady rate of its last simulated ones, CTAs
    left out in proportion.

    Args:
        model: the kernel.
        steps: rows along its path (`KernelModel.steps`).
        starts: int64 (draws, resident warps).
        traced: warp to trace, -1 for none.
        issue, reason: where a trace is written to, issue cycle and reason code by step.

    Raises:
        Deadlock: a barrier never opens.
    """
    from .engine import PARAMETERS, run

    o, c = model.occupancy, model.constants
    issue = np.zeros(0, np.int64) if issue is None else issue
    reason = np.zeros(0, np.uint8) if reason is None else reason
    numbers = np.array([getattr(c, name) for name in PARAMETERS], dtype=np.int64)
    found = np.empty(len(starts))
    for n, one in enumerate(starts):
        marks = np.zeros((2, int(model.path.marks.max(initial=0)) + 1))
        end = run(steps, o.warps, one, o.simulated, numbers, model.bandwidth, marks, traced, issue, reason)
        if end < 0:
            raise Deadlock(model.kernel.name)
        total = float(end) + _left_out(model, marks) * o.simulated / o.slots
        found[n] = c.launch + total * o.ctas / o.simulated
    return found


def _left_out(model: KernelModel, marks: np.ndarray) -> float:
    """Cycles of the loop iterations that were not simulated, at the rate of the last that were."""
    extra = 0.0
    for loop, numbers in model.path.entries:
        at = marks[0, list(numbers)] / np.maximum(1, marks[1, list(numbers)])
        if len(at) > 1:
            first = min(2, len(at) - 2)
            extra += (loop.trips - loop.simulated) * float(at[-1] - at[first]) / (len(at) - 1 - first)
    return extra


def trace(model: KernelModel, steps: np.ndarray, warp: int = 0) -> Trace:
    """Simulate and write down what `warp` did. Raises `Deadlock`."""
    from .engine import REASONS

    issue, reason = np.zeros(len(steps), np.int64), np.zeros(len(steps), np.uint8)
    (total,) = drawn(model, steps, model.starts[:1], warp, issue, reason).tolist()
    stalled = np.diff(issue, prepend=issue[0] - 1) - 1
    return Trace(model.path.positions, issue, stalled, tuple(REASONS[r] for r in reason), total)

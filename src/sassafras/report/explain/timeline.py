"""Waits of one warp, step by step, on the timing model: modelled, never measured."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sassafras.core import Kernel
from sassafras.sass import Function
from sassafras.schedule import ScheduleState
from sassafras.timing_model import ModelDevice

SCOREBOARD = "scoreboard "


class Wait(NamedTuple):
    """Who waits for what.

    Attributes:
        instruction: original index of the one that waits.
        reason: a phrase of the timing model, for example ``scoreboard 2`` or ``pipe busy``.
        setter: original index of the instruction that set the scoreboard last, -1 for other reasons.
    """

    instruction: int
    reason: str
    setter: int


@dataclass(frozen=True)
class Timeline:
    """One warp of the first block along the path that the model predicts.

    Attributes:
        warp: its number.
        instructions: int32 (steps,): original index of each issued instruction.
        issue: int64 (steps,): cycle of each issue.
        stalled: int64 (steps,): cycles since the previous issue, less one.
        reasons: why each issue came no earlier (steps,).
        setters: int32 (steps,): the step that last set the scoreboard waited for, -1 for none.
        cycles: modelled cycles of the whole kernel.
    """

    warp: int
    instructions: np.ndarray
    issue: np.ndarray
    stalled: np.ndarray
    reasons: tuple[str, ...]
    setters: np.ndarray
    cycles: float

    def waits(self) -> Counter[Wait]:
        """Stalled cycles by who waits for what."""
        total: Counter[Wait] = Counter()
        for step in np.flatnonzero(self.stalled > 0).tolist():
            setter = int(self.setters[step])
            by = int(self.instructions[setter]) if setter >= 0 else -1
            total[Wait(int(self.instructions[step]), self.reasons[step], by)] += int(self.stalled[step])
        return total

    def by_reason(self) -> dict[str, int]:
        """Stalled cycles by reason, all scoreboards together, most first."""
        total: Counter[str] = Counter()
        for reason, cycles in zip(self.reasons, self.stalled.tolist(), strict=True):
            total["scoreboard" if reason.startswith(SCOREBOARD) else reason] += max(0, cycles)
        return {reason: cycles for reason, cycles in total.most_common() if cycles}


def timeline(
    device: ModelDevice, function: Function, state: ScheduleState, cubin: Kernel, warp: int = 0
) -> Timeline:
    """Trace one warp of a schedule.

    Args:
        device: the timing model, open for the kernel.
        function: the original code.
        state: the schedule.
        cubin: the kernel in that schedule.
        warp: which warp of the first block.

    Raises:
        DeviceError: the model finds a deadlock, or there is no such warp.
    """
    trace = device.trace(cubin, warp)
    instructions = np.asarray(state.order)[trace.positions].astype(np.int32)
    boards: dict[int, int] = {}
    setters = np.full(len(instructions), -1, dtype=np.int32)
    control = [i.control for i in function.instructions]
    for step, (x, reason) in enumerate(zip(instructions.tolist(), trace.reasons, strict=True)):
        if reason.startswith(SCOREBOARD):
            setters[step] = boards.get(int(reason.removeprefix(SCOREBOARD)), -1)
        for board in (control[x].write_barrier, control[x].read_barrier):
            if board is not None:
                boards[board] = step
    return Timeline(
        warp, instructions, trace.issue, np.maximum(trace.stalled, 0), trace.reasons, setters, trace.cycles
    )


def traced_warps(device: ModelDevice, most: int = 4) -> list[int]:
    """Some warps of the first block, spread evenly."""
    count = device.model.occupancy.warps
    return sorted({int(n) for n in np.linspace(0, count - 1, min(most, count))})


def mean_waits(
    device: ModelDevice, function: Function, state: ScheduleState, kernel: Kernel
) -> dict[Wait, float]:
    """Stalled cycles of a warp by who waits for what, mean over `traced_warps`."""
    warps = traced_warps(device)
    total: Counter[Wait] = Counter()
    for warp in warps:
        total += timeline(device, function, state, kernel, warp).waits()
    return {wait: cycles / len(warps) for wait, cycles in total.items()}

"""A tuned kernel as the page's script draws it: listing, two orders, two timelines. All of it is modelled."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sassafras.core import Candidate
from sassafras.report.explain.changes import Changes, stall_counts, state_of
from sassafras.report.explain.subject import ExplainSubject
from sassafras.report.explain.timeline import Timeline, mean_waits, timeline
from sassafras.schedule import ScheduleSpace, ScheduleState
from sassafras.timing_model import ModelDevice
from sassafras.timing_model.evidence import correlation, refusal

#: steps of a timeline that a page takes: enough for several iterations of a large loop
MOST_STEPS = 2600


@dataclass(frozen=True)
class KernelView:
    """One kernel before and after.

    Attributes:
        key: unique in the page.
        name: workload and case.
        title: ``1.043x [..]`` or ``modelled 1.020x``.
        modelled: whether that figure is modelled.
        payload: what the script draws; JSON-able.
        reasons: (before, after) stalled cycles by reason of the traced warp.
        explanation: as `Explanation.to_json`, or None.
        facts: lines about the kernel and the model's assumptions.
    """

    key: str
    name: str
    title: str
    modelled: bool
    payload: Mapping[str, Any] = field(repr=False)
    reasons: tuple[Mapping[str, int], Mapping[str, int]]
    explanation: Mapping[str, Any] | None
    facts: tuple[str, ...]

    def stalls(self) -> list[tuple[str, int, int]]:
        """(reason, cycles before, cycles after), the largest sums first."""
        before, after = self.reasons
        rows = [(reason, before.get(reason, 0), after.get(reason, 0)) for reason in {*before, *after}]
        return sorted(rows, key=lambda row: (-(row[1] + row[2]), row[0]))


def view(
    subject: ExplainSubject, key: str, title: str, modelled: bool, explanation: Mapping[str, Any] | None
) -> KernelView:
    """Model both schedules of `subject` and put them side by side.

    Raises:
        SassafrasError: the kernel cannot be modelled, or the tuned cubin is no schedule of it.
    """
    space = ScheduleSpace(subject.baseline, arch_by_name=True)
    tuned = state_of(space, subject.tuned)
    device = ModelDevice(subject.baseline.arch)
    device.open(subject.workload, subject.case, subject.baseline)
    states = space.start(), tuned
    kernels = [subject.baseline.with_cubin(space.emit(state)) for state in states]
    times = [timeline(device, space.function, s, k) for s, k in zip(states, kernels, strict=True)]
    waits = [_waits(device, space, s, k) for s, k in zip(states, kernels, strict=True)]
    facts = device.model.facts()
    used = explanation
    if used is not None and used.get("tuned") != hashlib.sha256(subject.tuned).hexdigest():
        used = None
    payload = _payload(space, tuned, times, waits, used, [(p.start, p.end) for p in device.model.path.loops])
    # of the very draws that a modelled result is reported on, so that the two agree
    whole = device.remeasure(Candidate(kernels[1]))
    payload["cycles"] = [round(c or 0.0, 1) for c in (whole.baseline_cycles, whole.cycles)]
    lines = [
        f"{len(space.function)} instructions, {space.function.registers} registers a thread, "
        f"{facts['ctas_per_sm']} blocks an SM (bound by {facts['occupancy_bound_by']}), data in {facts['data']}",
        *(
            f"loop {loop['start']:#06x} to {loop['end']:#06x}: {loop['trips']} iterations ({loop['from']}), "
            f"{loop['simulated']} simulated"
            for loop in facts["loop_trips"]
        ),
        f"model: {facts['branches']}",
    ]
    if doubt := refusal(correlation(subject.workload.name, subject.case.name)):
        lines.append(doubt)
    return KernelView(
        key,
        f"{subject.workload.name} {subject.case.name}",
        title,
        modelled,
        payload,
        (times[0].by_reason(), times[1].by_reason()),
        used,
        tuple(lines),
    )


def _waits(device: ModelDevice, space: ScheduleSpace, state: ScheduleState, kernel: Any) -> list[int]:
    total = np.zeros(len(space.function))
    for wait, cycles in mean_waits(device, space.function, state, kernel).items():
        total[wait.instruction] += cycles
    return [round(c) for c in total.tolist()]


def _payload(
    space: ScheduleSpace,
    tuned: ScheduleState,
    times: list[Timeline],
    waits: list[list[int]],
    explanation: Mapping[str, Any] | None,
    loops: list[tuple[int, int]],
) -> dict[str, Any]:
    code = space.function.instructions
    moved = [c.instruction for c in Changes(space, tuned).all if c.kind == "reorder"]
    named = {
        part["instruction"]: n
        for n, move in enumerate(explanation["moves"] if explanation else ())
        for part in move["parts"]
    }
    reasons = sorted({r for t in times for r in t.reasons})
    return {
        "text": [i.text for i in code],
        "stall": [[i.control.stall for i in code], stall_counts(tuned).tolist()],
        "wait": [i.control.wait_mask for i in code],
        "sets": [[_board(i.control.write_barrier), _board(i.control.read_barrier)] for i in code],
        "order": tuned.order.tolist(),
        "blocks": [int(start) for start in space.tables.start],
        "loops": [[int(a), int(b)] for a, b in loops],
        "moved": moved,
        "named": named,
        "waits": waits,
        "reasons": reasons,
        "times": [_steps(t, reasons) for t in times],
    }


def _board(number: int | None) -> int:
    return -1 if number is None else number


def _steps(t: Timeline, reasons: list[str]) -> dict[str, Any]:
    number = {reason: n for n, reason in enumerate(reasons)}
    most = min(len(t.issue), MOST_STEPS)
    issue = t.issue[:most]
    return {
        "warp": t.warp,
        "cut": len(t.issue) - most,
        "at": t.instructions[:most].tolist(),
        "start": int(issue[0]) if most else 0,
        "gap": np.diff(issue).tolist(),
        "why": [number[r] for r in t.reasons[:most]],
    }

"""All shapes of a kernel as one objective: a device over devices, one a shape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sassafras.core import (
    Candidate,
    Case,
    Device,
    DeviceError,
    Evaluation,
    Interval,
    Kernel,
    Modelled,
    Outcome,
    Redrawing,
    Verdict,
    Workload,
)

#: the timing model's ratio below which a shape counts as slowed
MODEL_SLACK = 0.998


class EveryCase:
    """Implements `core.Device`: a candidate's runtime is the sum over all shapes, weighted by launches.

    A candidate that slows any shape is worth no more than that shape: on the timing model when its ratio is
    below `MODEL_SLACK` by more than two standard errors of the look; measured or re-drawn, when the shape's
    whole interval lies below 1 and below its null's.

    Args:
        make: makes a device for one shape.
        launches: how often each case is launched, by name; cases that are missing are left out.
    """

    def __init__(self, make: Callable[[], Device], launches: Mapping[str, int]) -> None:
        self._make = make
        self._launches = dict(launches)
        self._inner: list[tuple[Case, float, Device]] = []
        #: by case: how its launch differs from the others' in more than arguments (`meta["launches"]`)
        self._launched: dict[str, Kernel] = {}
        first = make()
        self._spare: Device | None = first
        self.name, self.arch, self.modelled = first.name, first.arch, first.modelled

    def open(self, workload: Workload, case: Case, baseline: Kernel) -> None:
        """Open a device for each case that is launched. Raises DeviceError as they do."""
        cases = [c for c in workload.cases if self._launches.get(c.name)]
        if not cases:
            raise DeviceError("no case is launched", where=workload.name)
        for each in cases:
            device = self._spare or self._make()
            self._spare = None
            self._inner.append((each, float(self._launches[each.name]), device))
            if workload.meta.get("launches") == "by case":
                self._launched[each.name] = workload.build(each, baseline.arch)
            device.open(workload, each, self._as(each, Candidate(baseline)).kernel)
        self.name = self._inner[0][2].name

    def run(self, candidate: Candidate) -> Outcome:
        """Judge one candidate on every shape; the first that fails decides."""
        return self._judge(candidate, lambda device, mine: device.run(mine))

    def closer(self, candidate: Candidate, level: int) -> Outcome | None:
        """See `core.Redrawing`: a closer look on every shape, None where all of them have had their last."""
        drawing = [(c, d) for c, _, d in self._inner if isinstance(d, Redrawing)]
        if len(drawing) < len(self._inner):
            return None
        if all(d.closer(self._as(c, candidate), level) is None for c, d in drawing):
            return None
        return self._judge(candidate, lambda device, mine: _closest(device, mine, level))

    def look(self, candidate: Candidate, turn: int) -> Outcome:
        """See `core.Redrawing`; a device that measures looks again whenever it is asked."""
        return self._judge(
            candidate, lambda d, mine: d.look(mine, turn) if isinstance(d, Redrawing) else d.run(mine)
        )

    def remeasure(self, candidate: Candidate) -> Evaluation | Modelled:
        """A frozen candidate on every shape, in fresh processes or on fresh draws."""
        outcome = self._judge(candidate, lambda device, mine: device.remeasure(mine))  # type: ignore[attr-defined]
        if not isinstance(outcome, Modelled if self.modelled else Evaluation):
            raise DeviceError("re-measuring gave no measurement", where=self.name)
        return outcome

    def _as(self, case: Case, candidate: Candidate) -> Candidate:
        """The candidate as a case launches it."""
        made = self._launched.get(case.name)
        return (
            candidate if made is None else replace(candidate, kernel=made.with_cubin(candidate.kernel.cubin))
        )

    def _judge(self, candidate: Candidate, how: Callable[[Device, Candidate], Outcome]) -> Outcome:
        found: list[tuple[Case, float, Outcome]] = []
        for case, launches, device in self._inner:
            outcome = how(device, self._as(case, candidate))
            if outcome.cost is None:
                return outcome
            found.append((case, launches, outcome))
        return together(candidate, found)

    def environment(self) -> dict[str, Any]:
        """That of the first device, and the objective."""
        device = self._inner[0][2] if self._inner else self._spare
        given = {} if device is None else device.environment()
        return given | {"objective": {"launches": self._launches}}

    def close(self) -> None:
        """Close all; safe to call twice."""
        for _, _, device in self._inner:
            device.close()
        if self._spare is not None:
            self._spare.close()
        self._inner, self._spare = [], None


def _closest(device: Device, candidate: Candidate, level: int) -> Outcome:
    """A look of this level, or the last that there is."""
    assert isinstance(device, Redrawing)
    while level > 0:
        if (outcome := device.closer(candidate, level)) is not None:
            return outcome
        level -= 1
    return device.run(candidate)


def together(candidate: Candidate, found: Sequence[tuple[Case, float, Outcome]]) -> Evaluation | Modelled:
    """Outcomes of all shapes, with their launches, as one: the worst of those that are slowed, if any is."""
    ratios = {case.name: _ratio(outcome) for case, _, outcome in found}
    slow = [(case, outcome) for case, _, outcome in found if _slower(outcome)]
    facts = {
        **found[0][2].facts,
        "cases": {
            case.name: {
                "launches": launches,
                "baseline": _baseline(outcome),
                "ratio": ratios[case.name],
                "interval": outcome.interval and outcome.interval.ends,
                "null_interval": outcome.null_interval and outcome.null_interval.ends,
            }
            for case, launches, outcome in found
        },
        "slowed": sorted(case.name for case, _ in slow),
    }
    launches = sum(n for _, n, _ in found)
    before = sum(n * (_baseline(o) or 0.0) for _, n, o in found)

    def total(each: Iterable[float]) -> float:
        """Ratio of all launches, given that of each shape."""
        return before / sum(n * (_baseline(o) or 0.0) / r for (_, n, o), r in zip(found, each, strict=True))

    def ends(each: Iterable[Interval | None]) -> Interval | None:
        known = [interval for interval in each if interval is not None]
        if len(known) < len(found):
            return None
        return Interval(total(i.low for i in known), total(i.high for i in known))

    if slow:
        case, worst = min(slow, key=lambda pair: ratios[pair[0].name])
        ratio, detail = ratios[case.name], f"it slows case {case.name}"
        spread = (worst.interval, worst.null, worst.null_interval)
    else:
        ratio, detail = total(ratio or 1.0 for ratio in ratios.values()), ""
        null_interval = ends(o.null_interval for _, _, o in found)
        null = None if null_interval is None else total(o.null or 1.0 for _, _, o in found)
        spread = (ends(o.interval for _, _, o in found), null, null_interval)
    seconds = sum(o.seconds for _, _, o in found)
    if measured := [o for _, _, o in found if isinstance(o, Evaluation)]:
        samples, us = min(o.samples for o in measured), before / launches
        return Evaluation(
            candidate.digest, Verdict.CORRECT, us / ratio, us, ratio, *spread, samples, detail, seconds, facts
        )
    draws = min(o.draws for _, _, o in found if isinstance(o, Modelled))
    return Modelled(candidate.digest, None, before / ratio, before, detail, seconds, facts, *spread, draws)


def _baseline(outcome: Outcome) -> float | None:
    return outcome.baseline_cycles if isinstance(outcome, Modelled) else outcome.baseline_us


def _ratio(outcome: Outcome) -> float:
    ratio = outcome.modelled_ratio if isinstance(outcome, Modelled) else outcome.speedup
    return ratio or 0.0


def _slower(outcome: Evaluation | Modelled) -> bool:
    if outcome.interval is None and isinstance(outcome, Modelled):
        ratio = outcome.modelled_ratio or 0.0
        return ratio * (1 + 2 * float(outcome.facts.get("error", 0.0))) < MODEL_SLACK
    if outcome.interval is None:
        assert isinstance(outcome, Evaluation)
        return (outcome.speedup or 0.0) < 0.99
    null = outcome.null_interval.low if outcome.null_interval else 1.0
    return outcome.interval.high < min(null, 1.0)

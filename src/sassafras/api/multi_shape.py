"""All shapes of a kernel as one objective: a device over devices, one a shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
            device.open(workload, each, baseline)
        self.name = self._inner[0][2].name

    def run(self, candidate: Candidate) -> Outcome:
        """Judge one candidate on every shape; the first that fails decides."""
        return self._judge(candidate, lambda device: device.run(candidate))

    def closer(self, candidate: Candidate, level: int) -> Outcome | None:
        """See `core.Redrawing`: a closer look on every shape, None where all of them have had their last."""
        drawing = [d for _, _, d in self._inner if isinstance(d, Redrawing)]
        if len(drawing) < len(self._inner) or all(d.closer(candidate, level) is None for d in drawing):
            return None
        return self._judge(candidate, lambda device: _closest(device, candidate, level))

    def look(self, candidate: Candidate, turn: int) -> Outcome:
        """See `core.Redrawing`; a device that measures looks anew whenever it is asked."""
        return self._judge(
            candidate, lambda d: d.look(candidate, turn) if isinstance(d, Redrawing) else d.run(candidate)
        )

    def remeasure(self, candidate: Candidate) -> Evaluation | Modelled:
        """A frozen candidate on every shape, in fresh processes or on fresh draws."""
        outcome = self._judge(candidate, lambda device: device.remeasure(candidate))  # type: ignore[attr-defined]
        if not isinstance(outcome, Modelled if self.modelled else Evaluation):
            raise DeviceError("re-measuring gave no measurement", where=self.name)
        return outcome

    def _judge(self, candidate: Candidate, how: Callable[[Device], Outcome]) -> Outcome:
        found: list[tuple[Case, float, Outcome]] = []
        for case, launches, device in self._inner:
            outcome = how(device)
            if outcome.cost is None:
                return outcome
            found.append((case, launches, outcome))
        if self.modelled:
            return _modelled(candidate, found)
        return _measured(candidate, found)

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


def _modelled(candidate: Candidate, found: Sequence[tuple[Case, float, Outcome]]) -> Modelled:
    rows = [(case, n, o) for case, n, o in found if isinstance(o, Modelled)]
    before = sum(n * (o.baseline_cycles or 0.0) for _, n, o in rows)
    after = sum(n * (o.cycles or 0.0) for _, n, o in rows)
    ratios = {case.name: o.modelled_ratio or 0.0 for case, _, o in rows}
    slow = [o for _, _, o in rows if _slower(o)]
    slowed = sorted(case.name for case, _, o in rows if o in slow)
    cases = {
        case.name: {
            "launches": n,
            "baseline": o.baseline_cycles,
            "ratio": ratios[case.name],
            "interval": _ends(o.interval),
            "null_interval": _ends(o.null_interval),
        }
        for case, n, o in rows
    }
    facts = {**rows[0][2].facts, "cases": cases, "slowed": slowed}
    seconds, draws = sum(o.seconds for _, _, o in rows), min(o.draws for _, _, o in rows)
    if slow:
        worst = min(slow, key=lambda o: o.modelled_ratio or 0.0)
        return Modelled(
            candidate.digest,
            None,
            before / (worst.modelled_ratio or 1.0),
            before,
            "",
            seconds,
            facts,
            worst.interval,
            worst.null,
            worst.null_interval,
            draws,
        )

    def total(value: Callable[[Modelled], float]) -> float:
        """Ratio of all launches, given that of each shape."""
        return before / sum(n * (o.baseline_cycles or 0.0) / value(o) for _, n, o in rows)

    interval = null = null_interval = None
    if all(o.interval and o.null and o.null_interval for _, _, o in rows):
        interval = Interval(total(lambda o: _of(o.interval)[0]), total(lambda o: _of(o.interval)[1]))
        null = total(lambda o: o.null or 1.0)
        null_interval = Interval(
            total(lambda o: _of(o.null_interval)[0]), total(lambda o: _of(o.null_interval)[1])
        )
    return Modelled(
        candidate.digest, None, after, before, "", seconds, facts, interval, null, null_interval, draws
    )


def _measured(candidate: Candidate, found: Sequence[tuple[Case, float, Outcome]]) -> Evaluation:
    rows = [(case, n, o) for case, n, o in found if isinstance(o, Evaluation)]
    cases = {
        case.name: {
            "launches": n,
            "baseline": o.baseline_us,
            "ratio": o.speedup,
            "interval": _ends(o.interval),
            "null_interval": _ends(o.null_interval),
        }
        for case, n, o in rows
    }
    slow = [(case, o) for case, _, o in rows if _slower(o)]
    facts = {**rows[0][2].facts, "cases": cases, "slowed": sorted(case.name for case, _ in slow)}
    samples, seconds = min(o.samples for _, _, o in rows), sum(o.seconds for _, _, o in rows)
    launches = sum(n for _, n, _ in rows)
    before = sum(n * (o.baseline_us or 0.0) for _, n, o in rows)

    def total(value: Callable[[Evaluation], float]) -> float:
        """Speed-up of all launches, given that of each shape."""
        return before / sum(n * (o.baseline_us or 0.0) / value(o) for _, n, o in rows)

    if slow:
        case, worst = min(slow, key=lambda pair: pair[1].speedup or 0.0)
        return Evaluation(
            candidate.digest,
            Verdict.CORRECT,
            worst.time_us,
            worst.baseline_us,
            worst.speedup,
            worst.interval,
            worst.null,
            worst.null_interval,
            samples,
            f"it slows case {case.name}",
            seconds,
            facts,
        )
    speedup = total(lambda o: o.speedup or 1.0)
    interval = null = null_interval = None
    if all(o.interval for _, _, o in rows):
        interval = Interval(total(lambda o: _of(o.interval)[0]), total(lambda o: _of(o.interval)[1]))
    if all(o.null is not None and o.null_interval for _, _, o in rows):
        null = total(lambda o: o.null or 1.0)
        null_interval = Interval(
            total(lambda o: _of(o.null_interval)[0]), total(lambda o: _of(o.null_interval)[1])
        )
    return Evaluation(
        candidate.digest,
        Verdict.CORRECT,
        before / speedup / launches,
        before / launches,
        speedup,
        interval,
        null,
        null_interval,
        samples,
        "",
        seconds,
        facts,
    )


def _slower(outcome: Evaluation | Modelled) -> bool:
    if outcome.interval is None and isinstance(outcome, Modelled):
        ratio = outcome.modelled_ratio or 0.0
        return ratio * (1 + 2 * float(outcome.facts.get("error", 0.0))) < MODEL_SLACK
    if outcome.interval is None:
        assert isinstance(outcome, Evaluation)
        return (outcome.speedup or 0.0) < 0.99
    null = outcome.null_interval.low if outcome.null_interval else 1.0
    return outcome.interval.high < min(null, 1.0)


def _of(interval: Interval | None) -> tuple[float, float]:
    return (1.0, 1.0) if interval is None else (interval.low, interval.high)


def _ends(interval: Interval | None) -> list[float] | None:
    return None if interval is None else [interval.low, interval.high]

"""`optimize_all`: several kernels, cases or configurations one after the other, and a table of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sassafras.core import SassafrasError, Workload
from sassafras.jobs.opening import load_workload
from sassafras.jobs.result import Result

from .optimize import optimize


@dataclass(frozen=True)
class Results:
    """What `optimize_all` found.

    Attributes:
        results: a result a search, in order.
        failures: (workload and case, error) of those that could not be searched.
    """

    results: tuple[Result, ...]
    failures: tuple[tuple[str, str], ...] = ()

    def rows(self) -> list[list[str]]:
        """The table: kernel, case, baseline's time or cycles, ratio with interval, what it is."""
        found = []
        for one in self.results:
            time = "" if one.baseline_us is None else f"{one.baseline_us:.2f} us"
            ratio = one.modelled_ratio if one.modelled else one.speedup
            figure = "" if ratio is None or one.refusal else f"{ratio:.3f}x {one.interval or ''}".strip()
            kind = "no evidence" if one.refusal else "modelled" if one.modelled else "measured"
            found.append([one.workload, one.case, time, figure, kind if one.improved else f"{kind}, stays"])
        return found + [[*label.split("/", 1), "", "", error] for label, error in self.failures]

    def summary(self) -> str:
        """The table as text."""
        rows = [["kernel", "case", "baseline", "ratio", ""], *self.rows()]
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        return "\n".join(
            "  ".join([*(c.ljust(w) for c, w in zip(row, widths, strict=False)), row[4]]).rstrip()
            for row in rows
        )


def optimize_all(
    targets: str | Path | Workload | Sequence[str | Path | Workload],
    *,
    case: str | None = "all",
    stage: Callable[[str], None] | None = None,
    finished: Callable[[Result], object] | None = None,
    **options: Any,
) -> Results:
    """Optimise several targets, each with a budget of its own; an error of one does not stop the others.

    Args:
        targets: as of `optimize`, one or several; for a call, ``workloads_of(lambda: f(x))``.
        case: ``"all"``: every case of each; else this one; None: the first.
        stage: called with a line of text when another part of the work begins.
        finished: called after each search.
        options: of `optimize`.

    Raises:
        SassafrasError: a target cannot be loaded.
    """
    several = [targets] if isinstance(targets, str | Path | Workload) else targets
    pairs = []
    for target in several:
        workload = load_workload(target)
        pairs += [(workload, c) for c in (workload.cases if case == "all" else [workload.case(case)])]
    results: list[Result] = []
    failures: list[tuple[str, str]] = []
    for number, (workload, each) in enumerate(pairs, 1):
        if stage is not None:
            stage(f"{number} of {len(pairs)}: {workload.name}, case {each.name}")
        try:
            result = optimize(workload, case=each.name, stage=stage, **options)
        except SassafrasError as error:
            failures.append((f"{workload.name}/{each.name}", str(error)))
            continue
        results.append(result)
        if finished is not None:
            finished(result)
        if result.reason == "interrupted":
            break
    return Results(tuple(results), tuple(failures))

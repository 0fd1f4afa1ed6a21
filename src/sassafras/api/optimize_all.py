"""`optimize_all`: several kernels, cases or configurations one after the other, and a table of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sassafras.core import Budget, SassafrasError, Workload
from sassafras.jobs.opening import load_workload
from sassafras.jobs.result import Result

from .optimize import optimize


@dataclass(frozen=True)
class Results:
    """What `optimize_all` found.

    Attributes:
        results: a result a search, in order.
        failures: (workload, case, error) of those that could not be searched.
    """

    results: tuple[Result, ...]
    failures: tuple[tuple[str, str, str], ...] = ()

    def summary(self) -> str:
        """A table as text: kernel, case, baseline's time, ratio with interval, and what that is."""
        rows = [("kernel", "case", "baseline", "ratio", "")]
        for one in self.results:
            ratio = None if one.refusal else one.modelled_ratio if one.modelled else one.speedup
            kind = "no evidence" if one.refusal else "modelled" if one.modelled else "measured"
            time = "" if one.baseline_us is None else f"{one.baseline_us:.2f} us"
            figure = "" if ratio is None else f"{ratio:.3f}x {one.interval or ''}".strip()
            rows.append((one.workload, one.case, time, figure, kind if one.improved else f"{kind}, stays"))
        rows += [(workload, case, "", "", error) for workload, case, error in self.failures]
        widths = [max(map(len, column)) for column in list(zip(*rows, strict=True))[:4]]
        return "\n".join("  ".join([*map(str.ljust, row[:4], widths), row[4]]).rstrip() for row in rows)


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
        SassafrasError: a target cannot be loaded, or the budget has no unit.
    """
    if options.get("budget") is not None:
        options["budget"] = Budget.of(options["budget"])  # refused once, not for every kernel
    loaded = map(load_workload, [targets] if isinstance(targets, str | Path | Workload) else targets)
    pairs = [(w, c) for w in loaded for c in (w.cases if case == "all" else [w.case(case)])]
    results, failures = list[Result](), list[tuple[str, str, str]]()
    for number, (workload, each) in enumerate(pairs, 1):
        if stage is not None:
            stage(f"{number} of {len(pairs)}: {workload.name}, case {each.name}")
        try:
            results.append(optimize(workload, case=each.name, stage=stage, **options))
        except SassafrasError as error:
            failures.append((workload.name, each.name, str(error)))
            continue
        if finished is not None:
            finished(results[-1])
        if results[-1].reason == "interrupted":
            break
    return Results(tuple(results), tuple(failures))

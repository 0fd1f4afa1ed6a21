"""`sassafras tune CAPTURE`: kernels in order of GPU time, on all their shapes, and the expected change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sassafras.core import Budget, Device, Interval, SassafrasError
from sassafras.frontend.captured.files import Captured, CapturedVariant, read
from sassafras.frontend.captured.workloads import workload
from sassafras.jobs.opening import open_device
from sassafras.jobs.result import Result

from .multi_shape import EveryCase
from .optimize import judged_by_results, optimize
from .ptx_search import check_asked, device_for

#: a configuration that the autotuner measured within this factor of its choice is tried too
_CLOSE = 1.15
#: seconds below which a search finds nothing
_LEAST_S = 2.0


@dataclass(frozen=True, slots=True)
class CapturedRow:
    """What came of one captured kernel.

    Attributes:
        label, function, config: which kernel.
        runner_up: not what the program ran, but a configuration that the autotuner found close.
        share: of the captured Triton GPU time (or of launches, where nothing was timed).
        launches: as captured.
        ratio: speed-up over all shapes, measured or modelled; None where it was not tried.
        interval, null_interval: of `ratio`; see `Result`.
        improved: the winner is not the compiler's code.
        before, after: time of one average launch, microseconds measured or cycles modelled.
        cold: speed-up of single launches of the first shape on an evicted L2; None where not measured.
        detail: why it was not tried, or what else is to be known.
        run: number of the run in the store.
    """

    label: str
    function: str
    config: str
    runner_up: bool
    share: float
    launches: int
    ratio: float | None = None
    interval: Interval | None = None
    null_interval: Interval | None = None
    improved: bool = False
    before: float | None = None
    after: float | None = None
    cold: float | None = None
    detail: str = ""
    run: int | None = None


@dataclass(frozen=True)
class CapturedReport:
    """What `optimize_captured` found.

    Attributes:
        rows: by share, runner-ups behind the kernel that they compete with.
        modelled: whether ratios are modelled.
        device: what judged.
        timed: whether shares are of GPU time; otherwise of launches.
        wall_s: captured seconds between the first and the last launch.
        graphs: whether CUDA graphs have captured some of them; their replays are not counted.
        interrupted: whether SIGINT or SIGTERM ended a search, and the kernels after it were left alone.
    """

    rows: tuple[CapturedRow, ...]
    modelled: bool
    device: str
    timed: bool
    wall_s: float
    graphs: bool = False
    interrupted: bool = False

    @property
    def expected(self) -> tuple[float, float, float]:
        """Change of the Triton kernels' GPU time in all, and its bounds, by Amdahl's law over the shares."""
        return _amdahl(self.rows, lambda r: r.ratio), _amdahl(self.rows, _low), _amdahl(self.rows, _high)

    @property
    def expected_cold(self) -> float | None:
        """The same where each launch finds an evicted L2, as in a program whose others fill it; None where
        that was not measured."""
        if all(row.cold is None for row in self.rows if row.improved):
            return None
        return _amdahl(self.rows, lambda r: r.cold or r.ratio)

    @property
    def saved_s(self) -> float | None:
        """GPU seconds that the captured launches would have saved; None where nothing was measured."""
        if self.modelled or any(r.before is None for r in self.rows if r.improved and not r.runner_up):
            return None
        rows = [r for r in self.rows if r.improved and not r.runner_up]
        return sum(1e-6 * r.launches * ((r.before or 0.0) - (r.after or 0.0)) for r in rows)

    @property
    def judged(self) -> bool:
        """Whether there is a figure of any kernel."""
        return any(row.ratio is not None for row in self.rows)

    def conclusion(self) -> str:
        """What the program can expect, one sentence."""
        if not self.judged:
            return "no kernel was judged: the change to expect is not known"
        total, low, high = self.expected
        of = "Triton GPU time" if self.timed else "launches (no GPU times were captured: shares may mislead)"
        what = "modelled, not measured: " if self.modelled else ""
        text = f"{what}expected change of all captured kernels together: {total:.3f}x"
        if any(row.improved and row.interval for row in self.rows) or not self.modelled:
            text += f" [{low:.3f}, {high:.3f}]"
        if (cold := self.expected_cold) is not None:
            text += f", {cold:.3f}x by launches on a cold L2"
        text += f", by shares of {of}"
        if self.graphs:
            text += "; replays of CUDA graphs are not counted"
        elif (saved := self.saved_s) and self.wall_s > 0:
            share = 100 * saved / self.wall_s
            text += f"; at most {share:.2f} % of the {self.wall_s:.1f} s between first and last launch"
        return text

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        total, low, high = self.expected if self.judged else (None, None, None)
        return {
            "device": self.device,
            "modelled": self.modelled,
            "timed": self.timed,
            "wall_s": self.wall_s,
            "expected": total,
            "expected_low": low,
            "expected_high": high,
            "expected_cold": self.expected_cold,
            "saved_s": self.saved_s,
            "graphs": self.graphs,
            "interrupted": self.interrupted,
            "conclusion": self.conclusion(),
            "rows": [asdict(row) for row in self.rows],
        }


def _low(row: CapturedRow) -> float | None:
    return row.interval.low if row.interval else row.ratio


def _high(row: CapturedRow) -> float | None:
    return row.interval.high if row.interval else row.ratio


def _amdahl(rows: tuple[CapturedRow, ...], value: Callable[[CapturedRow], float | None]) -> float:
    left = 1.0
    for row in rows:
        if row.improved and not row.runner_up and (ratio := value(row)):
            left -= row.share * (1 - 1 / ratio)
    return 1 / left


def optimize_captured(
    path: str | Path | Captured,
    *,
    device: str | Callable[[], Device] = "auto",
    most: int = 10,
    shapes: int = 8,
    runner_ups: int = 1,
    least_share: float = 0.01,
    total: str | Budget | None = None,
    stage: Callable[[str], None] | None = None,
    **options: Any,
) -> CapturedReport:
    """Tune what a program launches, the kernels with the most GPU time first.

    Each kernel is searched on all its captured shapes (the `shapes` most launched), weighted by launches; a
    schedule that slows any of them is refused. The winners go to the store, from which `install` serves them.
    Of autotuned kernels the configurations that came close are tuned too: a later autotuning then measures
    the tuned code of all of them and chooses.

    Args:
        path: a capture's folder or index.
        device: a name, or a function that makes a device; one is made a shape.
        most: kernels tried at most, runner-ups apart.
        shapes: shapes of a kernel that count at most.
        runner_ups: other configurations tried a kernel, at most.
        least_share: kernels with a smaller share are left alone.
        total: wall time of all searches together, instead of `budget`: each kernel has its share of it, and
            those whose part is too short for a search are left alone.
        stage: called with a line of text when another part of the work begins.
        options: of `optimize`: budget (of each kernel), space, strategy, settings, seed, store, out, fresh
            and progress.

    Raises:
        SassafrasError: the capture cannot be read, or options contradict each other; what is wrong with one
            kernel ends up in its row.
    """
    captured = path if isinstance(path, Captured) else read(path)
    say = stage or (lambda text: None)
    if "budget" in options:
        options["budget"] = Budget.of(options["budget"])  # refused once, not for every kernel
    opened = device if callable(device) else lambda: open_device(str(device))
    if by_results := judged_by_results(options.get("space")):
        check_asked(options["space"], None, None, options.get("strategy"))
    make = (lambda: device_for(opened())) if by_results else opened
    shares = captured.shares()
    seconds = None if total is None else Budget.of(total).seconds
    if total is not None and seconds is None:
        raise SassafrasError("a program's kernels are tuned for a time", where=str(total), hint="120s")
    tuned = [v for v in captured.variants if v.count and shares[v.digest] >= least_share][:most]
    of_all = sum(shares[v.digest] for v in tuned)
    rows: list[CapturedRow] = []
    judge = ""
    modelled = interrupted = False
    for number, variant in enumerate(v for v in captured.variants if v.count):
        share = shares[variant.digest]
        row = CapturedRow(variant.label, variant.function, variant.config, False, share, variant.count)
        if number >= most or share < least_share:
            why = "its share is small" if share < least_share else f"not among the {most} with the most time"
            rows.append(replace(row, detail=f"left alone: {why}"))
            continue
        if interrupted:
            rows.append(replace(row, detail="left alone: interrupted"))
            continue
        others = _close(captured, variant)[:runner_ups]
        if seconds is not None:
            if (part := seconds * share / of_all / (1 + len(others))) < _LEAST_S:
                rows.append(replace(row, detail=f"left alone: its part of the budget is {part:.1f} s"))
                continue
            options["budget"] = Budget(seconds=part)
        tried = [(o, CapturedRow(o.label, o.function, o.config, True, share, 0)) for o in others]
        for each, mine in [(variant, row), *tried]:
            say(f"{each.label}: {100 * share:.1f} % of {'GPU time' if captured.timed else 'launches'}")
            counts = {s.id: max(1, s.count) for s in each.shapes[:shapes]}
            try:
                every = EveryCase(make, counts)
                result = optimize(workload(captured, each), device=every, stage=stage, **options)
            except SassafrasError as error:
                rows.append(replace(mine, detail=str(error)))
                continue
            judge, modelled = result.device, result.modelled
            rows.append(_of_result(mine, result))
            if interrupted := result.reason == "interrupted":
                break
    graphs = any(shape.in_graph for variant in captured.variants for shape in variant.shapes)
    return CapturedReport(tuple(rows), modelled, judge, captured.timed, captured.wall_s, graphs, interrupted)


def _close(captured: Captured, variant: CapturedVariant) -> list[CapturedVariant]:
    """Configurations of the same function that the autotuner found nearly as fast, the fastest first."""
    if not variant.config or variant.bench_us is None:
        return []
    found = [
        v
        for v in captured.variants
        if v.function == variant.function
        and not v.count
        and v.bench_us is not None
        and v.bench_us <= _CLOSE * (variant.bench_us or 0.0)
        and _same_arguments(v, variant)
    ]
    return sorted(found, key=lambda v: v.bench_us or 0.0)


def _same_arguments(one: CapturedVariant, other: CapturedVariant) -> bool:
    """Was it tried on arguments that the other one was launched with?"""

    def kinds(variant: CapturedVariant) -> set[str]:
        return {
            repr([(k, v.get("shape") if isinstance(v, dict) else v) for k, v in sorted(s.args.items())])
            for s in variant.shapes
        }

    return bool(kinds(one) & kinds(other))


def _of_result(row: CapturedRow, result: Result) -> CapturedRow:
    ratio = result.modelled_ratio if result.modelled else result.speedup
    cases = result.facts.get("cases", {})
    launches = sum(c["launches"] for c in cases.values()) or 1
    before = sum(c["launches"] * (c["baseline"] or 0.0) for c in cases.values()) / launches
    notes = list(result.notes)
    if result.facts.get("slowed"):
        notes.append("slowed: " + ", ".join(result.facts["slowed"]))
    return replace(
        row,
        ratio=ratio,
        interval=result.interval if result.improved else None,
        null_interval=result.null_interval,
        improved=result.improved,
        before=before or None,
        after=before / ratio if before and ratio else None,
        cold=result.facts.get("cold_l2_speedup"),
        detail="; ".join(notes),
        run=result.run,
    )

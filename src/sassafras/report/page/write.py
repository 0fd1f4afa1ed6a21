"""The page itself: templates, one style sheet, one script, no resource from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from sassafras import __version__
from sassafras.core import SassafrasError
from sassafras.core.errors import os_errors
from sassafras.core.files import write_whole
from sassafras.core.statistics import geometric_mean
from sassafras.report.explain.subject import of_run
from sassafras.report.explain.work import explain as explained
from sassafras.store import Store

from . import svg
from .gather import Gathered, RunView, gather
from .kernels import KernelView, view

#: a page larger than this loses the timelines of its last kernels
MOST_BYTES = 1_000_000
#: pixels of a chart in a table
_WIDE = 340
#: classes of verdict colours
VERDICTS = {
    "correct": "v-good",
    "modelled": "v-model",
    "unstable_baseline": "v-warn",
    **dict.fromkeys(("illegal_schedule", "compile_error", "out_of_resources", "unsupported"), "v-plain"),
    **dict.fromkeys(("wrong_result", "crashed", "timed_out", "cheated"), "v-bad"),
}
#: classes of the colours of reasons to wait
REASONS = {
    "scoreboard": "r-scoreboard",
    "stall count": "r-stall",
    "copy group": "r-copy",
    "HGMMA group": "r-tensor",
    "barrier": "r-barrier",
    "pipe busy": "r-pipe",
    "memory queue full": "r-queue",
    "register banks": "r-banks",
    "not selected": "r-turn",
    "start": "r-start",
}


def write_report(
    path: str | Path,
    sources: Sequence[str | Path] = (),
    *,
    store: str | Path | None = None,
    kernels: int = 6,
    explain: int = 300,
    title: str = "Sassafras report",
    stage: Callable[[str], None] | None = None,
) -> Path:
    """Write one HTML file that works offline, in light and dark.

    Args:
        path: the file to write.
        sources: see `gather`.
        store: the store for ``run:N``; None for the default.
        kernels: how many tuned kernels are shown instruction by instruction.
        explain: schedules judged at most to explain each of them on the timing model; 0: only explanations
            that were given as files.
        title: of the page.
        stage: called with a line of text when another part of the work begins.

    Raises:
        SassafrasError: a source cannot be read, there is nothing to report, or the file cannot be written.
    """
    say = stage or (lambda text: None)
    found = gather(sources, store)
    views = list(_kernels(found, kernels, explain, say))
    page = _page(found, views, title)
    while len(page.encode(errors="replace")) > MOST_BYTES and any(v.payload.get("times") for v in views):
        last = max(n for n, v in enumerate(views) if v.payload.get("times"))
        views[last].payload["times"].clear()  # type: ignore[attr-defined]
        found.notes.append(f"{views[last].name}: its timeline was left out to keep the page small")
        page = _page(found, views, title)
    path = Path(path)
    with os_errors("cannot write the report", path):
        write_whole(path, page.encode(errors="replace"))  # a path may hold bytes that are no UTF-8
    return path


def _kernels(found: Gathered, most: int, limit: int, say: Callable[[str], None]) -> Any:
    """The best tuned kernel of each workload case, the largest speed-ups first, measured before modelled."""
    improved = (run for run in found.runs if run.result.get("improved") and run.ratio is not None)
    best: dict[tuple[str, str], RunView] = {}
    for run in sorted(improved, key=lambda r: (r.record.modelled, -(r.ratio or 0))):
        best.setdefault((run.record.workload, run.record.case), run)
    ranked = list(best.values())
    if len(ranked) > most:
        found.notes.append(
            f"{len(ranked) - most} more tuned kernels are not shown instruction by instruction"
        )
    for run in ranked[:most]:
        say(f"looking at {run.name}")
        with Store.open(run.store, readonly=True) as store:
            made = _view(found, store, run, limit)
        if isinstance(made, KernelView):
            yield made
        else:
            found.notes.append(f"{run.name}: not shown instruction by instruction: {made}")


def _view(found: Gathered, store: Store, run: RunView, limit: int) -> KernelView | str:
    try:
        subject = of_run(store, run.record.id)
        tuned = run.result["kernel"]["digest"]
        given = next((e for e in found.explanations if e.get("tuned") == tuned), None)
        if given is None and limit > 0:
            given = explained(subject, device="model", limit=limit).to_json()
        return view(subject, f"kernel-{run.key}", _title(run), run.record.modelled, given)
    except SassafrasError as error:
        return error.what  # without the place: a page may travel


def _title(run: RunView) -> str:
    if run.interval is None:
        return f"{run.ratio:.3f}x as selected, not re-drawn"
    return f"{run.ratio:.3f}x {run.interval}"


def _page(found: Gathered, views: Sequence[KernelView], title: str) -> str:
    shown = {view.key.removeprefix("kernel-"): view.key for view in views}
    measured = sorted(found.measured, key=lambda row: (not row.counts, -row.speedup))
    explained = {view.explanation["tuned"] for view in views if view.explanation}
    files = resources.files(__package__)
    return (
        templates()
        .get_template("page.html.jinja")
        .render(
            title=title,
            date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            version=__version__,
            style=Markup(files.joinpath("style.css").read_text(encoding="utf-8")),
            script=Markup(files.joinpath("script.js").read_text(encoding="utf-8")),
            payloads={view.key: view.payload for view in views},
            tiles=_figures(found),
            found=found,
            views=views,
            shown=shown,
            measured=measured,
            scale=svg.ratio_scale(measured, _WIDE),
            modelled=sorted((r for r in found.runs if r.record.modelled), key=lambda r: -(r.ratio or 0)),
            curves=[run for run in found.runs if run.curve],
            explanations=[e for e in found.explanations if e["tuned"] not in explained],
            staged=[run for run in found.runs if run.stages],
            trees=[run for run in found.runs if run.nodes],
            environments=_environments(found.environments),
        )
    )


@cache
def templates() -> Environment:
    """Templates with everything escaped but `Markup`: the package's own style and script."""
    made = Environment(
        loader=PackageLoader(__package__),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "default": str}
    made.globals.update(svg=svg, width=_WIDE, verdict_classes=VERDICTS, reason_classes=REASONS)
    made.filters.update(csp_hash=_csp_hash, bar=_bar)
    made.filters["number"] = svg.number
    made.filters["thousands"] = "{:,.0f}".format
    made.filters["ratio"] = lambda value: "" if value is None else f"{value:.3f}"
    made.filters["percent"] = lambda ratio: f"{100 * (ratio - 1):+.2f} %"
    return made


def _bar(explanation: Mapping[str, Any], move: Mapping[str, Any]) -> float:
    """The width of a move's bar: its gain as a share of the largest one's."""
    top = max(abs(each["gain"] - 1) for each in explanation["moves"]) or 1.0
    return float(90 * abs(move["gain"] - 1) / top)


def _environments(found: Sequence[tuple[str, Mapping[str, Any]]]) -> list[tuple[str, list[tuple[str, str]]]]:
    """(label, facts) of what everything was measured or modelled with; equal ones once."""
    groups: dict[str, list[str]] = {}
    for where, facts in found:
        own = ("case", "target", "search_seconds")  # of a run, not of what it ran on
        kept = {k: v for k, v in facts.items() if k not in own and v not in (None, "", {})}
        groups.setdefault(json.dumps(kept, sort_keys=True, default=str), []).append(where)
    return [
        (
            names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else ""),
            [(key, _plain(value)) for key, value in json.loads(text).items()],
        )
        for text, names in groups.items()
    ]


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {_plain(v)}" for k, v in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _csp_hash(text: str) -> str:
    """What a content security policy calls an inline element of exactly this text."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _figures(found: Gathered) -> list[tuple[str, str, str]]:
    """(value, what, remark) for the top of the page."""
    out: list[tuple[str, str, str]] = []
    if found.measured:
        gains = [row.speedup if row.counts else 1.0 for row in found.measured]
        faster = sum(row.counts for row in found.measured)
        out.append((f"{geometric_mean(gains):.3f}x", "geometric mean, measured", f"{len(gains)} kernels"))
        best = max(found.measured, key=lambda row: row.speedup if row.counts else 0)
        out.append((f"{faster} of {len(gains)}", "beyond their null experiment", "the others count as 1.00x"))
        if best.counts:
            out.append((f"{best.speedup:.3f}x", "best, measured", best.name))
    modelled = [run for run in found.runs if run.record.modelled and run.counts]
    if modelled:
        top = max(modelled, key=lambda run: run.ratio or 0)
        out.append((f"{top.ratio:.3f}x", "best, modelled: not a measurement", f"{top.name}, {top.interval}"))
    if found.runs:
        total = sum(run.record.evaluations for run in found.runs)
        out.append((f"{total:,}", "schedules judged", f"{len(found.runs)} runs"))
        failed = sum(int(run.result.get("failed_after_validation") or 0) for run in found.runs)
        out.append((str(failed), "approved but failed", "anything but 0 is a defect of the validator"))
    return out

"""The page itself: sections in HTML, one style sheet, one script, no resource from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from sassafras import __version__
from sassafras.core import SassafrasError
from sassafras.core.statistics import geometric_mean
from sassafras.store import Store

from . import sections
from .gather import Gathered, RunView, gather
from .kernels import KernelView, try_view

#: a page larger than this loses the timelines of its last kernels
MOST_BYTES = 1_000_000


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
    while len(page.encode()) > MOST_BYTES and any(v.payload.get("times") for v in views):
        last = max(n for n, v in enumerate(views) if v.payload.get("times"))
        views[last].payload["times"].clear()  # type: ignore[attr-defined]
        found.notes.append(f"{views[last].name}: its timeline was left out to keep the page small")
        page = _page(found, views, title)
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise SassafrasError(f"cannot write the report: {error.strerror}", where=str(path)) from error
    return path


def _kernels(found: Gathered, most: int, limit: int, say: Callable[[str], None]) -> Any:
    """The best tuned kernel of each workload case, the largest speed-ups first, measured before modelled."""
    best: dict[tuple[str, str], RunView] = {}
    for run in found.runs:
        if run.result.get("improved") and run.ratio is not None:
            rank = (not run.record.modelled, run.ratio)
            old = best.get((run.record.workload, run.record.case))
            if old is None or rank > (not old.record.modelled, old.ratio):
                best[run.record.workload, run.record.case] = run
    ranked = sorted(best.values(), key=lambda r: (r.record.modelled, -(r.ratio or 0)))
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
    from sassafras.report.explain.subject import of_run
    from sassafras.report.explain.work import explain_subject

    try:
        subject = of_run(store, run.record.id)
        tuned = run.result["kernel"]["digest"]
        given = next((e for e in found.explanations if e.get("tuned") == tuned), None)
        if given is None and limit > 0:
            given = explain_subject(subject, device="model", limit=limit).to_json()
    except SassafrasError as error:
        return error.what  # without the place: a page may travel
    return try_view(subject, f"kernel-{run.key}", _title(run), run.record.modelled, given)


def _title(run: RunView) -> str:
    if run.interval is None:
        return f"{run.ratio:.3f}x as selected, not re-drawn"
    return f"{run.ratio:.3f}x {run.interval}"


def _page(found: Gathered, views: Sequence[KernelView], title: str) -> str:
    shown = {view.key.removeprefix("kernel-"): view.key for view in views}
    body = [
        sections.measured(found.measured, shown),
        sections.modelled(found.runs, shown),
        sections.curves(found.runs),
        sections.verdicts(found.runs),
        *(sections.kernel(view) for view in views),
        sections.explanations(found.explanations, views),
        sections.lineage(found.runs),
        sections.environments(found.environments),
        sections.notes(found.notes),
        sections.reading(),
    ]
    links = "".join(
        f'<a href="#{key}">{escape(text)}</a>' for key, text, html in filter(None, body) if text and html
    )
    main = "".join(html for _, _, html in filter(None, body))
    data = json.dumps({view.key: view.payload for view in views}, separators=(",", ":"), default=str)
    files = resources.files(__package__)
    style = files.joinpath("style.css").read_text(encoding="utf-8")
    script = files.joinpath("script.js").read_text(encoding="utf-8")
    return _PAGE.format(
        title=escape(title),
        style=style,
        script=script,
        style_hash=_csp_hash(style),
        script_hash=_csp_hash(script),
        # no "</script>" or "<!--" in a kernel's name may end the block
        data=data.replace("<", "\\u003c").replace("\u2028", "").replace("\u2029", ""),
        tiles=sections.tiles(_figures(found)),
        sources=escape(", ".join(found.sources)),
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        version=escape(__version__),
        links=links,
        main=main,
    )


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


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src '{style_hash}'; script-src '{script_hash}'; img-src data:; base-uri 'none'; form-action 'none'">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the results</a>
<header>
<div class="bar"><div><h1>{title}</h1>
<p class="dim">{date} &middot; sassafras {version} &middot; from {sources}</p></div>
<button id="theme" type="button" aria-label="Switch between light and dark">Theme</button></div>
{tiles}
<nav aria-label="Sections">{links}</nav>
</header>
<main id="main">{main}</main>
<script type="application/json" id="data">{data}</script>
<script>{script}</script>
</body>
</html>
"""

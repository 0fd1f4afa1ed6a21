"""The page's sections: each returns (anchor, name in the navigation, HTML), or None where there is nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from . import svg
from .gather import MeasuredRow, RunView
from .kernels import KernelView

Section = tuple[str, str, str] | None

_WIDE = 340
#: classes of verdict colours
VERDICTS = {
    "correct": "v-good",
    "modelled": "v-model",
    "illegal_schedule": "v-plain",
    "compile_error": "v-plain",
    "out_of_resources": "v-plain",
    "unsupported": "v-plain",
    "unstable_baseline": "v-warn",
    "wrong_result": "v-bad",
    "crashed": "v-bad",
    "timed_out": "v-bad",
    "cheated": "v-bad",
}
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
    "mbarrier": "r-copy",
    "start": "r-start",
}
MODELLED = '<span class="tag">modelled</span>'


def _section(key: str, name: str, body: str, intro: str = "") -> tuple[str, str, str]:
    lead = f'<p class="intro">{intro}</p>' if intro else ""
    return key, name, f'<section id="{key}"><h2>{escape(name)}</h2>{lead}{body}</section>'


def tiles(figures: Sequence[tuple[str, str, str]]) -> str:
    """Large figures."""
    return (
        '<dl class="tiles">'
        + "".join(
            f'<div><dd>{escape(value)}</dd><dt>{escape(what)}</dt><dd class="dim">{escape(remark)}</dd></div>'
            for value, what, remark in figures
        )
        + "</dl>"
    )


def measured(rows: Sequence[MeasuredRow], shown: Mapping[str, str]) -> Section:
    """Measured speed-ups with intervals, the null's band beside each."""
    if not rows:
        return None
    rows = sorted(rows, key=lambda row: (not row.counts, -row.speedup))
    scale = svg.ratio_scale(rows, _WIDE)
    lines = []
    for row in rows:
        name = escape(row.name)
        if row.anchor in shown:
            name = f'<a href="#{shown[row.anchor]}">{name}</a>'
        base = "" if row.baseline_us is None else f"{row.baseline_us:.2f}"
        null = "not measured" if row.null_interval is None else str(row.null_interval)
        verdict = "counts" if row.counts else row.note or "not beyond the null"
        lines.append(
            f'<tr><th scope="row">{name}</th><td class="num">{base}</td>'
            f'<td class="num"><b>{row.speedup:.3f}x</b></td><td class="num">{escape(str(row.interval))}</td>'
            f'<td class="num dim">{escape(null)}</td><td>{svg.interval(row, scale, _WIDE)}</td>'
            f'<td class="{"good" if row.counts else "dim"}">{escape(verdict)}</td>'
            f'<td class="dim where">{escape(row.gpu)}<br>{escape(row.source)}</td></tr>'
        )
    table = (
        '<div class="scroll"><table><thead><tr><th scope="col">kernel</th><th scope="col" class="num">baseline, us</th>'
        '<th scope="col" class="num">speed-up</th><th scope="col" class="num">95 % interval</th>'
        '<th scope="col" class="num">null</th>'
        f'<th scope="col">{svg.axis(scale, _WIDE)}</th><th scope="col"></th><th scope="col">measured on</th></tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )
    intro = (
        "Baseline time / tuned time, re-measured in fresh processes after the search. The bar is the 95 % interval; the "
        "grey band below it is the null experiment, the unmodified kernel loaded as if it were a candidate. A speed-up "
        "counts only when its bar lies wholly to the right of the band and of 1."
    )
    return _section("measured", "Speed-ups", table, intro)


def modelled(runs: Sequence[RunView], shown: Mapping[str, str]) -> Section:
    """What the timing model says, apart from measurements."""
    rows = [run for run in runs if run.record.modelled]
    if not rows:
        return None
    lines = []
    for run in sorted(rows, key=lambda run: -(run.ratio or 0)):
        name = escape(run.name)
        if run.key in shown:
            name = f'<a href="#{shown[run.key]}">{name}</a>'
        what = run.result.get("correlation")
        tau = "not measured"
        if what:
            tau = f"{what['kendall_tau']:.2f}"
            if what.get("ceiling") is not None:
                tau += f" of {what['ceiling']:.2f}"
        null = "" if run.null_interval is None else str(run.null_interval)
        remark = ""
        if run.refusal:
            remark = run.refusal
        elif run.ratio is not None and not run.result.get("improved"):
            remark = "nothing beat the baseline"
        elif run.ratio is not None and run.interval is None:
            remark = "as selected, not re-drawn"
        lines.append(
            f'<tr><th scope="row">{name}</th><td class="num">{_modelled_figure(run)}</td>'
            f'<td class="num">{escape(str(run.interval or ""))}</td><td class="num dim">{escape(null)}</td>'
            f'<td class="num">{tau}</td>'
            f"<td>{escape(f'{run.record.strategy}, seed {run.record.seed}')}</td>"
            f'<td class="num">{run.record.evaluations:,}</td><td class="dim">{escape(remark)}</td></tr>'
        )
    table = (
        '<div class="scroll"><table><thead><tr><th scope="col">kernel</th><th scope="col" class="num">modelled ratio</th>'
        '<th scope="col" class="num">95 % interval</th><th scope="col" class="num">null</th>'
        '<th scope="col" class="num">rank correlation</th><th scope="col">search</th>'
        '<th scope="col" class="num">evaluations</th><th scope="col"></th></tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )
    intro = (
        "Cycles of a timing model of a Hopper SM, baseline / tuned, on draws of the warps' start times that the search did not "
        "select on; the interval says where 100 other draws put the ratio, and nothing of how far the model is from a GPU. "
        "The null is the baseline against itself on other draws. Nothing here was measured. The rank correlation "
        "(Kendall's tau, and the ceiling that noise allows) says how well the model orders schedules of this very kernel "
        "on an H200; where it is below 0.3, the ratio is no evidence and is not shown."
    )
    return _section("modelled", "Modelled only", table, intro)


def _modelled_figure(run: RunView) -> str:
    if run.refusal:
        return "no evidence"
    return "not finished" if run.ratio is None else f"<b>{run.ratio:.3f}x</b> {MODELLED}"


def curves(runs: Sequence[RunView]) -> Section:
    """Best so far of each run."""
    runs = [run for run in runs if run.curve]
    if not runs:
        return None
    charts = "".join(
        f'<div class="tab" data-tab="{over}"{"" if over == "evaluations" else " hidden"}>'
        f"{svg.curves(runs, over)}</div>"
        for over in ("evaluations", "seconds")
    )
    buttons = (
        '<div class="tabs" role="group" aria-label="Horizontal axis">'
        '<button type="button" data-show="evaluations" aria-pressed="true">evaluations</button>'
        '<button type="button" data-show="seconds" aria-pressed="false">seconds</button></div>'
    )
    legend = "".join(
        f'<li data-run="{run.key}"><svg width="22" height="10" aria-hidden="true"><line class="line s{n % svg.SERIES}'
        f'{" modelled" if run.record.modelled else ""}" x1="1" x2="21" y1="5" y2="5"/></svg>{escape(run.name)} '
        f'<span class="dim">{escape(f"run {run.record.id}, {run.record.strategy}, seed {run.record.seed}")}'
        f"{', modelled' if run.record.modelled else ''}</span></li>"
        for n, run in enumerate(runs)
    )
    intro = (
        "Best ratio so far, as the search saw it: of thousands of noisy looks the best owes something to luck, so these "
        "figures are not results. Dashed: modelled, on the draws that the search selects on."
    )
    return _section("curves", "Searches", f'{buttons}{charts}<ul class="legend">{legend}</ul>', intro)


def verdicts(runs: Sequence[RunView]) -> Section:
    """Outcomes by verdict, a row a run."""
    if not runs:
        return None
    lines = []
    for run in runs:
        cells = ", ".join(f"{count:,} {escape(name)}" for name, count in run.verdicts.items())
        state = run.record.finished_budget
        lines.append(
            f'<tr id="{run.key}"><td class="num">{escape(str(run.record.id))}</td><th scope="row">{escape(run.name)}</th>'
            f"<td>{svg.stacked(run.verdicts, VERDICTS)}</td><td>{cells}</td>"
            f'<td class="dim">{escape(f"finished {state}" if state else "can be resumed")}</td>'
            f'<td class="dim">{escape(run.record.created[:16].replace("T", " "))}</td></tr>'
        )
    table = (
        '<div class="scroll"><table><thead><tr><th scope="col" class="num">run</th><th scope="col">kernel</th>'
        '<th scope="col">shares</th><th scope="col">verdicts</th><th scope="col"></th><th scope="col">begun</th></tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )
    return _section("verdicts", "Verdicts", table, "What came of every candidate that was judged.")


def kernel(view: KernelView) -> Section:
    """One kernel: moves, timelines, both schedules side by side."""
    before, after = view.reasons
    cycles = view.payload["cycles"]
    facts = "".join(f"<li>{escape(line)}</li>" for line in view.facts)
    order = sorted({*before, *after}, key=lambda reason: -(before.get(reason, 0) + after.get(reason, 0)))
    rows = "".join(
        f'<tr><th scope="row"><span class="key {REASONS.get(reason, "r-start")}"></span>{escape(reason)}</th>'
        f'<td class="num">{before.get(reason, 0):,}</td><td class="num">{after.get(reason, 0):,}</td>'
        f'<td class="num {_way(before.get(reason, 0), after.get(reason, 0))}">{after.get(reason, 0) - before.get(reason, 0):+,}</td></tr>'
        for reason in order
    )
    body = f"""
<ul class="facts">{facts}</ul>
{_moves(view)}
<h3>Timeline of one warp {MODELLED}</h3>
<p class="intro">Warp 0 of the first block along the predicted path, cycles from left to right, both schedules on one scale.
Coloured: waiting, by reason. Thin lanes: what each scoreboard guards, from its setting to the first instruction that waits on
it; dark where that instruction stood still. Drag to move, scroll with Ctrl (or the buttons) to zoom, click for the instruction.</p>
<div class="timeline" data-kernel="{view.key}"></div>
<div class="two"><table class="narrow"><caption>Cycles that this warp stood still, by reason {MODELLED}</caption>
<thead><tr><th scope="col">reason</th><th scope="col" class="num">before</th><th scope="col" class="num">after</th>
<th scope="col" class="num">change</th></tr></thead><tbody>{rows}
<tr class="sum"><th scope="row">whole kernel, cycles</th><td class="num">{cycles[0]:,.0f}</td><td class="num">{cycles[1]:,.0f}</td>
<td class="num">{100 * (cycles[1] / cycles[0] - 1):+.2f} %</td></tr></tbody></table>
<p class="intro">One warp of many, on one draw of start times: what it loses, others may gain. The whole kernel's cycles are the
mean over draws that nothing was selected on; they decide.</p></div>
<h3>Before and after</h3>
<p class="intro">Offset, stall count, control code, cycles waited on the traced path {MODELLED}, instruction. Moved instructions are
tinted and joined by lines; those of the moves above carry their number. Hover to see the partner, click to bring it level.</p>
<div class="sides" data-kernel="{view.key}"></div>"""
    tag = f" {MODELLED}" if view.modelled else ""
    html = (
        f'<section id="{view.key}" class="kernel"><h2>{escape(view.name)} <span class="ratio">{escape(view.title)}</span>{tag}</h2>'
        f"{body}</section>"
    )
    return view.key, view.name, html


def _way(before: int, after: int) -> str:
    return "good" if after < before else "worse" if after > before else ""


def _moves(view: KernelView) -> str:
    if view.explanation is None:
        return '<p class="intro">Not explained: no limit on evaluations was given, or explaining failed.</p>'
    return f"<h3>What the moves gave</h3>{moves_table(view.explanation, view.key)}"


def moves_table(facts: Mapping[str, Any], key: str = "") -> str:
    """The moves of an explanation, the largest first."""
    moves = facts["moves"]
    top = max((abs(m["gain"] - 1) for m in moves), default=1.0) or 1.0
    lines = []
    for n, m in enumerate(moves):
        wide = 90 * abs(m["gain"] - 1) / top
        kind = "gain" if m["gain"] > 1 else "loss"
        figure = f"{100 * (m['gain'] - 1):+.2f} %"
        if m.get("interval"):
            figure += f'<br><span class="dim">[{m["interval"][0]:.4f}, {m["interval"][1]:.4f}]</span>'
        alone = "" if m["alone"] is None else f"{100 * (m['alone'] - 1):+.2f} %"
        button = (
            f'<button type="button" class="move" data-kernel="{key}" data-move="{n}">{n + 1}</button>'
            if key
            else str(n + 1)
        )
        lines.append(
            f'<tr><td class="num">{button}</td><td class="num">{figure}</td>'
            f'<td><svg width="92" height="12" aria-hidden="true"><rect class="bar-{kind}" y="1" height="10" width="{wide:.1f}"/></svg></td>'
            f'<td class="num dim">{alone}</td><td class="nowrap">{escape(m["kind"])}</td><td>{escape(m["words"])}'
            f"{' <span class=dim>(in a loop)</span>' if m['in_loop'] else ''}</td></tr>"
        )
    tag = f" {MODELLED}" if facts["modelled"] else ""
    notes = "".join(f"<li>{escape(note)}</li>" for note in facts["notes"])
    return (
        f'<p class="intro">{escape(facts["summary"])}{tag}. Gain: runtime without the move / with it, the others in place; '
        "alone: with this move and what it needs, and nothing else. Single gains do not add up to the whole.</p>"
        '<div class="scroll"><table class="moves"><thead><tr><th scope="col" class="num">move</th><th scope="col" class="num">gain</th><th></th>'
        '<th scope="col" class="num">alone</th><th scope="col">class</th><th scope="col">what moved, and why it helps</th></tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
        + (f'<ul class="facts">{notes}</ul>' if notes else "")
    )


def explanations(found: Sequence[Mapping[str, Any]], views: Sequence[KernelView]) -> Section:
    """Explanations whose kernels are not on the page."""
    shown = {view.explanation["tuned"] for view in views if view.explanation}
    rest = [e for e in found if e["tuned"] not in shown]
    if not rest:
        return None
    body = "".join(f"<h3>{escape(e['workload'])} {escape(e['case'])}</h3>{moves_table(e)}" for e in rest)
    return _section("explanations", "Explanations", body)


def lineage(runs: Sequence[RunView]) -> Section:
    """Which candidate was made from which, for runs whose recipes say so."""
    trees = [run for run in runs if run.nodes]
    if not trees:
        return None
    body = "".join(
        f"<h3>{escape(f'{run.name}, run {run.record.id}')}{' ' + MODELLED if run.record.modelled else ''}</h3>{svg.tree(run.nodes)}"
        for run in trees
    )
    intro = "Candidates that were made from others; the way to the best one is drawn bold. Ratios as the search saw them."
    return _section("lineage", "Lineage", body, intro)


def environments(found: Sequence[tuple[str, Mapping[str, Any]]]) -> Section:
    """What everything was measured or modelled with; equal ones once."""
    if not found:
        return None
    groups: dict[str, list[str]] = {}
    for where, facts in found:
        kept = {k: v for k, v in facts.items() if k not in ("case", "target") and v not in (None, "", {})}
        groups.setdefault(json.dumps(kept, sort_keys=True, default=str), []).append(where)
    blocks = []
    for text, names in groups.items():
        rows = "".join(
            f'<tr><th scope="row">{escape(str(k))}</th><td>{escape(_plain(v))}</td></tr>'
            for k, v in sorted(json.loads(text).items())
        )
        label = names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")
        blocks.append(
            f'<details><summary>{escape(label)}</summary><div class="scroll"><table class="facts">{rows}</table></div></details>'
        )
    return _section("environment", "Environment", "".join(blocks))


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {_plain(v)}" for k, v in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def notes(found: Sequence[str]) -> Section:
    """What could not be shown."""
    if not found:
        return None
    return _section(
        "notes", "Notes", '<ul class="facts">' + "".join(f"<li>{escape(n)}</li>" for n in found) + "</ul>"
    )


def reading() -> Section:
    """How the figures came about."""
    body = """<ul class="facts">
<li>Every schedule was proved to keep the original's data flow and legal timing before it ran or was modelled. A rewritten source (see
Lineage) is judged by its results on a GPU, and by nothing on the timing model.</li>
<li>A measured figure is a re-measurement of the frozen winner in fresh processes, interleaved with the baseline; the search's own
figures are never reported.</li>
<li>Everything marked <span class="tag">modelled</span> comes from a timing model of a Hopper SM. It is never a measurement. Its ratios
are re-drawn: taken on random start times of the warps that the search did not see.</li>
<li>Timelines assume the path that the model predicts: loops as listed, forward branches not taken, all lanes active.</li></ul>"""
    return _section("reading", "How to read this page", body)

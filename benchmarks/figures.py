"""The figures that README and docs quote, each made from a file in benchmarks/results/ (or a shipped table).

    python benchmarks/figures.py            # every name with its value
    python benchmarks/figures.py --check    # where a page says otherwise; exit code 1 if any does
    python benchmarks/figures.py --write    # bring the pages up to date, after a result file has changed

A paragraph names its figures in a comment at its end, in the order in which they stand in it:
``<!--figures: 14 = schedules.faster; 1.022x = schedules.geomean-->``; a table stands between
``<!--table schedules-->`` and ``<!--end-->``. Comments do not show where Markdown is rendered.
"""

from __future__ import annotations

import argparse
import functools
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import figure_beyond
import figure_strategies
from figure_results import ROOT, result
from figure_values import (
    figures,
    improved,
    latency,
    null,
    schedule_rows,
    speedup,
    title,
    unchanged,
)

TABLES_OF_LATENCY = ("sm_90", "sm_80", "sm_86", "sm_89")
#: rows of the README's table
SHOWN = 7
SHOWN_LATENCIES = 24

_MARKS = re.compile(r"(?P<text>(?:(?!\n\n|-->).)*)(?P<open><!--figures: )(?P<list>.*?)-->", re.DOTALL)
_TABLE = re.compile(r"<!--table (?P<name>[\w-]+)-->\n(?P<text>.*?)<!--end-->", re.DOTALL)


# -- tables -------------------------------------------------------------------------------------------------


def _table(head: str, rows: Iterable[Iterable[str]]) -> str:
    titles = head.split(" | ")
    lines = [f"| {head} |", "|" + "---|" * len(titles)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def best_schedules() -> str:
    """The README's: the largest speed-ups, and what stayed as it was."""
    best = sorted(improved(), key=lambda row: -row["speedup"])[:SHOWN]
    rows = [
        [
            title(row),
            f"{row['baseline_us']:.2f} us",
            speedup(row, "**"),
            null(row),
        ]
        for row in best
    ]
    rest = list(dict.fromkeys(title(row) for row in unchanged()))
    if rest:
        rows.append([", ".join(rest), "", "1.00x: nothing beat it", "1.000"])
    return _table("kernel | baseline | speed-up | null experiment", rows)


def schedules(*, odd: bool = False) -> str:
    """The rows of schedule-suite.json."""
    rows = []
    for row in schedule_rows(odd=odd):
        won = speedup(row, "**") if row["improved"] else "1.00x, nothing beat it"
        stopped = row["search_seconds"] < 0.9 * row["seconds"]
        rows.append([
            row["kernel"], row["shape"], f"{row['baseline_us']:.2f}", row["ptxas"], won, null(row),
            f"{row['evaluations_per_second']:.0f}",
            f"{row['evaluations']:,}" + (f" in {row['search_seconds']:.0f} s" if stopped else ""),
            f"{row['failed_after_validation']}",
        ])  # fmt: skip
    head = "kernel | shape | baseline, us | ptxas | speed-up | null | evaluations/s | evaluations | wrong"
    return _table(head, rows)


def timing_model() -> str:
    """Every row of timing-model.json."""
    names = ("kendall_tau", "ceiling", "tau_all_pairs", "ceiling_all_pairs")
    rows = [
        [
            row["kernel"],
            row["shape"],
            *(f"{row[name]:.2f}" for name in names),
            f"{100 * row['ratio_mape']:.1f} %",
        ]
        for row in result("timing-model")["rows"]
    ]  # fmt: skip
    return _table("kernel | shape | tau | ceiling | tau, all | ceiling, all | error of ratios", rows)


def redraws() -> str:
    """Every row of redraws.json."""
    rows = [
        [
            row["kernel"], row["shape"], f"{row['kendall_tau']:.2f}", f"{row['selected']:.4f}",
            f"{row['modelled']:.4f} [{row['modelled_low']:.4f}, {row['modelled_high']:.4f}]",
            f"[{row['null_low']:.4f}, {row['null_high']:.4f}]", f"{row['fresh']:.4f}",
            "yes" if row["inside"] else "no", "yes" if row["confirmed"] else "",
        ]
        for row in result("redraws")["rows"]
    ]  # fmt: skip
    head = "kernel | shape | tau | as selected | re-drawn | null | 100 other draws | inside | gain confirmed"
    return _table(head, rows)


def hgemm() -> str:
    """The bands of hgemm-offline.json, and all shapes."""
    summary = result("hgemm-offline")["summary"]
    rows = []
    for name, of in (*summary["bands"].items(), ("all", summary)):
        ratios = (
            "geomean_vs_lt_autotune", "worst_vs_lt_autotune", "cold_geomean_vs_lt_autotune",
            "portfolio_geomean_vs_lt_autotune", "portfolio_geomean_vs_torch",
        )  # fmt: skip
        ours, *others = (f"{of[ratio]:.3f}" for ratio in ratios)
        won = f"{100 * of['win_rate_vs_lt_autotune']:.0f} %"
        rows.append([name, f"{of['shapes']:,}", f"**{ours}**", won, *others])
    head = "FLOP | shapes | ours | won | worst | ours, cold | `sassafras.matmul` | the same over torch.matmul"
    return _table(head, rows)


def latencies() -> str:
    """What the shipped latency tables were mined from."""
    serves = {"sm_90": "sm_90, sm_90a"}
    rows = []
    for arch in TABLES_OF_LATENCY:
        of = latency(arch)
        rows.append([
            arch, serves.get(arch, arch), f"{of['cubins']}", f"{of['functions']}", f"{of['instructions']:,}",
            f"{of['rows']:,}", f"{100 * of['answered']:.0f} %",
        ])  # fmt: skip
    return _table("table | serves | cubins | kernels | instructions | rows | raw pairs answered", rows)


def measured_latencies() -> str:
    """The pairs of the corpus that are met most often, one a class, mined and measured."""
    from sassafras.sass.latency import LatencyTable
    from sassafras.sass.latency.classes import pair_class

    mined, both = (LatencyTable.load("sm_90", source=s) for s in ("mined", "measured"))
    most = sorted((k for k in mined.rows if k in both.measured), key=lambda k: -mined.rows[k].samples)
    one_each = {pair_class(k): k for k in reversed(most)}.values()
    rows = []
    for key in sorted(one_each, key=lambda k: -mined.rows[k].samples)[:SHOWN_LATENCIES]:
        kind, first, slot, second, other = key
        row, found = mined.rows[key], both.measured[key]
        rows.append([
            kind, f"{first} {slot}", f"{second} {other}", f"{row.samples:,}", f"{row.cycles}",
            f"{found.cycles}", f"{found.fault}", f"{found.trials:,}", f"{found.bound:.1e}",
            f"{both.needed(*key, 64)}",
        ])  # fmt: skip
    head = "kind | first | second | in corpus | mined | measured | wrong at | trials | bound | in use"
    return _table(head, rows)


def policy() -> str:
    """Fraction of the best known speed by method and measurements, with the interval over seeds."""
    rows = []
    for method, by in result("llm-policy")["summary"].items():
        cells = (
            f"{of['mean_fraction_of_best']:.3f} [{of['low']:.3f}, {of['high']:.3f}]" for of in by.values()
        )
        rows.append([method, *cells])
    return _table("method | k = 1 | k = 4 | k = 16", rows)


def choosers(of_grid: str = "grid", file: str = "choosers") -> str:
    """Choosers for shapes never tuned, over all folds."""
    rows = [
        [
            name, f"{of['ours']:,} of {of['problems']:,}", f"{of['unknown']}",
            f"{of['geomean_over_torch']:.3f}x", f"{of['worst_over_torch']:.2f}x",
            f"{of['slower_by_1_percent']}", f"{of['slower_by_3_percent']}",
            f"{of['fraction_of_best']:.3f}", f"{of['fraction_of_best_5_percent']:.2f}",
        ]
        for name, of in result(file)["summary"][of_grid].items()
    ]  # fmt: skip
    head = "chooser | ours | not timed | over torch | worst | slower, 1 % | slower, 3 % | of the best | "
    return _table(head + "worst twentieth", rows)


def trigger() -> str:
    """The bands of hgemm-trigger.json, and all shapes."""
    summary = result("hgemm-trigger")["summary"]
    rows = [
        [name, str(of["shapes"]), *(f"{of[kind]:.3f}" for kind in ("again", "at once", "plain"))]
        for name, of in (*summary["bands"].items(), ("all", summary["all"]))
    ]
    return _table("FLOP | shapes | A/A control | trigger at once | no overlap", rows)


TABLES: dict[str, Callable[[], str]] = {
    "best-schedules": best_schedules, "schedules": schedules,
    "odd-schedules": functools.partial(schedules, odd=True), "timing-model": timing_model,
    "redraws": redraws,
    "latencies": latencies, "measured-latencies": measured_latencies, "hgemm": hgemm,
    "policy": policy, "choosers": choosers, "trigger": trigger,
    "choosers-off-grid": functools.partial(choosers, "off_grid"),
    "choosers-fifth": functools.partial(choosers, "unseen-fifth"),
    "choosers-rare": functools.partial(choosers, "unseen-rare"),
    "choosers-backward": functools.partial(choosers, "backward", "choosers-backward"),
    "beyond-ladder": lambda: figure_beyond.ladder(_table),
    "beyond-kernels": lambda: figure_beyond.kernels(_table),
    "beyond-winners": lambda: figure_beyond.winners(_table),
    "beyond-limits": lambda: figure_beyond.limits(_table),
    **figure_strategies.TABLES,
}  # fmt: skip


# -- pages --------------------------------------------------------------------------------------------------


def pages() -> list[Path]:
    """README and the pages of docs/ (experiments are dated and stay as they were written)."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def updated(text: str) -> tuple[str, list[str]]:
    """A page with the figures of today, and what it said otherwise (or marked with an unknown name)."""
    known, wrong = figures(), list[str]()

    def marks(match: re.Match[str]) -> str:
        paragraph, at, listed = match["text"], 0, []
        for entry in match["list"].split(";"):
            said, _, name = (part.strip() for part in entry.partition("="))
            value = known.get(name)
            found = re.compile(rf"(?<![\d.,]){re.escape(said)}(?![\d%])").search(paragraph, at)
            if value is None:
                wrong.append(f"there is no figure {name!r}")
            elif found is None:
                wrong.append(
                    f"{said!r} ({name}) does not stand in its paragraph, after the figures before it"
                )
            elif said != value:
                wrong.append(f"{name} is {value}, not {said}")
            if value is not None and found is not None:
                paragraph = paragraph[: found.start()] + value + paragraph[found.end() :]
                at, said = found.start() + len(value), value
            listed.append(f"{said} = {name}")
        return f"{paragraph}{match['open']}{'; '.join(listed)}-->"

    def table(match: re.Match[str]) -> str:
        name = match["name"]
        if name not in TABLES:
            wrong.append(f"there is no table {name!r}")
            return match[0]
        made = TABLES[name]()
        if made != match["text"]:
            wrong.append(f"the table {name} is another")
        return f"<!--table {name}-->\n{made}<!--end-->"

    return _TABLE.sub(table, _MARKS.sub(marks, text)), wrong


def main(arguments: list[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="say where pages and results differ")
    parser.add_argument("--write", action="store_true", help="write the results' figures into the pages")
    options = parser.parse_args(arguments)
    if not (options.check or options.write):
        for name, value in figures().items():
            print(f"{name:40} {value}")
        return 0
    count = 0
    for page in pages():
        text = page.read_text(encoding="utf-8")
        new, wrong = updated(text)
        for line in wrong:
            print(f"{page.relative_to(ROOT)}: {line}")
        count += len(wrong)
        if options.write and new != text:
            page.write_text(new, encoding="utf-8")
    return 1 if count and not options.write else 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "src"))
    sys.exit(main())

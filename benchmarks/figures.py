"""Tables of docs/results.md, and the figures that prose quotes, from the files of benchmarks/results/.

    python benchmarks/figures.py --write    # bring docs/results.md and the quotes up to date
    python benchmarks/figures.py --check    # where a page says otherwise; exit code 1 if any does

`benchmarks/quotes.toml` lists the quotes: a page, a run of words in which ``{}`` stands for a figure, and
for each ``{}`` the place of its value (``file: path.of.keys``) and a Python format specification.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "results.md"
QUOTES = ROOT / "benchmarks" / "quotes.toml"
#: what may stand on a page in a figure's place
_FIGURE = r"([+-]?\d+(?:[.,]\d+)*%?)"

Row = dict[str, Any]


class QuoteError(ValueError):
    """A quote names no value, or does not stand exactly once on its page."""


@lru_cache
def result(name: str) -> Row:
    """A file of benchmarks/results/ by its name without ``.json``."""
    data: Row = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))
    return data


def walk(data: Any, path: str) -> Any:
    """What lies at ``path`` (``summary.bands.<1e8.shapes``, ``rows.0.kernel``); keys may hold dots.

    Raises `KeyError` if there is nothing.
    """
    if not path:
        return data
    parts = path.split(".")
    if isinstance(data, list) and parts[0].isdigit() and int(parts[0]) < len(data):
        return walk(data[int(parts[0])], ".".join(parts[1:]))
    if isinstance(data, dict):
        for count in range(len(parts), 0, -1):
            if (key := ".".join(parts[:count])) in data:
                return walk(data[key], ".".join(parts[count:]))
    raise KeyError(path)


# -- tables -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """A named table, or facts alone, of one result file.

    ``facts``: sentences with ``{summary[...]}`` for values of the file. ``columns``: heads, and what a row
    prints there (a format string over its fields). ``rows``: gives the rows of the file.
    """

    title: str
    file: str
    facts: tuple[str, ...] = ()
    columns: tuple[tuple[str, str], ...] = ()
    rows: Callable[[Row], Iterable[Row]] = lambda data: data["rows"]


def _columns(*pairs: str) -> tuple[tuple[str, str], ...]:
    """Columns of alternating heads and cells."""
    return tuple(zip(pairs[::2], pairs[1::2], strict=True))


def _named(*path: str, extra: Callable[[Row], Row] | None = None) -> Callable[[Row], list[Row]]:
    """Rows of a mapping at ``path``: its values, each with its key as ``name``; ``extra``: one more row."""

    def rows(data: Row) -> list[Row]:
        found = [{**of, "name": name} for name, of in walk(data, ".".join(path)).items()]
        return [*found, extra(data)] if extra else found

    return rows


def _suite(odd: bool) -> Callable[[Row], list[Row]]:
    """The suite's variants of ordinary or odd sizes; one that nothing beat counts as 1."""

    def rows(data: Row) -> list[Row]:
        return [
            {**row, "won": f"**{row['speedup']:.3f}x** [{row['speedup_low']:.3f}, {row['speedup_high']:.3f}]"
             if row["improved"] else "1.00x, nothing beat it"}
            for row in data["rows"] if row["odd"] is odd
        ]  # fmt: skip

    return rows


def _steps(data: Row) -> list[Row]:
    """The spaces beyond reordering, each on its own, of the suite's kernels and of HGEMM kernels."""
    return [{**of, "name": name.replace("hgemm_", "HGEMM kernels, ")} for name, of in data["summary"].items()
            if isinstance(of, dict) and "improved" in of]  # fmt: skip


def _policy(data: Row) -> list[Row]:
    """A method a row, with its mean and interval over seeds by measurements."""
    return [
        {"name": name} | {f"k{k}": f"{of['mean_fraction_of_best']:.3f} [{of['low']:.3f}, {of['high']:.3f}]"
                          for k, of in by.items()}
        for name, by in data["summary"].items()
    ]  # fmt: skip


_SUITE = _columns(
    "kernel", "{kernel}", "shape", "{shape}", "baseline, us", "{baseline_us:.2f}", "ptxas", "{ptxas}",
    "speed-up", "{won}", "null", "{null:.3f} [{null_low:.3f}, {null_high:.3f}]",
    "evaluations", "{evaluations:,}", "wrong", "{failed_after_validation}",
)  # fmt: skip
_CHOOSERS = _columns(
    "chooser", "{name}", "ours", "{ours:,} of {problems:,}", "over torch", "{geomean_over_torch:.3f}x",
    "worst", "{worst_over_torch:.2f}x", "slower, 1 %", "{slower_by_1_percent}",
    "slower, 3 %", "{slower_by_3_percent}", "of the best", "{fraction_of_best:.3f}",
)  # fmt: skip
_GEMM = _columns(
    "FLOP", "{name}", "shapes", "{shapes:,}", "ours", "**{geomean_vs_lt_autotune:.3f}**",
    "won", "{win_rate_vs_lt_autotune:.0%}", "worst", "{worst_vs_lt_autotune:.3f}",
    "`sassafras.matmul`", "{portfolio_geomean_vs_lt_autotune:.3f}",
    "the same over torch.matmul", "{portfolio_geomean_vs_torch:.3f}",
)  # fmt: skip
_ALL = _named("summary", "bands", extra=lambda data: {**data["summary"], "name": "all"})

_FACTS_OF_GEMM = (
    "Ratios are of speed over the fastest cuBLASLt algorithm (AutoTuning); above 1 is faster.",
    "A shape is won where the lower end of the ratio's 95 % interval lies above 1.005.",
)

#: the tables of docs/results.md, in their order
TABLES = (
    Table(
        "Schedules, 60 seconds of annealing a kernel", "schedule-suite",
        ("The geometric mean over {summary[kernels]} variants is {summary[geomean_speedup]:.3f}x.",
         "The best is {summary[best_speedup]:.3f}x.",
         "{summary[evaluations]:,} evaluations ran, those of odd sizes among them.",
         "{summary[wrong_or_crashed_after_validation]} of them were wrong or crashed after validation.",
         "The baseline is the better of two versions of ptxas."),
        _SUITE, _suite(False)),
    Table(
        "Schedules of odd sizes, 15 seconds a kernel", "schedule-suite",
        ("The geometric mean is {summary[geomean_speedup_odd]:.3f}x.",), _SUITE, _suite(True)),
    Table(
        "Beyond reordering", "beyond-reordering",
        ("A kernel is faster where its interval lies above the null's.",
         "{summary[wrong_or_crashed_after_validation]} of {summary[evaluations]:,} evaluations were wrong.",
         "Of rows that newer ones replaced, {summary[replaced][wrong_or_crashed_after_validation]} of "
         "{summary[replaced][evaluations]:,} were."),
        _columns("space", "{name}", "kernels", "{kernels}", "faster", "{improved}",
                 "geometric mean", "{geomean_speedup:.4f}x", "best", "{best_speedup:.3f}x",
                 "worst", "{worst_speedup:.3f}x"), _steps),
    Table(
        "Validator", "validator",
        ("{summary[accepted]} of {summary[kernels]} compiled kernels are accepted.",
         "{summary[false_rejections]} are refused though right, {summary[unsupported]} are unsupported.",
         "{summary[caught]:,} of {summary[planted]:,} planted errors are caught.")),
    Table(
        "Validator against random mutants on a GPU", "validator-mutants",
        ("{summary[mutants_run]:,} mutants ran.",
         "{summary[approved_but_wrong]} of {summary[approved_run]:,} approved ones were wrong.",
         "{summary[refused_and_right]:,} refused ones were right, {summary[refused_and_wrong]:,} wrong.")),
    Table(
        "Kernels of other projects", "third-party",
        ("{summary[accepted]} of {summary[configurations]} configurations are accepted "
         "({summary[accepted_percent]:.1f} %).",
         "{summary[refused]} are refused; {summary[refused_unexplained]} refusals have no explanation yet.",
         "{summary[not_compiled]} did not compile."),
        _columns("repository", "{name}", "accepted", "{accepted}", "refused", "{refused}"),
        lambda data: [
            {"name": name, "accepted": sum(r["accepted"] for r in rows),
             "refused": sum(not r["accepted"] for r in rows)}
            for name in sorted({r["repository"] for r in data["rows"]})
            for rows in [[r for r in data["rows"] if r["repository"] == name]]
        ]),
    Table(
        "Evaluator against cheats", "cheats",
        ("{summary[cheats_caught]} of {summary[cheats]} cheats are caught.",
         "{summary[honest_flagged]} of {summary[honest]} honest candidates are flagged.")),
    Table(
        "Tests on a GPU", "gpu-tests",
        ("{summary[passed]} passed, {summary[failed]} failed, {summary[skipped]} were skipped.",)),
    Table(
        "Measured latencies", "latencies",
        ("{summary[measured]:,} of {summary[pairs]:,} pairs have a measured distance.",
         "{summary[never_failed]:,} never failed, {summary[blind]:,} could not be told apart.",
         "{summary[danger]} mined distances were too short.")),
    Table(
        "Scoreboards", "scoreboards",
        ("{summary[relied_wrong]} of {summary[relied_asked]} pairs the validator relies on went wrong.",)),
    Table(
        "Timing model: rank correlation with the GPU", "timing-model",
        ("The median tau is {summary[median_kendall_tau]:.2f} over {summary[kernels]} kernels.",
         "The ceiling is what a second measurement reaches."),
        _columns("kernel", "{kernel}", "shape", "{shape}", "tau", "{kendall_tau:.2f}",
                 "ceiling", "{ceiling:.2f}",
                 "tau, all pairs", "{tau_all_pairs:.2f}", "error of ratios", "{ratio_mape:.1%}")),
    Table(
        "Timing model: absolute times", "timing-model-fit",
        ("The mean error on families held out is {summary[held_out_mape]:.0%}.",
         "It is {summary[mape_published]:.0%} with published constants.")),
    Table(
        "Modelled gains under other start times", "redraws",
        ("{summary[inside]} of {summary[kernels]} modelled intervals hold what other draws give.",
         "{summary[measured_faster]} of the {summary[measured]} chosen schedules are faster on the GPU: "
         "{summary[geomean_measured]:.3f}x in geometric mean, {summary[geomean_fresh]:.3f}x modelled."),
        _columns("kernel", "{kernel}", "shape", "{shape}", "as selected", "{selected:.4f}", "re-drawn",
                 "{modelled:.4f} [{modelled_low:.4f}, {modelled_high:.4f}]", "other draws", "{fresh:.4f}",
                 "measured", "{measured_speedup:.4f}")),
    Table("HGEMM, calls back to back", "hgemm-offline", _FACTS_OF_GEMM, _GEMM, _ALL),
    Table("HGEMM, calls at a rate", "hgemm-server", _FACTS_OF_GEMM[:1], _GEMM, _ALL),
    Table("HGEMM off the grid", "hgemm-offgrid-fifth", _FACTS_OF_GEMM[:1], _GEMM, _ALL),
    Table("HGEMM of rare extents", "hgemm-offgrid-rare", _FACTS_OF_GEMM[:1], _GEMM, _ALL),
    Table(
        "HGEMM on random shapes against FP64", "hgemm-random",
        ("{summary[wrong]} of {summary[checks]:,} checks were wrong.",)),
    Table(
        "Layers in one kernel", "matmul-epilogue",
        ("`sassafras.matmul` is {summary[sassafras_geomean_vs_torch]:.3f}x torch in geometric mean over "
         "{summary[rows]} layers, {summary[sassafras_worst_vs_torch]:.2f}x at worst.",)),
    Table(
        "Time of a call on the CPU", "matmul-overhead",
        ("Choosing a kernel takes {summary[choosing_us]:.0f} us.",),
        _columns("case", "{case}", "torch, us", "{torch_us:.2f}", "sassafras, us", "{sassafras_us:.2f}"),
        lambda data: [row for row in data["rows"] if "torch_us" in row]),
    Table("Choosers on the grid", "choosers", (), _CHOOSERS, _named("summary", "grid")),
    Table("Choosers off the grid", "choosers", (), _CHOOSERS, _named("summary", "off_grid")),
    Table(
        "Learned policy", "llm-policy", ("Cells are shares of the best known speed after k measurements.",),
        _columns("method", "{name}", "k = 1", "{k1}", "k = 4", "{k4}", "k = 16", "{k16}"), _policy),
)  # fmt: skip


def environment(data: Row) -> str:
    """GPU, driver and date of a result, as the page prints them."""
    of = data["environment"]
    date = of.get("date") or data.get("date")
    words = [
        of.get("gpu") or "no GPU named",
        f"driver {of['driver']}" if of.get("driver") else "",
        date or "",
    ]
    return ", ".join(word for word in words if word)


def section(table: Table) -> str:
    """A table of the page: title, file and environment, facts, rows."""
    data = result(table.file)
    lines = [f"## {table.title}", "", f"`benchmarks/results/{table.file}.json`: {environment(data)}.", ""]
    lines += [" ".join(fact.format_map(data) for fact in table.facts), ""] if table.facts else []
    if table.columns:
        lines += [
            "| " + " | ".join(head for head, _ in table.columns) + " |",
            "|---" * len(table.columns) + "|",
        ]
        for row in table.rows(data):
            lines.append("| " + " | ".join(cell.format_map(row) for _, cell in table.columns) + " |")
        lines.append("")
    return "\n".join(lines)


def page() -> str:
    """docs/results.md."""
    head = "# Results\n\nGenerated by `python benchmarks/figures.py --write`.\n\n"
    return head + "\n".join(section(table) for table in TABLES)


# -- quotes -------------------------------------------------------------------------------------------------


def quoted(text: str, quote: Row) -> str:
    """The page's text with the quote's figures of today; `QuoteError` if it does not stand there once."""
    words, where = quote["text"], quote["values"]
    formats = quote.get("format", [""] * len(where))
    if not words.count("{}") == len(where) == len(formats):
        raise QuoteError(f"{words!r} has {words.count('{}')} places, {len(where)} values")
    pattern = _FIGURE.join(r"\s+".join(map(re.escape, re.split(r"\s+", part))) for part in words.split("{}"))
    found = list(re.finditer(rf"(?<![\d.,]){pattern}(?!\d)", text))
    if len(found) != 1:
        raise QuoteError(f"{words!r} stands {len(found)} times on the page")
    for group in range(len(where), 0, -1):
        name, _, path = where[group - 1].partition(": ")
        try:
            value = format(walk(result(name), path), formats[group - 1])
        except (KeyError, OSError, ValueError) as error:
            raise QuoteError(f"there is no value {where[group - 1]!r}") from error
        begin, end = found[0].span(group)
        text = text[:begin] + value + text[end:]
    return text


def updated(root: Path = ROOT) -> tuple[dict[Path, str], list[str]]:
    """Pages as they should be, by path, and what is wrong with the quotes."""
    pages, wrong = {PAGE: page()}, []
    for quote in tomllib.loads(QUOTES.read_text("utf-8")).get("quote", []):
        path = root / quote["page"]
        try:
            pages[path] = quoted(pages[path] if path in pages else path.read_text("utf-8"), quote)
        except (QuoteError, OSError) as error:
            wrong.append(f"{quote['page']}: {error}")
    return pages, wrong


def main(arguments: list[str] | None = None) -> int:
    """See the module; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="say where pages and results differ (the default)"
    )
    parser.add_argument("--write", action="store_true", help="write the results' figures into the pages")
    options = parser.parse_args(arguments)
    try:
        pages, wrong = updated()
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"a result file or {QUOTES.name} is missing or damaged: {error!r}; nothing was written")
        return 1
    stale = [path for path, text in pages.items() if not path.is_file() or path.read_text("utf-8") != text]
    if options.write:
        for path in stale:
            path.write_text(pages[path], encoding="utf-8")
    else:
        wrong += [f"{path.relative_to(ROOT)} differs from the results" for path in stale]
    print(*wrong, sep="\n", end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

"""Tables of docs/results.md and docs/seeds.md, and the figures that prose quotes, from benchmarks/results/.

    python benchmarks/figures.py --write    # bring these pages and the quotes up to date
    python benchmarks/figures.py --check    # where a page says otherwise; exit code 1 if any does

`benchmarks/tables.toml` lists the tables; those whose result file is missing are left out.
`benchmarks/seeds.md` is docs/seeds.md with a format field for each figure, ``{file[path][of][keys]}``;
``{file[where]}`` is GPU and date, ``[rows][key=value/key=value]`` the row that has these.
`benchmarks/quotes.toml` has by page the words in which such fields stand.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import tomllib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "results.md"
SEEDS = ROOT / "docs" / "seeds.md"
SEEDS_SOURCE = ROOT / "benchmarks" / "seeds.md"
TABLES = ROOT / "benchmarks" / "tables.toml"
QUOTES = ROOT / "benchmarks" / "quotes.toml"
#: what may stand on a page in a figure's place
_FIGURE = r"([+-]?\d+(?:[.,]\d+)*%?)"
#: what stands in its place in a quote
_FIELD = re.compile(r"\{[^{}]+\}")

Row = dict[str, Any]


class Rows(list[Row]):
    """Rows of a result by what they hold: a place would name another row of the next result."""

    def __getitem__(self, which: Any) -> Any:
        """The row of ``key=value/key=value``; `LookupError` unless there is one."""
        wanted = set(str(which).split("/"))
        found = [row for row in self if wanted <= {f"{key}={value}" for key, value in row.items()}]
        if len(found) != 1:
            raise LookupError(f"{len(found)} rows have {which}")
        return found[0]


class QuoteError(ValueError):
    """A quote names no value, or does not stand exactly once on its page."""


@lru_cache
def result(name: str) -> Row:
    """A file of benchmarks/results/ by its name without ``.json``."""
    data: Row = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))
    return {**data, "rows": Rows(data["rows"])} if "rows" in data else data


# -- tables -------------------------------------------------------------------------------------------------


def named(rows: dict[str, Row]) -> list[Row]:
    """Rows of a mapping: its values, each with its key as ``name``."""
    return [{**of, "name": name} for name, of in rows.items()]


def suite(data: Row) -> list[Row]:
    """The suite's variants of ordinary sizes; one that nothing beat counts as 1."""
    won = "**{speedup:.3f}x** [{speedup_low:.3f}, {speedup_high:.3f}]"
    return [
        {**row, "won": won.format_map(row) if row["improved"] else "1.00x"}
        for row in data["rows"]
        if not row["odd"]
    ]


def spaces(data: Row) -> list[Row]:
    """The spaces beyond reordering, each on its own, of the suite's kernels and of HGEMM kernels."""
    found = {name: of for name, of in data["summary"].items() if isinstance(of, dict) and "improved" in of}
    words = {"knobs": "ptxas options", "identity": "ptxas's order, new control codes"}
    rows = []
    for name, of in found.items():
        stage = name.removeprefix("hgemm_")
        kernels = "HGEMM kernels, " if stage != name else ""
        rows.append({**of, "name": kernels + words.get(stage, stage)})
    return rows


def candidates(data: Row) -> list[Row]:
    """Approved candidates that ran, by space."""
    summary = data["summary"].items()
    return named({name: of for name, of in summary if isinstance(of, dict) and "candidates" in of})


def strategies(data: Row) -> list[Row]:
    """Strategies, best mean first."""
    found = named(data["summary"]["strategies"])
    for row in found:
        row["needed"] = (
            f"{row['evaluations_to_90_percent']:,.0f}"
            if row["evaluations_to_90_percent"]
            else f"never in {row['never_reached_90_percent']} of {row['could_reach']}"
        )
    return sorted(found, key=lambda row: -row["iqm_final"])


def selectors(data: Row) -> list[Row]:
    """The rule, the trees without a margin and as shipped, on and off the grid, and of layers in programs."""
    names = ("neighbours", "trees of calls back to back", "trees, margin 1.0", "trees as shipped")
    kinds = {"on the grid": "grid", "off the grid": "off_grid", "layers in programs": "program"}
    summary = data["summary"]
    return [
        {**summary[kind][name], "shapes": shapes, "name": name}
        for shapes, kind in kinds.items()
        for name in names
        if name in summary.get(kind, {})
    ]


def forwards(data: Row) -> list[Row]:
    """A row a number of tokens: each model's speed over torch.compile in FP16 and BF16; - is missing."""
    found: dict[int, dict[str, dict[str, str]]] = {}
    for row in data["rows"]:
        if row["contestant"] == "sassafras_compile" and not row["vocabulary"]:
            of = found.setdefault(row["tokens"], {}).setdefault(re.sub(r"\W", "_", row["model"]), {})
            of[row["dtype"]] = f"{row['over_compile']:.3f}" if "over_compile" in row else "wrong"
    rows: list[Row] = [{"tokens": tokens} for tokens in sorted(found)]
    for row, model in ((row, model) for row in rows for of in found.values() for model in of):
        cell = found[row["tokens"]].get(model, {})
        row[model] = ", ".join(cell.get(dtype, "-") for dtype in ("fp16", "bf16")) if cell else "not measured"
    return rows


def generated(data: Row) -> list[Row]:
    """A row a program: the mean of its processes, the lowest and the highest end of their intervals."""
    found: dict[tuple[str, int], list[Row]] = {}
    for row in data["rows"]:
        found.setdefault((row["model"], row["batch"]), []).append(row)
    return [
        {
            "model": model,
            "batch": batch,
            "over": math.prod(row["over_compile"] for row in of) ** (1 / len(of)),
            "low": min(row["over_compile_low"] for row in of),
            "high": max(row["over_compile_high"] for row in of),
            "tokens": min(row["tokens_per_s"] for row in of),
        }
        for (model, batch), of in found.items()
    ]


#: how a table's rows are made of its result file
ROWS: dict[str, Callable[[Row], list[Row]]] = {
    "rows": lambda data: data["rows"],
    "below half": lambda data: [r for r in data["rows"] if r.get("share", r.get("kendall_tau", 1)) < 0.5],
    "suite": suite,
    "spaces": spaces,
    "spaces of candidates": candidates,
    "strategies": strategies,
    "evaluators": lambda data: named(data["summary"]["evaluators"]),
    "bands": lambda data: named({**data["summary"]["bands"], "all": data["summary"]}),
    "forwards": forwards,
    "generated": generated,
    "selectors": selectors,
    "summary.classes": lambda data: data["summary"]["classes"],
}


def environment(data: Row) -> str:
    """GPU and date of a result, as the pages print them."""
    of = data["environment"]
    gpu = re.sub("NVIDIA | 80GB HBM3", "", of.get("gpu") or "no GPU")
    return f"{gpu}, {of.get('date') or data['date']}"


def stated(fact: str, data: Row) -> str:
    """A sentence with its figures; none where one was not measured (None)."""
    try:
        return fact.format_map(data)
    except TypeError:
        return ""


def section(table: Row, shared: Row) -> str:
    """A table of the page: title, file and environment, facts, rows. `shared`: columns by name."""
    data = result(table["file"])
    source = f"`benchmarks/results/{table['file']}.json`: {environment(data)}."
    lines = [f"## {table['title']}", "", source, ""]
    if facts := table.get("facts"):
        lines += [" ".join(filter(None, (stated(fact, data) for fact in facts))), ""]
    columns = table.get("columns", [])
    if columns := shared[columns] if isinstance(columns, str) else columns:
        lines += ["| " + " | ".join(head for head, _ in columns) + " |", "|---" * len(columns) + "|"]
        for row in ROWS[table.get("rows", "rows")](data):
            lines.append("| " + " | ".join(cell.format_map(row) for _, cell in columns) + " |")
        lines.append("")
    return "\n".join(lines)


def page() -> str:
    """docs/results.md."""
    tables = tomllib.loads(TABLES.read_text("utf-8"))
    head = (
        "# Results\n\nGenerated by `python benchmarks/figures.py --write`. A ratio above 1 is faster.\n"
        "Brackets are 95 % intervals. *Null* is the A/A control: the baseline against itself.\n"
        "Each file names its command and environment.\n\n"
    )
    there = [table for table in tables["table"] if (RESULTS / f"{table['file']}.json").is_file()]
    return head + "\n".join(section(table, tables["columns"]) for table in there)


class _Files(dict[str, Row]):
    """Result files by name, each with ``where``."""

    def __missing__(self, name: str) -> Row:
        return {**result(name), "where": environment(result(name))}


def filled(cell: str) -> str:
    """A cell of `SEEDS_SOURCE` with its figures; it says so where a result file is not there."""
    try:
        return cell.format_map(_Files())
    except FileNotFoundError:
        return " not measured yet "


def seeds() -> str:
    """docs/seeds.md."""
    return "|".join(map(filled, SEEDS_SOURCE.read_text("utf-8").split("|")))


# -- quotes -------------------------------------------------------------------------------------------------


def quoted(text: str, quote: str) -> str:
    """The page's text with the quote's figures of today; `QuoteError` if it does not stand there once."""
    fields = _FIELD.findall(quote)
    words = (r"\s+".join(map(re.escape, re.split(r"\s+", part))) for part in _FIELD.split(quote))
    found = list(re.finditer(rf"(?<![\d.,]){_FIGURE.join(words)}(?!\d)", text))
    if len(found) != 1:
        raise QuoteError(f"{quote!r} stands {len(found)} times on the page")
    for group, field in reversed(list(enumerate(fields, 1))):
        try:
            value = field.format_map(_Files())
        except (LookupError, OSError, ValueError) as error:
            raise QuoteError(f"there is no value {field!r}") from error
        begin, end = found[0].span(group)
        text = text[:begin] + value + text[end:]
    return text


def updated(root: Path = ROOT) -> tuple[dict[Path, str], list[str]]:
    """Pages as they should be, by path, and what is wrong with the quotes."""
    pages, wrong = {PAGE: page(), SEEDS: seeds()}, []
    for page_name, quotes in tomllib.loads(QUOTES.read_text("utf-8")).items():
        path = root / page_name
        for quote in quotes:
            try:
                pages[path] = quoted(pages[path] if path in pages else path.read_text("utf-8"), quote)
            except (QuoteError, OSError) as error:
                wrong.append(f"{page_name}: {error}")
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

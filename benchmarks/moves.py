"""What searches found, move by move: writes moves.json, docs/concepts/search-space.md and its figure.

    python benchmarks/moves.py --folder runs                         # winners of strategies.py, on a GPU
    python benchmarks/moves.py --folder runs --device model          # on the timing model, labelled so
    python benchmarks/moves.py --folder runs --kernels softmax/512x2048,layernorm/2048x1024   # some of them
    python benchmarks/moves.py --merge A/moves.json B/moves.json --out benchmarks/results
    python benchmarks/moves.py --page benchmarks/results/moves.json  # docs/concepts/search-space.md from it

For each kernel in the folder the winner with the best figure (by strategy, with --each) is explained: reduced
to the moves that keep 95 % of the gain, and each of those undone alone and measured again
(`sassafras.explain`). Patterns are classes of moves that more than one kernel shares.
"""

from __future__ import annotations

import argparse
import base64
import dataclasses
import html
import traceback
import zlib
from pathlib import Path
from typing import Any

from common import ROOT, read_result, write
from strategies_units import DEFAULT, read

Row = dict[str, Any]
PAGE = ROOT / "docs" / "moves.md"
FIGURE = ROOT / "docs" / "figures" / "moves.svg"
#: moves of a kernel that the page lists
MOST = 6


def winners(folder: Path, each: bool) -> list[Row]:
    """The best unit of each kernel (and strategy), if it gained anything."""
    best: dict[tuple[str, ...], Row] = {}
    for row in read(folder):
        if not row.get("winner") or row["final_speedup"] <= 1.0 or row["strategy"] not in DEFAULT:
            continue
        key = (row["kernel"], row["strategy"]) if each else (row["kernel"],)
        if key not in best or row["final_speedup"] > best[key]["final_speedup"]:
            best[key] = row
    return sorted(best.values(), key=lambda row: -row["final_speedup"])


def explained(row: Row, device: str, limit: int, remeasure: int = 0) -> Row:
    """One winner's explanation, as JSON."""
    from sassafras import explain
    from sassafras.targets import load
    from sassafras.training import environment

    name, _, case = row["kernel"].partition("/")
    workload = load(f"suite:{name}")
    chosen = workload.case(case or None)
    if row.get("lonely"):
        chosen = environment.lonely(chosen)
        # another case than the file's; a GPU's worker would load the file again
        workload = dataclasses.replace(workload, cases=(chosen,), source=None)
    cubin = zlib.decompress(base64.b64decode(row["winner"]))
    found = explain(
        workload, tuned=cubin, case=chosen.name, device=device, limit=limit, remeasure=remeasure
    ).to_json()
    return {
        "kernel": row["kernel"], "shape": chosen.name, "strategy": row["strategy"], "seed": row["seed"],
        "search_speedup": row["final_speedup"], "lonely": row.get("lonely", False), "explanation": found,
    }  # fmt: skip


def patterns(rows: list[Row]) -> list[Row]:
    """Classes of moves over all kernels: how often, in how many kernels, and what they gained alone."""
    by: dict[str, list[tuple[str, float]]] = {}
    for row in rows:
        for move in row["explanation"]["moves"]:
            by.setdefault(move["kind"], []).append((row["kernel"], move["gain"]))
    table = [
        {
            "kind": kind, "moves": len(found), "kernels": len({k for k, _ in found}),
            "largest_gain": max(g for _, g in found), "mean_gain": sum(g for _, g in found) / len(found),
        }
        for kind, found in by.items()
    ]  # fmt: skip
    return sorted(table, key=lambda r: (-r["kernels"], -r["mean_gain"]))


def figure(table: list[Row], modelled: bool) -> str:
    """Bars: mean gain of a class of moves, as SVG."""
    shown = table[:14]
    widest = max((max(r["mean_gain"] - 1, 0.0) for r in shown), default=0.0) or 1e-9
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="640" height="{30 + 22 * len(shown)}" '
        'font-family="sans-serif" font-size="12">',
        f'<text x="8" y="16">mean gain of a move, {"modelled" if modelled else "measured"}</text>',
    ]
    for n, r in enumerate(shown):
        y, gain = 30 + 22 * n, max(r["mean_gain"] - 1, 0.0)
        width = 300 * gain / widest
        label = html.escape(f"{r['kind']} ({r['moves']} in {r['kernels']})")
        lines.append(f'<text x="238" y="{y + 13}" text-anchor="end">{label}</text>')
        lines.append(f'<rect x="244" y="{y + 2}" width="{width:.1f}" height="14" fill="#c2410c"/>')
        lines.append(f'<text x="{250 + width:.1f}" y="{y + 13}">{100 * gain:.2f} %</text>')
    return "\n".join([*lines, "</svg>", ""])


def page(found: Row) -> str:
    """docs/concepts/search-space.md."""
    rows, summary = found["rows"], found["summary"]
    modelled = summary["modelled"]
    what = "modelled" if modelled else "measured"
    device = rows[0]["explanation"]["device"] if rows else ""
    lines = [
        "# What the searches found, move by move",
        "",
        f"Written by `benchmarks/moves.py` from `{summary['file']}` ({found['date']}); every figure is "
        f"{what} on {device}. See [explain.md](explain.md) for how a schedule is taken apart.",
        "",
    ]
    if modelled:
        lines += [
            "**Modelled: none of this has been run on a GPU.** The timing model's favourite moves need not "
            "be the hardware's.",
            "",
        ]
    lines += [
        "## Patterns", "", "![mean gain by class of move](figures/moves.svg)", "",
        "| class | kernels | moves | mean gain | largest |", "|---|---|---|---|---|",
    ]  # fmt: skip
    for r in summary["patterns"]:
        lines.append(
            f"| {r['kind']} | {r['kernels']} | {r['moves']} | {100 * (r['mean_gain'] - 1):+.2f} % "
            f"| {100 * (r['largest_gain'] - 1):+.2f} % |"
        )
    lines += ["", "## Kernel by kernel", ""]
    for row in rows:
        e = row["explanation"]
        lines += [f"### {row['kernel']} ({row['strategy']}, seed {row['seed']})", "", e["summary"] + ".", ""]
        for n, move in enumerate(e["moves"][:MOST], 1):
            lines.append(f"{n}. {100 * (move['gain'] - 1):+.2f} % [{move['kind']}] {move['words']}")
        if len(e["moves"]) > MOST:
            lines.append(f"\nand {len(e['moves']) - MOST} smaller ones.")
        lines.append("")
    return "\n".join(lines)


def merge(files: list[Path], out: str | None) -> Path:
    """One moves.json of several, their kernels in the order of what their winners gained.

    Raises:
        SystemExit: a winner is in two of them, or some were measured and some modelled.
    """
    found = [read_result(file, "summary", of="moves") for file in files]
    rows = sorted((r for f in found for r in f["rows"]), key=lambda r: -r["search_speedup"])
    names = [(r["kernel"], r["strategy"], r["seed"]) for r in rows]
    if twice := sorted({"/".join(map(str, n)) for n in names if names.count(n) > 1}):
        raise SystemExit(f"in two of the files: {', '.join(twice)}")
    if len({f["summary"]["modelled"] for f in found}) > 1:
        raise SystemExit("some of the files are measured, some modelled: they cannot be one result")
    summary = found[0]["summary"] | {
        "patterns": patterns(rows), "failed": [r for f in found for r in f["summary"]["failed"]],
    }  # fmt: skip
    name = Path(summary["file"]).stem
    commands = "; ".join(dict.fromkeys(f["command"] for f in found))
    commits = "; ".join(dict.fromkeys(f["commit"] for f in found if f["commit"])) or None
    return write(name, rows, summary, found[0]["environment"], out=out, commits=commits, command=commands)


def main() -> None:
    """Command line."""
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--folder", type=Path, help="units of strategies.py")
    parse.add_argument("--device", choices=("cuda", "model"), default="cuda")
    parse.add_argument("--each", action="store_true", help="the winner of every strategy, not of the kernel")
    parse.add_argument("--kernels", default="", help="only the winners of these [default: of all]")
    parse.add_argument("--merge", type=Path, nargs="+", help="several moves.json of different kernels: one")
    parse.add_argument("--limit", type=int, default=400, help="schedules judged for each winner")
    parse.add_argument(
        "--remeasure", type=int, default=1, help="largest moves of each winner to measure in fresh processes"
    )
    parse.add_argument("--page", type=Path, help="a moves.json to write docs/concepts/search-space.md from")
    parse.add_argument("--docs", type=Path, default=PAGE.parent, help="folder of the page")
    parse.add_argument("--out")
    given = parse.parse_args()
    if given.page:
        found = read_result(given.page, "summary", of="moves")
        (given.docs / "figures").mkdir(parents=True, exist_ok=True)
        (given.docs / PAGE.name).write_text(page(found))
        summary = found["summary"]
        (given.docs / "figures" / FIGURE.name).write_text(figure(summary["patterns"], summary["modelled"]))
        print(f"{given.docs / PAGE.name}")
        return
    if given.merge:
        print(merge(given.merge, given.out))
        return
    if given.folder is None:
        raise SystemExit("--folder, --merge or --page is needed")
    rows, failed = list[Row](), list[Row]()
    wanted = set(filter(None, given.kernels.split(",")))
    units = [u for u in winners(given.folder, given.each) if not wanted or u["kernel"] in wanted]
    if not units:
        of = f" of {given.kernels}" if wanted else ""
        raise SystemExit(f"no unit{of} in {given.folder} gained anything")
    name = "moves-modelled" if given.device == "model" else "moves"
    for unit in units:
        try:
            rows.append(explained(unit, given.device, given.limit, given.remeasure))
        except Exception as error:  # the others are worth having
            traceback.print_exception(error)
            failed.append({"kernel": unit["kernel"], "error": f"{type(error).__name__}: {error}"})
            continue
        print(rows[-1]["explanation"]["summary"], flush=True)
        # written anew after each kernel: a run that is cut short loses one at most
        summary = {
            "modelled": given.device == "model", "file": f"benchmarks/results/{name}.json",
            "patterns": patterns(rows), "failed": failed,
        }  # fmt: skip
        path = write(name, rows, summary, unit.get("environment", {}), out=given.out)
    if not rows:
        raise SystemExit("no winner could be explained")
    print(path)


if __name__ == "__main__":
    main()

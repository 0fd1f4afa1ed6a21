"""Why our products differ from cuBLASLt's: ncu's metrics of both on some shapes; writes hgemm-profiles.json.

    python benchmarks/hgemm_profiles.py [--shapes 20] [--limit-s 540]          # one GPU, ncu and its counters
    python benchmarks/hgemm_profiles.py --resume hgemm-profiles.rows.jsonl     # goes on with missing shapes

Shapes are drawn from the 1,000 by the seed, of each band its share. Ours is the fastest configuration of the
shipped table, of both layouts; cuBLASLt's is its best algorithm by AutoTuning, of both layouts, chosen now.
Both are timed back to back (`gemm.bench.judge`), ours also without overlapping launches (``plain``). Then ncu
looks at single warm calls (hgemm_launches.py), which never overlap; its times have a fixed part of about a
microsecond. Of three calls the one of median time counts; its kernels' bytes and times are added up,
percentages averaged by time. ncu leaves clocks and caches alone.

The sentence of a row follows a rule. A contestant is bound by the busiest of tensor cores, DRAM and L2 if
that is at `BOUND` % of its peak or more; else by idle multiprocessors if they are busy less than that; else
by latency, and the largest stall is named. Ours gains by launch overlap where it takes `OVERLAP` times as
long without it, or more. Where plain launches differ by `PLAIN` or more, the faster one's reasons are those
of `REASONS` that hold by `APART` or more; there may be none.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from common import ROOT, Lines, command_line, ends, geomean, write
from hgemm_launches import CONTESTANTS, MARKER

from sassafras.core import DeviceError
from sassafras.core.statistics import bootstrap_median
from sassafras.cuda.environment import environment
from sassafras.evaluate.gpu.profile import launches
from sassafras.evaluate.gpu.sanitizer import program
from sassafras.gemm.bench.options import Options
from sassafras.gemm.bench.worker_client import WorkerClient
from sassafras.gemm.build.cubins import build
from sassafras.gemm.configs.fields import to_fields
from sassafras.gemm.configs.registry import Config
from sassafras.gemm.problem.shape import LAYOUTS, Shape, cuda_l2_grid, stratified
from sassafras.gemm.select.source_workload import plain
from sassafras.gemm.select.table import TunedTable, shipped_path

Row = dict[str, Any]
NAME = "hgemm-profiles"
#: percent of a peak; ratios (see the module)
BOUND, OVERLAP, PLAIN, APART = 60.0, 1.05, 1.02, 1.1
#: profiled calls of a contestant; seconds of ncu for one shape at most
_CALLS, _NCU_S = 3, 20.0
_PIPES = {"tensor_percent": "tensor cores", "dram_percent": "DRAM", "l2_percent": "L2"}
_SUMMED = {"dram_bytes": ("dram_read_bytes", "dram_write_bytes"), "l2_bytes": ("l2_bytes",)}
_WEIGHTED = (*_PIPES, "sms_busy_percent", "l2_hit_percent", "occupancy_percent")
#: of the longest kernel of a call
_OF_LONGEST = ("waves", "registers", "shared_bytes", "stalls")
#: reason -> metric, and whether the faster contestant has more of it
REASONS = {
    "fewer kernels and memsets": ("nodes", False),
    "fewer DRAM bytes": ("dram_bytes", False),
    "less L2 traffic": ("l2_bytes", False),
    "busier multiprocessors": ("sms_busy_percent", True),
    "fewer waves": ("whole_waves", False),
}
LAUNCHES = "launch overlap"


def shipped(shape: Shape, table: TunedTable) -> Config:
    """The fastest configuration of the table."""
    rows = [row for layout in LAYOUTS if (row := table.get(shape, layout)) is not None]
    return min((pair for row in rows for pair in row.ours), key=lambda pair: pair[1])[0]


def timed(client: WorkerClient, shape: Shape, config: Config) -> Row:
    """Back to back, with launches that overlap and without: times, and cuBLASLt's relative to ours.

    Raises:
        DeviceError: a configuration is wrong or cannot run, or the process was lost.
    """
    row: Row = {}
    for name, mode in (("back_to_back", config), ("plain", plain(config, shape))):
        if name == "plain" and mode == config:
            return row | {"plain": row["back_to_back"], "plain_us": row["us"], "overlap": 1.0}
        found = client.ask({"shape": str(shape), "config": to_fields(mode)})
        if why := found.get("error") or found["detail"]:
            raise DeviceError(why, where=str(shape))
        row |= ends(name, bootstrap_median(found["ratios"]))
        row[name] = statistics.median(found["ratios"])
        row["plain_us" if name == "plain" else "us"] = found["us"]
        row |= {"lt_us": found["baseline_us"], "algorithm": found["baseline"]}
    return row | {"overlap": row["back_to_back"] / row["plain"]}


def calls_of(rows: Sequence[Row]) -> list[list[Row]]:
    """ncu's rows cut at the markers: the kernels of each call."""
    calls: list[list[Row]] = []
    for row in rows:
        if MARKER in row["kernel"]:
            calls.append([])
        elif calls:
            calls[-1].append(row)
    return calls


def whole(kernels: Sequence[Row]) -> Row:
    """Metrics of a call of one or several kernels; what a kernel lacks is left out."""
    times = [kernel["duration_ns"] for kernel in kernels]
    longest = kernels[times.index(max(times))]
    found: Row = {"duration_ns": sum(times), "kernel_count": len(kernels)}
    found["kernels"] = [kernel["kernel"][:160] for kernel in kernels]
    for name, parts in _SUMMED.items():
        if all(part in kernel for kernel in kernels for part in parts):
            found[name] = sum(kernel[part] for kernel in kernels for part in parts)
    for name in _WEIGHTED:
        if all(name in kernel for kernel in kernels):
            products = [kernel[name] * t for kernel, t in zip(kernels, times, strict=True)]
            found[name] = sum(products) / sum(times)
    found |= {name: longest[name] for name in _OF_LONGEST if name in longest}
    if "waves" in found:
        found["whole_waves"] = math.ceil(found["waves"])
    return found


def median_call(calls: Sequence[Sequence[Row]]) -> Row:
    """The call of median time. Raises DeviceError: ncu saw no kernel of one."""
    if not calls or not all(calls):
        raise DeviceError("ncu saw no kernel of a call")
    ordered = sorted(map(whole, calls), key=lambda call: call["duration_ns"])
    return ordered[len(ordered) // 2]


def bound(call: Row) -> tuple[str, str]:
    """What a call is bound by, and the same with its figure."""
    busy = {words: call[name] for name, words in _PIPES.items() if name in call}
    most = max(busy, key=busy.__getitem__, default="")
    if most and busy[most] >= BOUND:
        return most, f"{most} ({busy[most]:.0f} %)"
    sms = call.get("sms_busy_percent")
    if sms is not None and sms < BOUND:
        return "idle multiprocessors", f"idle multiprocessors ({sms:.0f} % busy)"
    stall = next(iter(call.get("stalls", {})), "unknown")
    return "latency", f"latency (stalls: {stall})"


def reasons(fast: Row, slow: Row) -> list[str]:
    """Those of `REASONS` that hold."""
    found = []
    for reason, (name, more) in REASONS.items():
        mine, theirs = fast.get(name), slow.get(name)
        if mine and theirs and (mine / theirs if more else theirs / mine) >= APART:
            found.append(reason)
    return found


def explained(ours: Row, lt: Row, row: Row) -> Row:
    """The derived columns of a row, by the module's rule."""
    alone = lt["duration_ns"] / ours["duration_ns"]
    because = [LAUNCHES] if row["overlap"] >= OVERLAP else []
    ours_bound, lt_bound = bound(ours), bound(lt)
    words = f"Back to back {row['back_to_back']:.2f}x, without overlapping launches {row['plain']:.2f}x, "
    words += f"kernels by ncu {alone:.2f}x; ours is bound by {ours_bound[1]}, cuBLASLt by {lt_bound[1]}."
    faster = "ours" if row["plain"] >= PLAIN else "lt" if row["plain"] <= 1 / PLAIN else ""
    if faster:
        listed = reasons(*((ours, lt) if faster == "ours" else (lt, ours)))
        who = "ours" if faster == "ours" else "cuBLASLt"
        words += f" Launched plainly, {who} gains by {', '.join(listed) or 'nothing that is measured here'}."
        because += listed if faster == "ours" else []
    else:
        words += " Launched plainly, both take the same time."
    found = {"alone": alone, "faster_plain": faster, "bound": ours_bound[0], "lt_bound": lt_bound[0]}
    return {**found, "because": because, "why": words}


def profiled(rows: Sequence[Row], options: argparse.Namespace) -> list[Row]:
    """Rows with metrics of both contestants and what follows from them.

    Raises:
        DeviceError: ncu has no profile.
    """
    made: list[Row] = []
    each = _CALLS * len(CONTESTANTS)
    while left := rows[len(made) :]:  # a process ends with the first product that fails
        calls, nodes, why = looked_at(left, options)
        for index, row in enumerate(left[: len(calls) // each]):
            mine = calls[each * index : each * (index + 1)]
            try:
                ours, lt = median_call(mine[:_CALLS]), median_call(mine[_CALLS:])
                ours["nodes"], lt["nodes"] = nodes[2 * index : 2 * index + 2]
                more = {"ours": ours, "lt": lt, **explained(ours, lt, row)}
            except DeviceError as error:
                more = {"error": f"{error} {why}"}
            made.append({**row, **more})
        if len(made) < len(rows):
            made.append({**rows[len(made)], "error": why or "ncu did not see all of its calls"})
    return made


def looked_at(rows: Sequence[Row], options: argparse.Namespace) -> tuple[list[list[Row]], list[int], str]:
    """The calls that ncu saw in one process, nodes of each contestant's call, why it failed or ``""``."""
    products = [{key: row[key] for key in ("shape", "config", "algorithm")} for row in rows]
    plan = {"products": products, "seed": options.seed, "calls": _CALLS, "dry": options.dry_run}
    with tempfile.TemporaryDirectory(prefix="sassafras-profiles-") as folder:
        path = Path(folder, "plan.json")
        path.write_text(json.dumps({**plan, "cache": str(options.cache) if options.cache else None}))
        target = [str(ROOT / "benchmarks" / "hgemm_launches.py"), str(path)]
        failed, seen, wrong = path.with_suffix(".error"), list[Row](), None
        try:
            seen = launches(target, "--profile-from-start", "off", seconds=_NCU_S * (2 + len(rows)))
        except DeviceError as error:
            wrong = error
        why = failed.read_text() if failed.exists() else ""
        if wrong is not None and not why:
            raise wrong
        counted = path.with_suffix(".nodes")
        nodes = json.loads(counted.read_text()) if counted.exists() else []
    return calls_of(seen)[: _CALLS * len(nodes)], nodes, why


def summed(rows: Sequence[Row]) -> Row:
    """The summary."""
    good = [row for row in rows if "error" not in row]
    because = Counter(reason for row in good for reason in row["because"])
    return {
        "shapes": len(rows),
        "profiled": len(good),
        **{
            f"geomean_{name}": geomean(row[name] for row in good)
            for name in ("back_to_back", "plain", "alone")
        },
        "faster_plain": sum(row["faster_plain"] == "ours" for row in good),
        "because": {reason: because[reason] for reason in (LAUNCHES, *REASONS)},
        "unexplained": sum(
            row["faster_plain"] == "ours" and not set(row["because"]) & set(REASONS) for row in good
        ),
        "bound": dict(Counter(row["bound"] for row in good)),
        "lt_bound": dict(Counter(row["lt_bound"] for row in good)),
        "failed": {row["shape"]: row["error"] for row in rows if "error" in row},
    }


def main() -> int:
    """See the module; 1 where ncu has nothing to say, 2 where shapes are missing."""
    parser = command_line(__doc__)
    parser.add_argument("--shapes", type=int, default=20)
    parser.add_argument("--batch", type=int, default=7, help="shapes of one process under ncu")
    parser.add_argument("--limit-s", type=float, default=1e7, help="begin no batch after so many seconds")
    parser.add_argument("--resume", type=Path, help="rows.jsonl of an earlier run to go on with")
    parser.add_argument("--cache", type=Path, help="folder of compiled kernels")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dry-run", action="store_true", help="on a modelled clock, with a stand-in for ncu")
    options = parser.parse_args()
    began, name = time.monotonic(), NAME + ("-dry" if options.dry_run else "")
    if program("ncu") is None:
        print("ncu is not installed: nothing is measured, nothing is written")
        return 1
    shapes = stratified(cuda_l2_grid(), options.shapes, options.seed)
    table = TunedTable.load(shipped_path("NVIDIA H200"))
    chosen = {str(shape): shipped(shape, table) for shape in shapes}
    journal = Lines(options.out / f"{name}.rows.jsonl", options.resume)
    done = {row["shape"]: row for row in journal.rows}
    fields = {text: to_fields(config) for text, config in chosen.items()}
    done = {text: done[text] for text in chosen if text in done and done[text]["config"] == fields[text]}
    left = [shape for shape in shapes if "error" in done.get(str(shape), {"error": ""})]
    if not options.dry_run:
        build({chosen[str(shape)].instance for shape in left}, options.cache)
    cache = str(options.cache) if options.cache else None
    plan = {"options": asdict(Options(seed=options.seed)), "cache": cache, "dry": options.dry_run}
    for first in range(0, len(left), options.batch):
        if time.monotonic() - began > options.limit_s:
            break
        rows = judged(left[first : first + options.batch], chosen, {**plan, "mode": "judge"})
        good = [row for row in rows if "error" not in row]
        try:
            found = profiled(good, options) if good else []
        except DeviceError as error:
            print(f"{error}\nncu has no profile: nothing more is measured")
            if not done:
                return 1
            break
        for row in (*found, *(row for row in rows if "error" in row)):
            done[row["shape"]] = row
            journal.add(row)
            print(f"{row['shape']}: {row.get('why') or row['error']}", flush=True)
    rows = [done[str(shape)] for shape in shapes if str(shape) in done]
    summary = summed(rows)
    path = write(name, rows, summary, environment(), seed=options.seed, out=options.out)
    print(json.dumps(summary, indent=1), f"\nwrote {path.name}")
    return 0 if summary["profiled"] == len(shapes) else 2


def judged(shapes: Sequence[Shape], chosen: dict[str, Config], plan: Row) -> list[Row]:
    """Rows with both contestants' times back to back, in a process that ends before ncu's begins."""
    client = WorkerClient(plan)
    rows = []
    try:
        for shape in shapes:
            config = chosen[str(shape)]
            row: Row = {"shape": str(shape), "band": shape.band, "flop": shape.flop, "name": config.name}
            row |= {"config": to_fields(config), "modelled": bool(plan["dry"])}
            try:
                rows.append(row | timed(client, shape, config))
            except DeviceError as error:
                rows.append(row | {"error": str(error)})
    finally:
        client.close()
    return rows


if __name__ == "__main__":
    raise SystemExit(main())

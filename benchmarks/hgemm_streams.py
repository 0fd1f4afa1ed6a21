"""In which pattern do the multiprocessors of a GPU stream a large matrix fastest through tensor copies (TMA)?

    python benchmarks/hgemm_streams.py --cache .carry/streams --prepare   # compiles; no GPU needed
    python benchmarks/hgemm_streams.py --cache .carry/streams   # 40 s of one GPU; writes hgemm-streams.json
    python benchmarks/hgemm_streams.py --dry-run --out FOLDER   # without a GPU, on a modelled clock

One kernel without products (hgemm_streams.cu) reads an n x k matrix of FP16 in the ways that
hgemm_streams_plan.py lists. Each way's checksums are compared with NumPy's first, on a small matrix and for
one CTA on the large one. Then all are timed in turn, in graphs of calls back to back (warm) and one call
after a read of twice the L2 (cold). Beside them: a plain reduction of the same bytes, cuBLASLt's best
algorithms and our best kernels with 64 rows. Then what gained is put together. Last come, beside the bases,
those who ask the L2 to keep lines longest: these outlive a call, and would change others' times.

Rates count the matrix alone. `ratio` is the time of `against` over this one's (above 1: faster): the median
over rounds, with a 95 % bootstrap interval. A layout's base is among its variants twice: the second is the
null.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hgemm_streams_plan as plan
import numpy as np
from common import ROOT, write
from hgemm_streams_plan import Variant
from hgemm_streams_reader import SHAPES, Contestant, DryReader, Kernel, Reader, recorded

#: what correctness is tried on: every slab and step, all CTAs
SMALL = (1024, 2048)
ROUNDS, CHUNK, CALLS = 64, 4, 4
#: a change counts as a gain from here (lower end of its interval)
GAIN = 1.003


def race(stage: Any, contestants: Sequence[Contestant], deadline: float) -> None:
    """Time all of them by turns, warm and cold, a few rounds at a time, until the deadline."""
    from sassafras.device.cuda.timing import interleaved
    from sassafras.gemm.graphs import timed

    gpu, events = stage.gpu, (stage.gpu.event(), stage.gpu.event())
    warm = [stage.block(c.enqueue, CALLS) for c in contestants]
    cold = [stage.block(c.enqueue, 1, events) for c in contestants]
    while len(contestants[0].warm) < ROUNDS:
        table = timed(gpu, stage.watch, warm, CHUNK)
        for c, column in zip(contestants, table.T, strict=True):
            c.warm += column.tolist()
        for which in interleaved(len(contestants), CHUNK):
            stage.empty_l2()
            gpu.replay(cold[which].graph)
            gpu.sync()
            contestants[which].cold.append(gpu.elapsed_us(*events))
        if time.perf_counter() > deadline:
            break
    for block in (*warm, *cold):
        block.discard(gpu)


def ratio(base: Sequence[float], times: Sequence[float]) -> list[float]:
    """Median of the paired ratios, and its interval."""
    from sassafras.core.statistics import bootstrap_median, paired_ratios

    ratios = paired_ratios(base, times)
    interval = bootstrap_median(ratios)
    return [round(float(x), 4) for x in (np.median(ratios), interval.low, interval.high)]


def rows_of(contestants: Sequence[Contestant], n: int, k: int) -> list[dict[str, Any]]:
    """What came out: each against the base of its layout, and bases and others against the first base."""
    bases: dict[str, Contestant] = {}
    for c in contestants:
        if c.variant is not None:
            bases.setdefault(c.variant.layout, c)
    first, rows = next(iter(bases.values())), []
    for c in contestants:
        base = bases[c.variant.layout] if c.variant else first
        kind = "variant" if c.variant else "other"
        if c is base:
            base, kind = first, "base"
        elif c.variant == base.variant:
            kind = "null"
        row = {"n": n, "k": k, "name": c.name, "kind": kind, "against": base.name, "rounds": len(c.warm)}
        for mode in ("warm", "cold"):
            us = float(np.median(getattr(c, mode)))
            row[f"{mode}_us"], row[f"{mode}_gbs"] = round(us, 3), round(2 * n * k / us / 1e3, 1)
            row[f"{mode}_ratio"] = ratio(getattr(base, mode), getattr(c, mode))
        rows.append({**row, **{key: value for key, value in c.facts.items() if key != "sums"}})
    return rows


def gains(rows: Sequence[dict[str, Any]], layout: str) -> list[tuple[float, Variant]]:
    """Changes of a layout that are faster, warm: (ratio, variant). What no product could read is left out."""
    by_name = {v.name: v for v in plan.variants(layout)}
    null = max((r["warm_ratio"][2] for r in rows if r["kind"] == "null" and r["name"] == layout), default=1.0)
    return [
        (row["warm_ratio"][0], by_name[row["name"]])
        for row in rows
        if row["kind"] == "variant" and row["name"] in by_name and by_name[row["name"]].boxes != "long"
        and row["warm_ratio"][1] > max(GAIN, null)
    ]  # fmt: skip


def measure(
    reader: Any, n: int, k: int, chosen: Sequence[Variant], deadline: float, others: bool,
    wrong: dict[str, str], whole: bool,
) -> list[dict[str, Any]]:  # fmt: skip
    """One shape: check, time, put together what gained, time that. `wrong` is added to."""

    def field_of(variants: Sequence[Variant]) -> list[Contestant]:
        ready = []
        for v in variants:
            if plan.reject(v, n, k):
                continue
            why = "" if plan.reject(v, *SMALL) else reader.run(v, *SMALL)
            if not why and whole:
                why = reader.run(v, n, k, [plan.lay_out(v, n, k).grid // 2])
            if why:
                wrong[f"{v.name} {n}x{k}"] = why
            else:
                ready.append(reader.contestant(v, n, k))
        return ready

    def raced(contestants: list[Contestant], until: float) -> list[dict[str, Any]]:
        race(reader.stage, contestants, until)
        for c in contestants:  # every call since has to have read the same
            if (sums := c.facts.get("sums")) is None:
                continue
            before = sums.clone()
            c.enqueue()
            reader.stage.gpu.sync()
            if not bool((before == sums).all()):
                wrong[f"{c.name} {n}x{k}"] = "two calls differ"
        return rows_of(contestants, n, k)

    begin = time.perf_counter()
    beside: list[Contestant] = []
    if others:
        try:
            beside = reader.beside(n, k)
        except TimeoutError:
            raise
        except Exception as error:  # a library that is missing: what the variants say is worth having
            wrong[f"beside {n}x{k}"] = f"{type(error).__name__}: {error}"
    share = deadline - begin
    calm = [v for v in chosen if not v.lasting]
    rows = raced(field_of(calm) + beside, begin + 0.65 * share)
    best = [Variant("nn")]
    for layout in ("nn", "tn"):
        best += [Variant(layout), *plan.together(Variant(layout), gains(rows, layout), n, k)]
    again = raced(field_of(list(dict.fromkeys(best))), begin + 0.9 * share)
    rows += [{**row, "phase": "together"} for row in again]
    if lasting := [v for v in chosen if v.lasting]:
        bases = [Variant(layout) for layout in dict.fromkeys(v.layout for v in lasting)]
        again = raced(field_of(bases + lasting), deadline)
        rows += [{**row, "phase": "evict_last"} for row in again]
        reader.forget()
    return rows


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """By shape: rates of the bases, the null, and the fastest of each layout."""
    found: dict[str, Any] = {}
    for row in rows:
        of_shape = found.setdefault(f"{row['n']}x{row['k']}", {})
        if row["kind"] in ("base", "other", "null") and "phase" not in row:
            key = row["name"] if row["kind"] != "null" else f"null of {row['name']}"
            of_shape[key] = [row["warm_gbs"], row["cold_gbs"], *row["warm_ratio"]]
        layout = row["name"].split()[0]
        if layout in plan.LAYOUTS and "small=" not in row["name"] and row.get("phase") != "evict_last":
            best = of_shape.setdefault(f"best {layout}", row)
            if row["warm_gbs"] > best["warm_gbs"]:
                of_shape[f"best {layout}"] = row
    for of_shape in found.values():
        for key, row in of_shape.items():
            if isinstance(row, dict):
                of_shape[key] = {
                    x: row[x] for x in ("name", "warm_gbs", "cold_gbs", "warm_ratio", "cold_ratio")
                }
    return found


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cache", type=Path, help="folder of compiled kernels")
    parser.add_argument("--prepare", action="store_true", help="only compile; needs no GPU")
    parser.add_argument("--seconds", type=float, default=40, help="of the whole run, about")
    parser.add_argument(
        "--shapes", help="n x k, comma-separated", default=",".join(f"{n}x{k}" for n, k in SHAPES)
    )
    parser.add_argument(
        "--only", choices=plan.LAYOUTS, action="append", help="these layouts; may be given again"
    )
    parser.add_argument(
        "--no-others", action="store_true", help="nothing beside the variants (needs no cuBLASLt)"
    )
    parser.add_argument("--dry-run", action="store_true", help="without a GPU, on a modelled clock")
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args(arguments)
    try:
        given.shapes = [tuple(map(int, shape.split("x"))) for shape in given.shapes.split(",")]
        fits = all(
            len(s) == 2 and 0 < s[0] <= SHAPES[0][0] and 0 < s[1] <= SHAPES[0][1] for s in given.shapes
        )
    except ValueError:
        fits = False
    if not fits:
        parser.error(f"--shapes: like 16384x8192, up to {SHAPES[0][0]} each way")
    return given


def main() -> int:
    """Run it; 1 when a checksum is wrong, 2 without a GPU."""
    given, begin = parsed(), time.perf_counter()
    if given.prepare:
        from sassafras.gemm.compile import build

        configs = [config for n, k in given.shapes for config in recorded(n, k)]
        build([Kernel(), *{config.instance for config in configs}], given.cache)  # type: ignore[list-item]
        return 0
    from sassafras.device.cuda import available, environment

    usable, reason = available()
    if not usable and not given.dry_run:
        print(reason)
        return 2
    if given.dry_run:
        from sassafras.gemm.dry import DryStage

        reader: Any = DryReader(DryStage())
    else:
        from sassafras.gemm.stage import Stage

        reader = Reader(Stage(given.cache), given.cache)
    chosen = [v for layout in given.only or plan.LAYOUTS for v in plan.variants(layout)]
    rows: list[dict[str, Any]] = []
    wrong: dict[str, str] = {}
    hung = ""
    clusters = reader.clusters()
    for number, (n, k) in enumerate(given.shapes):
        left = given.seconds - (time.perf_counter() - begin)
        if number and left < 2:
            break
        deadline = time.perf_counter() + left / (len(given.shapes) - number)
        try:
            rows += measure(reader, n, k, chosen, deadline, not given.no_others, wrong, number == 0)
        except TimeoutError as error:
            hung = str(error)
            break
    for row in rows:
        rates = f"{row['warm_gbs']:7.0f} GB/s {row['warm_ratio']} cold {row['cold_gbs']:7.0f}"
        phase = row.get("phase", "")
        print(f"{row['n']:>6} x {row['k']:<6} {row['name']:60} {rates} {row['cold_ratio']} {phase}")
    summary = {
        "shapes": summarise(rows), "active_clusters_200kb": clusters, "wrong": wrong, "hung": hung,
        "variants": len(dict.fromkeys(chosen)), "modelled": given.dry_run,
        "seconds": round(time.perf_counter() - begin, 1),
    }  # fmt: skip
    out = given.out or Path(os.environ.get("OUT") or ROOT / "benchmarks/results")
    name = "hgemm-streams" + "-dry" * given.dry_run
    path = write(name, rows, summary, environment() if usable else {}, seed=1, out=out)
    print(
        *(f"{key}: {value}" for key, value in summary.items() if key != "shapes"),
        path.name,
        sep="\n",
        flush=True,
    )
    if hung:
        os._exit(1)  # no clean-up: it would wait for the kernel
    return 1 if wrong or not rows else 0


if __name__ == "__main__":
    sys.exit(main())

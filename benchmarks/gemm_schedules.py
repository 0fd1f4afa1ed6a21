"""Schedules of our GEMM kernels, searched on some shapes and judged on others; writes gemm-schedules.json.

    python benchmarks/gemm_schedules.py search --seconds 60 --kernels 12 --limit-s 330       # a GPU; resumes
    python benchmarks/gemm_schedules.py search --device model --evaluations 20 --only lean_ --out DIR
    python benchmarks/gemm_schedules.py ship gemm-schedules.rows.jsonl ...        # results and package data

A row is a compiled kernel, those that win most shapes below 1e10 FLOP of the H200's table first. Of the
shapes that it wins, in the configurations that win them, four are searched on and up to eight are held out,
drawn by the seed. The search (`sassafras.optimize`; spaces swaps and control share the seconds, each begins
at the compiler's order) has all four as one objective (`EveryCase`), weighted so that each counts alike. Its
clock is the evaluator's: graphs of launches without programmatic dependent launch, so that none overlap. The
better winner, re-measured in fresh processes, is proved legal from scratch. Figures are of isolated kernel
time by `gemm.bench.timing.Isolated`: one call at a time after a random pause, on rotated buffers, between
events that the call's own graph records. Parent, winner and the parent loaded a second time (the A/A control)
take turns in each of `--processes` fresh processes; C has to be the parent's, bit for bit.

A kernel ships if its geometric mean over the shapes held out is 1.01 or more, and its interval lies beyond
that of the A/A control, and no shape is below 0.99. Finished kernels are in gemm-schedules.rows.jsonl of the
output folder; the same command goes on with missing ones. Kernels are compiled into --cache, by default an
empty folder, by the NVRTC that is installed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import time
import zlib
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from common import Lines, command_line, ends, geomean, one_gpu, per_gpu, read_lines, write

Row = dict[str, Any]
NAME = "gemm-schedules"
SPACES = ("swaps", "control")
#: FLOP of the shapes; how many of a kernel are searched on, held out at most, and at least
MOST_FLOP, SEARCHED, MOST_HELD, LEAST_HELD = 1e10, 4, 8, 2
#: what is shipped: geometric mean, slowest shape
LEAST, LEAST_SHAPE = 1.01, 0.99
#: of a row, what the package's file has besides its shapes
SHIPPED_FIELDS = (
    *("gpu", "entry", "parent", "tuned", "offset", "slots", "moves", "records", "source", "release", "rules"),
    *("date", "speedup", "speedup_low", "speedup_high", "null", "null_low", "null_high"),
)
#: isolated calls a second at most
RATE = 1000.0


def served() -> dict[str, list[tuple[str, str, float]]]:
    """Kernel -> (shape, configuration, microseconds) of each row of the table that it wins by itself."""
    from sassafras.gemm.select.table import TunedTable, shipped_path

    found: dict[str, list[tuple[str, str, float]]] = {}
    for row in TunedTable.load(shipped_path("NVIDIA H200")).rows.values():
        if row.ours and row.shape.flop < MOST_FLOP and len(row.ours[0][0].instances) == 1:
            config, us = row.ours[0]
            found.setdefault(config.instance.name, []).append((str(row.shape), config.name, us))
    return found


def drawn(entry: str, wins: Sequence[Any], seed: int) -> tuple[list[Any], list[Any]]:
    """Shapes to search on, and shapes held out."""
    order = np.random.default_rng([seed, zlib.crc32(entry.encode())]).permutation(len(wins))
    mixed = [sorted(wins)[index] for index in order]
    return mixed[:SEARCHED], mixed[SEARCHED : SEARCHED + MOST_HELD]


def kernels(only: str) -> list[str]:
    """Names of kernels with enough shapes, those that win most first."""
    found = {entry: len(wins) for entry, wins in served().items() if re.search(only, entry)}
    return sorted(
        (e for e, n in found.items() if n >= SEARCHED + LEAST_HELD), key=lambda entry: (-found[entry], entry)
    )


def row_of(entry: str, options: argparse.Namespace) -> Row:
    """Search one kernel and judge the winner; a row for the journal."""
    from sassafras.core import VALIDATOR_RULES
    from sassafras.cuda.environment import environment, probe
    from sassafras.gemm.build.cubins import cached_path, cubin
    from sassafras.gemm.build.schedules import applied, difference, release
    from sassafras.gemm.configs.registry import parse_instance
    from sassafras.validate import Validator

    began, instance = time.monotonic(), parse_instance(entry)
    searched, held = drawn(entry, served()[entry], options.seed)
    parent = cubin(instance)
    row: Row = {"entry": entry, "modelled": options.device == "model", "wins": len(served()[entry])}
    row |= {"release": release(parent), "rules": VALIDATOR_RULES, "date": f"{datetime.now(UTC):%Y-%m-%d}"}
    row |= {"source": cached_path(instance).stem.rpartition("-")[2], "environment": environment()}
    row |= {"searched_on": [f"{shape}/{config}" for shape, config, _ in searched], "seed": options.seed}
    best, row["searches"] = search(searched, options)
    if best is None:
        return row | {"improved": False, "seconds": time.monotonic() - began}
    report = Validator(parent, entry).check(best)
    if not report.ok:
        return row | {"error": f"the validator refuses the winner: {report.violations[0]}"}
    row |= {"improved": True, "gpu": str(probe().get("gpu")), **difference(parent, best, entry)}
    if applied(parent, entry, row["gpu"], [row]).cubin != best:
        return row | {"error": "the row does not make the winner of its parent"}
    jobs = [(held, entry, parent, best, process, options) for process in range(options.processes)]
    tables = []
    for job in jobs:  # one after another, each in a process that has made no context yet
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            tables.append(pool.submit(isolated, *job).result())
    return row | judged(held, tables) | {"seconds": time.monotonic() - began}


def search(shapes: Sequence[Any], options: argparse.Namespace) -> tuple[bytes | None, Row]:
    """The better winner of the spaces, None where neither beats the compiler's; what each found."""
    import sassafras
    from sassafras.api.multi_shape import EveryCase
    from sassafras.gemm.configs import names
    from sassafras.gemm.problem.shape import Shape
    from sassafras.gemm.select.source_workload import plain
    from sassafras.gemm.select.workload import of_shapes
    from sassafras.jobs.opening import open_device

    problems = [(Shape.parse(shape), names.parse(config)) for shape, config, _ in shapes]
    workload = of_shapes([(shape, plain(config, shape)) for shape, config in problems])
    counts = {shape: max(1, round(1000 / us)) for shape, _, us in shapes}
    budget = f"{options.evaluations}e" if options.evaluations else f"{options.seconds / len(SPACES):g}s"
    best, best_ratio, found = None, 0.0, {}
    for space in SPACES:
        device = EveryCase(lambda: open_device(options.device, None), counts)
        result = sassafras.optimize(
            workload, device=device, space=space, budget=budget, seed=options.seed, store=False
        )
        ratio = result.modelled_ratio if result.modelled else result.speedup
        interval = result.interval and [result.interval.low, result.interval.high]
        found[space] = {"speedup": ratio, "interval": interval}
        kept = ("null", "improved", "evaluations", "failed_after_validation")
        found[space] |= {key: getattr(result, key) for key in kept}
        if result.improved and ratio and ratio > best_ratio:
            best, best_ratio = result.cubin, ratio
    return best, found


def isolated(
    held: Sequence[Any], entry: str, parent: bytes, tuned: bytes, process: int, options: argparse.Namespace
) -> list[list[list[float]]]:
    """In a fresh process, of each shape: microseconds of every call of parent, winner and parent again."""
    from sassafras.gemm.bench.dry_run import DryContestants
    from sassafras.gemm.bench.operands import required, rotated
    from sassafras.gemm.bench.timing import Isolated
    from sassafras.gemm.configs import names
    from sassafras.gemm.problem.shape import Shape

    if options.device == "model":
        stage: Any = DryContestants(seed=process)
        codes: list[Any] = [None] * 3
    else:
        from sassafras.gemm.bench.contestants import Contestants

        stage = Contestants()
        codes = [stage.gpu.load(code, entry) for code in (parent, tuned, parent)]
    tables = []
    for index, (text, name, _) in enumerate(held):
        shape, config = Shape.parse(text), names.parse(name)
        operands = stage.operands(shape, options.seed + 1000 * process + index)
        operands.calibrate(stage.gemm_ex("nn", operands, strict=True))
        left = []
        for code in codes[:2]:
            required(operands, name, stage.ours(config, operands, code), True)
            left.append(None if stage.modelled else operands.c.clone())
        if not stage.modelled and not bool((left[0] == left[1]).all()):
            raise RuntimeError(f"{entry} on {shape}: the winner's C is not the parent's")
        sets = rotated(operands, stage.l2_bytes, 24) if not stage.modelled else [operands]
        contest = Isolated(stage, [[stage.ours(config, each, code) for each in sets] for code in codes])
        rng = np.random.default_rng((options.seed, process, index))
        tables.append(contest.calls(options.calls, RATE, rng)[0].tolist())
        contest.close()
    return tables


def judged(held: Sequence[Any], tables: Sequence[Any]) -> Row:
    """Figures of a row: of each shape held out, and their geometric mean, with intervals over processes."""
    from sassafras.core.statistics import hierarchical_bootstrap, hierarchical_median, paired_ratios

    def ratios(index: int, other: int) -> list[np.ndarray]:
        of_shape = [np.asarray(process[index]) for process in tables]
        return [paired_ratios(table[:, 0], table[:, other]) for table in of_shape]

    def figures(groups: Sequence[np.ndarray], name: str) -> Row:
        return {name: hierarchical_median(groups), **ends(name, hierarchical_bootstrap(groups))}

    def all_figures(indices: Sequence[int]) -> Row:
        """Of each round the geometric mean over these shapes."""
        found: Row = {}
        for name, other in (("speedup", 1), ("null", 2)):
            by_shape = [ratios(index, other) for index in indices]
            found |= figures(
                [np.exp(np.log(each).mean(axis=0)) for each in zip(*by_shape, strict=True)], name
            )
        return found

    shapes = [
        {"shape": shape, "config": config, "us": float(np.median([np.array(t[index])[:, 0] for t in tables]))}
        | all_figures([index])
        for index, (shape, config, _) in enumerate(held)
    ]
    return {**all_figures(range(len(held))), "held_out": shapes}


def ships(row: Row) -> bool:
    """Whether a row's schedule goes to users."""
    if row.get("error") or row["modelled"] or not row["improved"]:
        return False
    beyond = row["speedup"] >= LEAST and row["speedup_low"] > max(1.0, row["null_high"])
    return beyond and min(shape["speedup"] for shape in row["held_out"]) >= LEAST_SHAPE


def finish(rows: Sequence[Row], out: Path, data: Path) -> None:
    """Write the result file, and the file of schedules: rows that ship, and others' that stand in it."""
    from sassafras.gemm.build import schedules
    from sassafras.gemm.build.cubins import cached_path
    from sassafras.gemm.configs.registry import parse_instance

    last = {(row["entry"], row["release"]): row for row in rows if "error" not in row}
    good = {entry for entry, _ in last}
    failed = {row["entry"]: row for row in rows if "error" in row and row["entry"] not in good}
    stand = [{**row, "ships": ships(row)} for row in (*last.values(), *failed.values())]
    stand.sort(key=lambda row: -row.get("speedup", 0.0))
    environment = one_gpu(row.get("environment") for row in stand)
    shown = [{k: v for k, v in row.items() if k not in ("moves", "records", "environment")} for row in stand]
    gone = [row for row in stand if row["ships"]]
    summary = {
        "kernels": len(stand),
        "improved": sum(bool(row.get("improved")) for row in stand),
        "shipped": len(gone),
        "geomean_speedup": geomean(row["speedup"] for row in gone),
        "geomean_null": geomean(row["null"] for row in gone),
        # what ships is chosen by these very measurements: of all winners, too
        "geomean_judged": geomean(row["speedup"] for row in stand if row.get("held_out")),
        "held_out_shapes": sum(len(row["held_out"]) for row in gone),
        "failed_after_validation": sum(
            found["failed_after_validation"] for row in stand for found in row.get("searches", {}).values()
        ),
        "failed_rows": [row["entry"] for row in stand if row.get("error")],
    }
    modelled = any(row["modelled"] for row in stand)
    print(write(f"{NAME}-modelled" if modelled else NAME, shown, summary, environment, out=out))
    kept = {} if not data.is_file() else {_key(row): row for row in schedules.read(data)}
    for row in gone:
        held = {shape["shape"]: round(shape["speedup"], 4) for shape in row["held_out"]}
        kept[_key(row)] = {key: row[key] for key in SHIPPED_FIELDS if key in row} | {"held_out": held}
    today = [r for r in kept.values() if cached_path(parse_instance(r["entry"])).stem.endswith(r["source"])]
    lines = [schedules.HEADER, *sorted(today, key=_key)]
    data.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    print(f"{len(gone)} of {len(stand)} kernels ship; {len(today)} rows in {data.name}")


def _key(row: Row) -> tuple[str, ...]:
    return row["gpu"], row["entry"], row["parent"]


def main() -> None:
    """Command line."""
    parser = command_line(__doc__)
    parser.add_argument("what", choices=("search", "ship"))
    parser.add_argument("journals", type=Path, nargs="*", help="with ship: rows.jsonl of searches")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each kernel's search")
    parser.add_argument("--evaluations", type=int, help="of each space's search, instead of seconds")
    parser.add_argument("--kernels", type=int, default=12, help="how many, finished ones included")
    parser.add_argument("--only", default="", help="a regular expression that names of kernels have to match")
    parser.add_argument("--calls", type=int, default=200, help="isolated calls of each, a shape and process")
    parser.add_argument("--processes", type=int, default=3, help="that time the shapes held out, at least 2")
    parser.add_argument("--limit-s", type=float, default=1e7, help="begin no kernel after so many seconds")
    parser.add_argument("--resume", type=Path, help="rows.jsonl of an earlier run to go on with")
    parser.add_argument("--device", default="cuda", choices=("cuda", "model"))
    parser.add_argument("--gpus", type=int, help="[default: all]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cache", type=Path, help="folder of compiled kernels [default: OUT/kernels]")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.what == "ship":
        from sassafras.gemm.build.schedules import SHIPPED

        rows = [row for path in options.journals for row in read_lines(path)]
        if not rows or any("entry" not in row for row in rows):  # or a published result would become empty
            raise SystemExit("error: these are no rows of gemm_schedules.py search")
        finish(rows, options.out, SHIPPED)
        return
    os.environ["SASSAFRAS_GEMM_SCHEDULES"] = "off"  # parents are the compiler's output
    os.environ["SASSAFRAS_GEMM_CACHE"] = str(options.cache or options.out / "kernels")
    name = f"{NAME}{'-modelled' if options.device == 'model' else ''}.rows.jsonl"
    journal = Lines(options.out / name, options.resume)
    have = {row["entry"] for row in journal.rows if "error" not in row}
    wanted = [(e, options) for e in kernels(options.only)[: options.kernels] if e not in have]
    until = time.monotonic() + options.limit_s
    for index, found in per_gpu(row_of, wanted, options.gpus, until=until):
        row = found
        if isinstance(found, BaseException):
            row = {"entry": wanted[index][0], "modelled": options.device == "model", "error": repr(found)}
        journal.add(row)
        shown = ("entry", "speedup", "speedup_low", "null_high", "seconds", "error")
        print({key: row[key] for key in shown if key in row}, flush=True)
    finish(journal.rows, options.out, options.out / "schedules.jsonl")


if __name__ == "__main__":
    main()

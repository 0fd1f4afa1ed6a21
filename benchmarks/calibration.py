"""What a calibration is worth, beside its start and a full sweep; writes calibration.json.

    sassafras tune --calibrate --from 'NVIDIA H200' --no-install --out FOLDER
    python benchmarks/calibration.py FOLDER [--start 'NVIDIA H200'] [--sweep TABLE] [--shapes 300]
        [--grids judge-5,judge-6] [--limit-s 120] [--seed 0] [--out FOLDER] [--dry-run]

The GPU's own tables must not be the start's: the GPU is a stranger to the start. Three tables choose for
shapes of the grid that the calibration has not timed, in nn and tn: the start's (uncalibrated), the corrected
one, and that of a sweep made on this GPU. Their choices and torch twice (the A/A control) are timed
interleaved in this process, which has selected nothing. For shapes that no table has (--grids) the tables'
predictors choose. `gap_closed` is the part of the logarithm between start and sweep that the calibration
gains; `calibrated_of_sweep` the sweep's time over the calibrated one's, in geometric mean.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import command_line, geomean, write

from sassafras.core import SassafrasError
from sassafras.core.statistics import bootstrap_median
from sassafras.cuda.cublas import LtAlgorithm
from sassafras.cuda.driver import CudaError
from sassafras.cuda.environment import environment
from sassafras.gemm.bench.contestants import Contestants
from sassafras.gemm.bench.dry_run import DryContestants
from sassafras.gemm.bench.grids import choose_shapes
from sassafras.gemm.bench.timing import contest, order_seed
from sassafras.gemm.configs.fields import to_fields
from sassafras.gemm.matmul.choice import chooser_of
from sassafras.gemm.problem.shape import LAYOUTS, Shape, stratified
from sassafras.gemm.select.dataset import Dataset
from sassafras.gemm.select.selector import Choice, Selector
from sassafras.gemm.select.table import TunedTable, shipped_path

TABLES = ("start", "calibrated", "sweep")
#: of a product: microseconds of a block, seconds on the GPU, rounds at least and at most
BLOCK_US, SECONDS, ROUNDS = 150.0, 0.03, (5, 15)


def chosen(choosers: dict[str, Selector], shape: Shape, layout: str) -> dict[str, Choice]:
    """What each table says of a product."""

    def legal(config: Any) -> bool:
        return config.layout == layout and config.why_illegal(shape) is None

    return {name: one.choose(shape, layout, legal) for name, one in choosers.items()}


def member(choice: Choice) -> tuple[str, Any]:
    """What serves, hashable."""
    if choice.member == "lt" and choice.row and choice.row.lt:
        return "lt", tuple(sorted(choice.row.lt.items()))
    return choice.member, choice.config


def row_of(stage: Any, choosers: dict[str, Selector], shape: Shape, layout: str, seed: int) -> dict[str, Any]:
    """Microseconds of each table's choice, of torch and its control, in one product."""
    choices = chosen(choosers, shape, layout)
    operands = stage.operands(shape, seed, LAYOUTS)
    operands.calibrate(stage.gemm_ex("nn", operands, strict=True))
    problem = stage.lt.problem(shape, layout)
    calls: dict[Any, Any] = {("torch", None): stage.torch_matmul(layout, operands)}
    for choice in choices.values():
        kind, what = key = member(choice)
        if key in calls:
            continue
        if kind == "lt":
            calls[key] = stage.lt_call(problem, LtAlgorithm.from_json(dict(what)), operands)
        else:
            calls[key] = stage.ours(what, operands)
            if why := operands.check(calls[key]).why:
                raise SassafrasError(why, where=f"{shape} {what.name}")
    keys, enqueues = [*calls, "control"], [*calls.values(), stage.torch_matmul(layout, operands)]
    for call in enqueues:
        call()
    rough = [stage.watch.one(call) for call in enqueues]
    least, most = ROUNDS
    table = contest(
        stage, enqueues, rough, BLOCK_US, SECONDS, least=least, most=most, clear=True,
        seed=order_seed(shape, seed),
    )  # fmt: skip
    problem.close()
    us = dict(zip(keys, np.median(table, axis=0).tolist(), strict=True))
    null = bootstrap_median(table[:, 0] / table[:, -1])
    row: dict[str, Any] = {"shape": str(shape), "layout": layout, "band": shape.band}
    row |= {"torch": us["torch", None]}
    row |= {"null": us["torch", None] / us["control"], "null_low": null.low, "null_high": null.high}
    for name, choice in choices.items():
        row |= {name: us[member(choice)], f"{name}_member": choice.member}
        row[f"{name}_config"] = to_fields(choice.config) if choice.config else None
    return row


def summed(rows: Sequence[dict[str, Any]], draws: int = 2000) -> dict[str, Any]:
    """The figures of rows, with 95 % intervals over shapes (bootstrap)."""
    found: dict[str, Any] = {"products": len(rows), "null": geomean(row["null"] for row in rows)}
    logs = {name: np.log([row["torch"] / row[name] for row in rows]) for name in TABLES if name in rows[0]}
    for name, over in logs.items():
        found[f"{name}_over_torch"] = float(np.exp(over.mean()))
        found[f"{name}_worst_over_torch"] = float(np.exp(over.min()))
        found[f"{name}_slower_by_2_percent"] = int((over < math.log(0.98)).sum())
    if "sweep" not in logs:
        return found
    rng, count = np.random.default_rng(0), len(rows)
    shapes, place = np.unique([row["shape"] for row in rows], return_inverse=True)
    drawn = np.array([np.bincount(rng.integers(len(shapes), size=len(shapes)), minlength=len(shapes))
                      for _ in range(draws)])[:, place]  # fmt: skip
    for name in ("start", "calibrated"):
        lost = logs[name] - logs["sweep"]
        found[f"{name}_of_sweep"] = float(np.exp(lost.mean()))
        low, high = np.quantile((drawn * lost).sum(1) / drawn.sum(1), (0.025, 0.975))
        found[f"{name}_of_sweep_low"], found[f"{name}_of_sweep_high"] = (
            float(np.exp(low)),
            float(np.exp(high)),
        )
    gap, gain = logs["sweep"] - logs["start"], logs["calibrated"] - logs["start"]
    if gap.sum() > 0:
        found["gap_closed"] = float(gain.sum() / gap.sum())
        parts = (drawn * gain).sum(1) / (drawn * gap).sum(1)
        found["gap_closed_low"], found["gap_closed_high"] = map(float, np.quantile(parts, (0.025, 0.975)))
    found["same_choice_start"], found["same_choice_calibrated"] = (
        sum(row[name] == row["sweep"] for row in rows) / count for name in ("start", "calibrated")
    )
    return found


def main() -> None:
    """See the module."""
    parser = command_line(__doc__)
    parser.add_argument("calibration", type=Path, help="folder of `sassafras tune --calibrate`")
    parser.add_argument("--start", default="NVIDIA H200", help="the GPU whose table was the start")
    parser.add_argument("--sweep", type=Path, help="table of a sweep [default: the GPU's shipped one]")
    parser.add_argument("--shapes", type=int, default=300, help="of the grid, stratified by work")
    parser.add_argument("--grids", default="judge-5", help="shapes that no table has; comma-separated")
    parser.add_argument("--limit-s", type=float, default=1e9, help="start no shape after so many seconds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dry-run", action="store_true", help="without a GPU, on a modelled clock")
    args = parser.parse_args()
    began = time.monotonic()
    found = sorted(args.calibration.glob("*.calibrated.table.json"))
    if len(found) != 1:
        sys.exit(f"error: {args.calibration} has {len(found)} calibrated tables, not one")
    corrected = TunedTable.load(found[0])
    gpu = str(corrected.header["gpu"])
    sweep = TunedTable.load(args.sweep or shipped_path(gpu))
    stage: Any = DryContestants() if args.dry_run else Contestants()
    version = stage.lt.version or sweep.header.get("cublaslt")
    start = TunedTable.load(shipped_path(args.start))
    choosers = {
        "start": chooser_of(args.start, start, version),
        "calibrated": chooser_of(args.start, corrected, version),
        "sweep": chooser_of(gpu, sweep, version),
    }
    timed = set(Dataset.load(args.calibration / "calibration.jsonl.gz").entries)
    grid = [s for s in choose_shapes("cuda-l2") if s not in timed and sweep.get(s, "tn")]
    parts = {"grid": stratified(grid, args.shapes, args.seed)}
    parts |= {name: choose_shapes(name) for name in filter(None, args.grids.split(","))}
    rows, failed, pending = [], [], 0
    for part, shapes in parts.items():
        for index in np.random.default_rng(args.seed).permutation(len(shapes)):
            if time.monotonic() - began > args.limit_s:
                pending += 1
                continue
            try:
                for layout in LAYOUTS:
                    rows.append(
                        {"part": part, **row_of(stage, choosers, shapes[index], layout, args.seed + 1)}
                    )
            except SassafrasError as error:
                if isinstance(error, CudaError) and error.sticky:
                    raise
                failed.append(f"{shapes[index]}: {error}")
    summary: dict[str, Any] = {
        part: summed(of) for part in parts if (of := [row for row in rows if row["part"] == part])
    }
    summary |= {"timed_by_calibration": len(timed), "pending": pending, "failed": failed, "gpu": gpu}
    summary |= {"correction_rms": corrected.header["correction"]["error"], "near": corrected.header["near"]}
    if args.dry_run:
        summary["modelled"] = True
    name = "calibration-dry" if args.dry_run else "calibration"
    path = write(name, rows, summary, environment(), seed=args.seed, out=args.out)
    for part in parts:
        if part in summary:
            keys = ["products", "start_over_torch", "calibrated_over_torch", "sweep_over_torch"]
            keys += ["start_of_sweep", "calibrated_of_sweep", "gap_closed", "null"]
            print(part, {key: round(summary[part][key], 4) for key in keys if summary[part].get(key)})
    print("wrote", path, f"({len(failed)} failed, {pending} pending)")


if __name__ == "__main__":
    try:
        main()
    except (SassafrasError, OSError) as error:
        sys.exit(f"error: {error}")

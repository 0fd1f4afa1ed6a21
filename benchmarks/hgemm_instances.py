"""Which of our kernels could go at the least loss: removes one after another, by the times of the dataset.

    python benchmarks/hgemm_instances.py [DATASET.jsonl.gz] [--steps 30] [--by layout|shape] [--keep REGEX]

No GPU. A problem is a shape of the grid in one layout (``--by layout``: what sassafras.matmul is asked for)
or in the better of both (``--by shape``: what the benchmark counts); its time is that of the fastest
configuration left, in any mode. Each step removes the instance that costs the least: the loss in geometric
mean over the problems of the grid, plus `--off-grid` times that over those off it, where torch counts as
one of ours, as it serves where they are slower. Prints what each step costs and writes hgemm-instances.json
to --out ($OUT, or benchmarks/results).

Times are of the last rung that an instance reached; what left a selection before its end counts no less than
its winner, since short times are noisy. Modes are timed for leaders alone, so that what takes over may be
faster than it says here. Instances of which BF16 takes the times (`families.twin`) are marked.
"""

from __future__ import annotations

import argparse
import math
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common import ROOT, write

from sassafras.gemm import dataset, families
from sassafras.gemm.choose import parsed
from sassafras.gemm.dataset import Dataset, Entry

LAYOUTS = ("nn", "tn")


@dataclass(frozen=True, slots=True)
class Times:
    """The fastest time that each instance has for each problem.

    Attributes:
        problems: (shape, layout; empty for the better of both).
        names: instances of this version that are proven.
        us: (problems, instances) microseconds; infinity where it was not timed.
        others: (problems,) what serves besides: torch's microseconds off the grid, infinity on it.
    """

    problems: list[tuple[str, str]]
    names: list[str]
    us: np.ndarray
    others: np.ndarray

    def best(self, left: np.ndarray) -> np.ndarray:
        """(problems,) microseconds of the fastest of these instances."""
        return np.minimum(self.us[:, left].min(1, initial=np.inf), self.others)


def times(entries: Iterable[Entry], names: Sequence[str], by: str, torch: bool = False) -> Times:
    """Of a dataset's entries; problems that none of ours runs are left out.

    Args:
        by: ``layout`` or ``shape``.
        torch: it serves, too.
    """
    column = {name: i for i, name in enumerate(names)}
    problems, rows, others = [], [], []
    for entry in entries:
        found = {layout: np.full(len(names), np.inf) for layout in LAYOUTS}
        last = {layout: np.full(len(names), -1) for layout in LAYOUTS}
        for name, (us, rung) in entry.ours.items():
            config = parsed(name)
            if rung >= 0 and config is not None and config.instance.name in column:
                at = column[config.instance.name]
                reached = last[config.layout]
                if rung >= reached[at]:
                    better = min(us, found[config.layout][at]) if rung == reached[at] else us
                    found[config.layout][at], reached[at] = better, rung
        for layout, row in found.items():
            final = last[layout] == last[layout].max()
            found[layout] = np.where(final, row, np.maximum(row, row[final].min()))
        torchs = {layout: entry.baseline_us("torch", layout) or math.inf for layout in LAYOUTS}
        if by == "shape":
            found = {"": np.minimum(*(found[layout] for layout in LAYOUTS))}
            torchs = {"": min(torchs.values())}
        for layout, row in found.items():
            if np.isfinite(row.min()):
                problems.append((str(entry.shape), layout))
                rows.append(row)
                others.append(torchs[layout] if torch else math.inf)
    return Times(problems, list(names), np.array(rows).reshape(-1, len(names)), np.array(others))


def losses(timed: Times, left: np.ndarray) -> np.ndarray:
    """(instances,) what removing each one of those left adds to the mean logarithm of the best times.

    Infinite where a problem would have no kernel at all.
    """
    rows = np.arange(len(timed.us))
    us = np.where(left, timed.us, np.inf)
    first = us.argmin(1)
    best = us[rows, first]
    us[rows, first] = np.inf
    then = np.minimum(us.min(1), timed.others)
    best = np.minimum(best, timed.others)
    added = np.zeros(len(left))
    np.add.at(added, first, np.log(then / best))
    return added / max(1, len(rows))


def greedy(
    timed: Times, apart: Times, keep: np.ndarray, steps: int, weight: float = 1.0
) -> list[dict[str, Any]]:
    """One row a removal, cheapest first: its own cost and that of all so far, in per cent.

    Args:
        timed: problems of the grid.
        apart: others off it, with the same instances.
        keep: (instances,) those that stay whatever they cost.
        steps: removals, at most.
        weight: of the loss off the grid, that on it having 1.
    """
    left = np.ones(len(timed.names), bool)
    all_best, all_apart, rows = timed.best(left), apart.best(left), list[dict[str, Any]]()
    for _ in range(min(steps, int((~keep).sum()))):
        cost, other = losses(timed, left), losses(apart, left)
        both = cost + (weight * other if weight else 0.0)
        order = sorted(np.flatnonzero(left & ~keep), key=lambda i: (round(both[i], 9), timed.names[i]))
        if not order or not math.isfinite(both[order[0]]):
            break
        gone = order[0]
        before = timed.best(left)
        left[gone] = False
        best = timed.best(left)
        ratio = best / all_best
        worst = int(ratio.argmax())
        rows.append({
            "instance": timed.names[gone], "won": int((before < best).sum()),
            "cost_percent": _percent(cost[gone]), "so_far_percent": _percent(_mean(np.log(ratio))),
            "worst_percent": round(100 * (float((best / before).max()) - 1), 2),
            "worst_so_far_percent": round(100 * (float(ratio[worst]) - 1), 2),
            "worst_so_far": " ".join(timed.problems[worst]).strip(),
            "off_grid_percent": _percent(other[gone]),
            "off_grid_so_far_percent": _percent(_mean(np.log(apart.best(left) / all_apart))),
            "left": int(left.sum()),
        })  # fmt: skip
    return rows


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else 0.0


def _percent(log: float) -> float:
    return round(100 * math.expm1(log), 4)


def with_twins() -> set[str]:
    """Names of the FP16 instances whose times stand for BF16's."""
    others = {i for i in families.OTHER_INSTANCES if getattr(i, "dtype", "fp16") == "bf16"}
    configs = families.configurations()
    return {c.instance.name for c in configs if (t := families.twin(c, "bf16")) and t.instance in others}


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "dataset", type=Path, nargs="?", help="[default: the one that comes with the package]"
    )
    parser.add_argument("--steps", type=int, default=30, help="instances to remove [30]")
    parser.add_argument(
        "--by", choices=("layout", "shape"), default="layout", help="what a problem is [layout]"
    )
    parser.add_argument("--off-grid", type=float, default=1.0, help="weight of the loss off the grid [1]")
    parser.add_argument("--keep", default=r"^any_|a[12]$", help="instances that stay [those of odd rows]")
    parser.add_argument(
        "--out", type=Path, default=Path(os.environ.get("OUT") or ROOT / "benchmarks/results")
    )
    given = parser.parse_args()
    found = Dataset.load(given.dataset) if given.dataset else dataset.shipped()
    others = [e for p in sorted(dataset.DATA.glob("nvidia-h200.offgrid*.jsonl.gz")) for e in Dataset.load(p)]
    names = [i.name for i in families.INSTANCES]
    keep = np.array([bool(re.search(given.keep, name)) for name in names])
    timed, apart = times(found, names, given.by), times(others, names, given.by, torch=True)
    twins, rows = with_twins(), greedy(timed, apart, keep, given.steps, given.off_grid)
    for row in rows:
        row["bf16"] = row["instance"] in twins
        print(
            f"{row['instance']:32s} won {row['won']:3d}: {row['cost_percent']:.4f} %, worst "
            f"{row['worst_percent']:.2f} %; off the grid {row['off_grid_percent']:.4f} %; so far "
            f"{row['so_far_percent']:.4f} %, worst {row['worst_so_far_percent']:.2f} % "
            f"({row['worst_so_far']}), off the grid {row['off_grid_so_far_percent']:.4f} %"
            + "; BF16 takes its times"
            * row["bf16"]
        )
    header = {key: found.header.get(key) for key in ("gpu", "date", "commit")}
    summary = {
        "by": given.by, "weight_off_grid": given.off_grid, "problems": len(timed.problems),
        "off_grid": len(apart.problems), "instances": len(names), "kept": int(keep.sum()),
    }  # fmt: skip
    print("wrote", write("hgemm-instances", rows, summary, header, out=given.out))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

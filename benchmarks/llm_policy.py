"""The policy on a sweep's dataset: whole values of M, N or K held out, five seeds, against its rivals.

    python benchmarks/llm_policy.py --dataset FILE.jsonl.gz    # measured: writes llm-policy.json
    python benchmarks/llm_policy.py --stand-in                 # tries the machinery; nothing is written

No GPU: a measurement is a look into the dataset. Each seed trains on the shapes without the held-out values
and chooses 1, 4 and 16 configurations for every other shape; what counts is the best known time over the
best chosen one's. ``--journal`` keeps every finished (seed, method), and the same command goes on there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from common import write

from sassafras.core import SassafrasError, ToolMissing
from sassafras.core.statistics import student_t

COUNTS = (1, 4, 16)
#: axis and held-out extents of each seed: a small, a middle and a large one
HELD_OUT = (
    ("k", (128, 1024, 8192)),
    ("m", (256, 2048, 12288)),
    ("n", (64, 512, 4096)),
    ("k", (64, 512, 4096)),
    ("m", (128, 1024, 8192)),
)
Choose = Callable[[Any, int], list[int]]


def methods(
    table: Any, train: list[Any], test: list[Any], seed: int, steps: int
) -> dict[str, Callable[[], Choose]]:
    """Name -> what makes the chooser (training included)."""
    import numpy as np

    from sassafras.llm.policy import rivals
    from sassafras.llm.policy.model import Policy, PolicySettings
    from sassafras.llm.policy.train import GrpoSettings
    from sassafras.llm.policy.train import train as grpo

    def policy(contrastive: bool, updates: int, shuffled: bool = False) -> Choose:
        made = Policy(table.columns, PolicySettings(contrastive=contrastive), seed)
        made.standardise(train)
        if updates:
            grpo(made, train, GrpoSettings(steps=updates), seed=seed, shuffled=shuffled)
        return made.choose

    def chance() -> Choose:
        rng = np.random.default_rng(seed)
        return lambda problem, count: rivals.chance(problem, count, rng)

    def nvidia() -> Choose:
        asked = rivals.nvidia_heuristics([problem.shape for problem in test])
        return lambda problem, count: rivals.nearest(table, problem, asked[str(problem.shape)], count)

    return {
        "rule": lambda: rivals.rule,
        "random": chance,
        "annealing": lambda: lambda problem, count: rivals.anneal(table, problem, count, seed),
        "nvMatmulHeuristics": nvidia,
        "boosted trees": lambda: rivals.CostModel(train, seed).choose,
        "policy, untrained": lambda: policy(True, 0),
        "policy, plain": lambda: policy(False, steps),
        "policy, contrastive": lambda: policy(True, steps),
        "policy, shuffled rewards": lambda: policy(True, steps, shuffled=True),
    }


def judge(test: list[Any], choose: Choose) -> list[dict[str, Any]]:
    """A row for each number of measurements."""
    rows = []
    for count in COUNTS:
        fractions = [problem.fraction(choose(problem, count)) for problem in test]
        rows.append(
            {
                "measurements": count,
                "shapes": len(test),
                "fraction_of_best": statistics.fmean(fractions),
                "median": statistics.median(fractions),
                "worst": min(fractions),
            }
        )
    return rows


def summarise(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """By method and measurements: mean over seeds, with the 95 % interval of that mean."""
    found: dict[str, Any] = {}
    for method in dict.fromkeys(row["method"] for row in rows):
        for count in COUNTS:
            values = [
                r["fraction_of_best"] for r in rows if r["method"] == method and r["measurements"] == count
            ]
            if not values:
                continue
            entry: dict[str, Any] = {"mean_fraction_of_best": statistics.fmean(values), "seeds": len(values)}
            if len(values) > 1:
                half = student_t(len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
                entry["low"], entry["high"] = (
                    entry["mean_fraction_of_best"] - half,
                    entry["mean_fraction_of_best"] + half,
                )
            found.setdefault(method, {})[str(count)] = entry
    return found


def read(path: Path | None) -> list[dict[str, Any]]:
    """Finished rows of a journal."""
    if path is None or not path.exists():
        return []
    rows = []
    for line in path.read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows


def table_of(args: argparse.Namespace) -> Any:
    """The dataset's table, or the stand-in."""
    from sassafras.gemm.problem.shape import cuda_l2_grid
    from sassafras.llm.policy import Table

    if args.stand_in:
        shapes = [s for s in cuda_l2_grid() if s.flop < 2e10][:: args.every]
        return Table.stand_in(shapes, most=args.most)
    from sassafras.gemm.select import dataset

    found = dataset.Dataset.load(args.dataset) if args.dataset else dataset.shipped()
    return Table.of_dataset(found)


def run(args: argparse.Namespace, table: Any) -> list[dict[str, Any]]:
    """All rows: those of the journal, and those that are missing there."""
    from sassafras.llm.policy.table import held_out

    rows = read(args.journal)
    key = {"source": table.source, "steps": args.steps, "pairs": table.pairs}
    rows = [row for row in rows if all(row.get(name) == value for name, value in key.items())]
    for seed in range(args.seeds):
        axis, values = HELD_OUT[seed % len(HELD_OUT)]
        train, test = ([table.problems[i] for i in part] for part in held_out(table.problems, axis, values))
        for method, make in methods(table, train, test, seed, args.steps).items():
            if any(row["seed"] == seed and row["method"] == method for row in rows):
                continue
            began = time.monotonic()
            try:
                found = judge(test, make())
            except ToolMissing as missing:
                print(f"{method} is left out: {missing}", flush=True)
                continue
            seconds = round(time.monotonic() - began, 1)
            head = {
                "method": method,
                "seed": seed,
                "held_out": f"{axis} in {list(values)}",
                "trained_on": len(train),
            }
            new = [{**head, **row, "seconds": seconds, **key} for row in found]
            rows += new
            if args.journal is not None:
                with args.journal.open("a") as file:
                    file.write("".join(json.dumps(row) + "\n" for row in new))
            shown = ", ".join(f"{row['fraction_of_best']:.3f}" for row in found)
            print(f"seed {seed}, {axis}: {method}: {shown} ({seconds} s)", flush=True)
    return rows


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", type=Path, help="[default: the one that comes with the package]")
    parser.add_argument(
        "--stand-in", action="store_true", help="the distorted static estimate; writes nothing"
    )
    parser.add_argument("--every", type=int, default=4, help="of the stand-in's shapes, take each n-th")
    parser.add_argument("--most", type=int, default=96, help="the stand-in's configurations a shape")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=600, help="updates of GRPO")
    parser.add_argument("--threads", type=int, default=1, help="of torch: more than one seldom helps here")
    parser.add_argument(
        "--save", type=Path, help="train the contrastive policy on all shapes and keep it here"
    )
    parser.add_argument("--journal", type=Path)
    parser.add_argument("--out", help="folder of the result file")
    args = parser.parse_args()
    try:
        table = table_of(args)
    except SassafrasError as error:
        sys.exit(str(error))
    import torch

    torch.set_num_threads(args.threads)
    print(f"{len(table)} shapes, {table.pairs} pairs: {table.source}", flush=True)
    if args.save is not None:
        from sassafras.llm.policy.model import Policy
        from sassafras.llm.policy.train import GrpoSettings, train

        policy = Policy(table.columns)
        train(policy, table.problems, GrpoSettings(steps=args.steps))
        policy.save(args.save)
        print(f"wrote {args.save}", flush=True)
    rows = run(args, table)
    summary = summarise(rows)
    if not rows:
        return
    print(json.dumps(summary, indent=1))
    if not table.measured:
        print("nothing was measured in this table, so nothing is written")
        return
    environment = {"dataset": table.source, "pairs": table.pairs, "torch": torch.__version__}
    print("wrote", write("llm-policy", rows, summary, environment, out=args.out))


if __name__ == "__main__":
    main()

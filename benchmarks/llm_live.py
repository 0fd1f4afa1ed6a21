"""The trained policy on shapes that no dataset has, against as many extra random configurations, on a GPU.

    python benchmarks/llm_live.py --policy policy.npz --cache FOLDER    # writes llm-live.json
    python benchmarks/llm_live.py --policy policy.npz --dry-run         # a modelled clock, writes nothing

Per shape: the rule's first 16 configurations are timed; then the policy, told of them, picks 16 more one
after another, and the control draws 16 more at random. Each side's best is frozen. Fresh processes then time
the two winners interleaved, beside the null (the control's winner against itself), and only that is
reported: on how many shapes the lower bound of the policy's winner over the control's lies above 1.02.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from common import write
from llm_policy import read

COMMON, EXTRA, MARGIN = 16, 16, 1.02
PROCESSES, ROUNDS, BLOCK_US = 2, 41, 200.0


def live_shapes(count: int, seed: int) -> list[str]:
    """Shapes off the grid of powers of two: multiples of 8, log-uniform, at most 4e11 FLOP."""
    import numpy as np

    rng = np.random.default_rng(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        m, n, k = (8 * round(float(2 ** rng.uniform(3, 10))) for _ in range(3))
        if 2 * m * n * k <= 4e11 and not {m, n, k} <= {64, 128, 256, 512, 1024, 2048, 4096, 8192}:
            found[f"{m}x{n}x{k}"] = None
    return list(found)


def stage_of(args: argparse.Namespace, seed: int) -> Any:
    """The GPU's, or the modelled clock's."""
    if args.dry_run:
        from sassafras.gemm.dry import DryStage

        return DryStage(args.cache, seed)
    from sassafras.gemm.stage import Stage

    return Stage(args.cache)


def choose(stage: Any, text: str, policy: Any, seed: int) -> dict[str, Any]:
    """Time the common start, then what the policy and what chance add; the best of each that is right."""
    import numpy as np
    import torch

    from sassafras.gemm.select import screen
    from sassafras.gemm.shapes import Shape
    from sassafras.llm.policy.table import unmeasured

    problem, configs = unmeasured(Shape.parse(text))
    operands = stage.operands(problem.shape, seed)
    operands.calibrate(stage.gemm_ex("nn", operands, strict=True))
    times: dict[int, float] = {}

    def look(indices: list[int]) -> None:
        for index in indices:
            enqueue = stage.ours(configs[index], operands)
            timed = screen(stage, [(index, enqueue)], 10.0, 60.0, 5)
            right = timed and not operands.check(enqueue).why
            times[index] = timed[0][0] if right else float("inf")

    common = list(range(min(COMMON, len(configs))))
    look(common)
    features, extra = policy.inputs(problem), []
    with torch.no_grad():
        for _ in range(min(EXTRA, len(configs) - len(common))):
            seen = [i for i in times if np.isfinite(times[i])]
            speed = [float(np.log(times[seen[0]] / times[i])) for i in seen]
            scores = policy.scores(features, seen, speed)
            scores[[i for i in times if i not in seen]] = float("-inf")
            extra.append(int(torch.argmax(scores)))
            look(extra[-1:])
    rest = np.random.default_rng(seed).permutation([i for i in range(len(configs)) if i not in common])
    drawn = rest[: len(extra)].tolist()
    look([i for i in drawn if i not in times])

    def best(indices: list[int]) -> tuple[str, float]:
        index = min(indices, key=lambda i: times[i])
        return configs[index].name, times[index]

    record: dict[str, Any] = {"shape": text, "configurations": len(configs)}
    for side, indices in (("rule", common), ("policy", common + extra), ("control", common + drawn)):
        record[side], record[f"{side}_us"] = best(indices)
    return record


def compare(stage: Any, record: dict[str, Any], seed: int) -> dict[str, Any]:
    """Paired ratios control / policy and control / control of the frozen winners."""
    from sassafras.device.cuda.timing import launches_a_block
    from sassafras.gemm.families import parse
    from sassafras.gemm.graphs import paired, timed
    from sassafras.gemm.shapes import Shape

    operands = stage.operands(Shape.parse(record["shape"]), seed)
    operands.calibrate(stage.gemm_ex("nn", operands, strict=True))
    names = [record["control"], record["policy"], record["control"]]
    calls = [stage.ours(parse(name), operands) for name in names]
    for name, enqueue in zip(names, calls, strict=True):
        if why := operands.check(enqueue).why:
            return {"error": f"{name}: {why}"}
    blocks = [stage.block(call, launches_a_block(record["control_us"], BLOCK_US)) for call in calls]
    table = timed(stage.gpu, stage.watch, blocks, ROUNDS)
    for name, enqueue in zip(names, calls, strict=True):
        if why := operands.check(enqueue).why:
            return {"error": f"{name}, after timing: {why}"}
    return {
        "ratios": [float(r) for r in paired(table, 0, 1)], "null": [float(r) for r in paired(table, 0, 2)]
    }  # fmt: skip


def worker(args: argparse.Namespace) -> None:
    """Work off what the journal lacks: ``choose``, or ``compare`` number N."""
    import torch

    from sassafras.llm.policy.model import Policy

    torch.set_num_threads(1)
    records = read(args.journal)
    began = {(r["step"], r["shape"]) for r in records if "begun" in r}
    done = {(r["step"], r["shape"]) for r in records if "begun" not in r}
    chosen = {r["shape"]: r for r in records if r["step"] == "choose" and "policy" in r}
    step, seed = args.worker, args.seed + (0 if args.worker == "choose" else 1000 + int(args.worker[7:]))
    stage, policy = stage_of(args, seed), Policy.load(args.policy)
    for text in live_shapes(args.shapes, args.seed):
        if (step, text) in done or (step != "choose" and text not in chosen) or time.time() > args.until:
            continue
        if (step, text) in began:  # it ended a worker before
            note(args.journal, {"step": step, "shape": text, "error": "the worker ended in it"})
            continue
        note(args.journal, {"step": step, "shape": text, "begun": True})
        found = choose(stage, text, policy, seed) if step == "choose" else compare(stage, chosen[text], seed)
        note(args.journal, {"step": step, "shape": text, **found})


def note(path: Path, record: dict[str, Any]) -> None:
    """Append to the journal, on disk at once."""
    with path.open("a") as file:
        file.write(json.dumps(record) + "\n")
        file.flush()
        os.fsync(file.fileno())


def summarise(records: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows with hierarchical intervals, and how often the policy's winner beats the control's."""
    from sassafras.core.statistics import hierarchical_bootstrap, hierarchical_median

    rows = []
    for head in (r for r in records if r["step"] == "choose" and "policy" in r):
        mine = [r for r in records if r["shape"] == head["shape"] and "ratios" in r]
        row = {name: value for name, value in head.items() if name != "step"}
        if len(mine) >= 2:
            for key, name in (("ratios", "speedup"), ("null", "null")):
                interval = hierarchical_bootstrap([r[key] for r in mine])
                row[name] = hierarchical_median([r[key] for r in mine])
                row[f"{name}_low"], row[f"{name}_high"] = interval.low, interval.high
        rows.append(row)
    full = [row for row in rows if "speedup" in row]
    summary: dict[str, Any] = {"shapes": len(rows), "measured": len(full)}
    if full:
        summary["policy_beats_control_by_2_percent"] = sum(row["speedup_low"] > MARGIN for row in full)
        summary["control_beats_policy_by_2_percent"] = sum(row["speedup_high"] < 1 / MARGIN for row in full)
        summary["median_speedup_over_control"] = statistics.median(row["speedup"] for row in full)
    return rows, summary


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--policy", type=Path, required=True, help="of llm_policy.py --save")
    parser.add_argument("--cache", type=Path, help="folder of compiled cubins")
    parser.add_argument("--shapes", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=420.0)
    parser.add_argument("--journal", type=Path, default=Path("llm-live.jsonl"))
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--out")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, default=float("inf"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(args)
        return
    if not args.policy.exists():
        parser.error(f"there is no policy at {args.policy}: llm_policy.py --save writes one")
    until = time.time() + args.seconds
    for step in ("choose", *(f"compare{i}" for i in range(PROCESSES))):
        for _ in range(10):  # a worker that dies costs one shape
            command = [sys.executable, __file__, *sys.argv[1:], "--worker", step, "--until", str(until)]
            if subprocess.run(command, check=False).returncode == 0:
                break
    rows, summary = summarise(read(args.journal))
    print(json.dumps(summary, indent=1))
    if args.dry_run:
        print("on a modelled clock: nothing is written")
        return
    from sassafras.device.cuda.environment import environment

    print("wrote", write("llm-live", rows, summary, environment(), seed=args.seed, out=args.out))


if __name__ == "__main__":
    main()

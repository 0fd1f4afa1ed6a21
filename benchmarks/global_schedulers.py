"""Global schedulers beside local search, on the timing model: writes global-schedulers-modelled.json. No GPU.

    python benchmarks/global_schedulers.py --spaces blocks --strategies greedy,list --folder runs  # copies
    python benchmarks/global_schedulers.py [--kernels softmax,attention] [--spaces swaps,control,...] \\
        [--strategies greedy,anneal,list,beam,exact] [--evaluations 300] [--exact-seconds 30] [--folder runs]

Each kernel of the suite (its headline case) is searched by every strategy in every space, with the same
number of evaluations; the exact solver, which thinks longer than it evaluates, has a limit of seconds too.
Beside them stands the bound: the least that the timing model can say of any schedule of the space
(`api/instruction_costs.py`), with the exact solver's help (--bound-seconds a block). Every schedule is
judged by the validator before it is modelled; refusals are counted, and there should be none. All figures
are modelled ratios, not measurements.

With --folder, the searches of each kernel and space are kept in a file when they end, and not run again.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from common import geomean, write

Row = dict[str, Any]
STRATEGIES = ("greedy", "anneal", "list", "beam", "exact")
SPACES = ("swaps", "control")


def kernel_rows(
    name: str, space: str, strategies: list[str], evaluations: int, seconds: float, bound_seconds: float,
    seeds: int, kept: list[Row] | None = None,
) -> list[Row]:  # fmt: skip
    """One kernel in one space: a row a strategy; the bound is worked out anew for searches that were kept."""
    from sassafras.api.instruction_costs import bound, informed
    from sassafras.core import SassafrasError
    from sassafras.schedule.spaces import space_of
    from sassafras.targets import load
    from sassafras.timing_model import ModelDevice
    from sassafras.validate import Validator

    family, _, shape = name.partition("/")
    workload = load(f"suite:{family}")
    case = workload.case(shape or None)
    kernel = workload.build(case, "sm_90a")
    head: Row = {"kernel": name, "shape": case.name, "space": space, "modelled": True}
    device = ModelDevice()
    try:
        device.open(workload, case, kernel)
        made = informed(space_of(space, Validator), workload, case)
        opened = made(kernel)
    except SassafrasError as error:
        return [head | {"error": str(error)}]
    if space in ("renaming", "blocks") and not opened.via:
        return [head | {"error": "there is no such copy of this kernel"}]
    if space == "blocks":
        from sassafras.sass import Program
        from sassafras.schedule.blocks import move

        copy = move(Program.parse(kernel.cubin), kernel.name)
        head |= {"moved_up": copy.up, "moved_down": copy.down}
    base = device.run(opened.candidate(opened.start())).cycles
    assert base is not None
    began = time.monotonic()
    least = bound(device, opened, bound_seconds)
    builder = opened.constructor
    start = opened.start()
    head |= {
        "instructions": len(opened.function), "blocks": len(builder.parts), "baseline_cycles": base,
        "bound_cycles": least.cycles, "bound_speedup": base / least.cycles, "limited_by": least.limit,
        "alone_cycles": least.latency, "throughput_cycles": least.throughput,
        "proved": round(least.proved, 3), "bound_took_s": round(time.monotonic() - began, 2),
        # the largest block of one warp alone: the compiler's order, the list scheduler's
        "hot_block_cycles": builder.cycles(start.order, builder.parts[0]) if builder.parts else None,
        "hot_block_listed": _listed(builder, start),
    }  # fmt: skip
    validator = Validator(kernel.cubin, kernel.name)
    for proved in opened.via:  # its schedules are judged once the copy is proved
        assert validator.via(proved).ok
    if kept is None:
        kept = []
        for strategy in strategies:
            for seed in range(1 if strategy == "exact" else seeds):
                kept.append(
                    _search(strategy, made(kernel), device, validator, kernel, evaluations, seconds, seed)
                )
                print(f"{name} {space} {strategy} {seed}: modelled {kept[-1]['speedup']:.4f}", flush=True)
    rows = []
    for found in kept:
        row = found | head
        if row["best_cycles"] < least.cycles:
            raise AssertionError(f"{name} {space} {row['strategy']}: faster than the bound, which is none")
        rows.append(row | {"share_of_room": _share(base, row["best_cycles"], least.cycles)})
    print(f"{name} {space}: at most {head['bound_speedup']:.3f}, by {least.limit}", flush=True)
    return rows


def _search(
    strategy: str, space: Any, device: Any, validator: Any, kernel: Any, evaluations: int, seconds: float,
    seed: int,
) -> Row:  # fmt: skip
    from sassafras import search
    from sassafras.core import Budget
    from sassafras.evaluate import KernelEvaluator

    judge = KernelEvaluator(device, lambda _, cubin: validator.check(cubin), kernel)
    curve: list[list[float]] = []

    def note(p: Any) -> None:
        best = round(1.0 / p.best.cost, 6)
        if not curve or best > curve[-1][1]:
            curve.append([p.evaluations, best])

    limit = Budget(evaluations=evaluations, seconds=seconds if strategy == "exact" else None)
    found = search.run(
        search.get(strategy), space, judge, limit, seed=seed, progress=note,
    )  # fmt: skip
    refused = sum(n for verdict, n in found.verdicts.items() if verdict != "modelled")
    return {
        "strategy": strategy, "seed": seed, "speedup": device.remeasure(found.best.candidate).modelled_ratio,
        "selected_speedup": 1.0 / found.best.cost,
        "best_cycles": found.best.outcome.cycles, "evaluations": found.evaluations,
        "seconds": round(found.seconds, 2), "ended": found.reason, "refused": refused, "curve": curve,
    }  # fmt: skip


def _listed(builder: Any, start: Any) -> int | None:
    if not builder.parts:
        return None
    part = builder.parts[0]
    made = builder.construct(start, part, builder.priorities(start, part, "path"), 1e6, "path")
    return None if made is None else int(builder.cycles(made.order, part))


def _share(base: float, best: float, bound: float) -> float | None:
    """Of what the bound leaves, the part that was won; None where it leaves nothing."""
    return round((base - best) / (base - bound), 4) if base - bound > 1e-9 else None


def summarise(rows: list[Row]) -> Row:
    """By space and strategy: geometric mean, on how many kernels it is the best, and the bound."""
    good = [r for r in rows if "error" not in r]
    out: Row = {"modelled": True, "kernels": sorted({r["kernel"] for r in good}), "spaces": {}}
    for space in sorted({r["space"] for r in good}):
        mine = [r for r in good if r["space"] == space]
        kernels = sorted({r["kernel"] for r in mine})
        by: dict[str, dict[str, float]] = {}
        for strategy in dict.fromkeys(r["strategy"] for r in mine):
            by[strategy] = {
                k: geomean(r["speedup"] for r in mine if r["kernel"] == k and r["strategy"] == strategy)
                or 1.0
                for k in kernels
            }
        best = {k: max(by[s][k] for s in by) for k in kernels}
        out["spaces"][space] = {
            "geomean": {s: geomean(v.values()) for s, v in by.items()},
            "best_on": {s: sum(v[k] >= best[k] - 1e-4 for k in kernels) for s, v in by.items()},
            "best_of_all": geomean(best.values()),
            "bound": geomean({r["kernel"]: r["bound_speedup"] for r in mine}.values()),
            "evaluations": sum(r["evaluations"] for r in mine),
            "refused": sum(r["refused"] for r in mine),
        }
    out["errors"] = [{k: r[k] for k in ("kernel", "space", "error")} for r in rows if "error" in r]
    return out


def main() -> None:
    """Run what is missing, print and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kernels", help="by default the suite's headline cases")
    parser.add_argument("--spaces", default=",".join(SPACES))
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    parser.add_argument("--evaluations", type=int, default=300)
    parser.add_argument("--exact-seconds", type=float, default=30.0)
    parser.add_argument("--bound-seconds", type=float, default=3.0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--kept-only", action="store_true", help="work nothing out: what --folder holds")
    parser.add_argument("--out")
    options = parser.parse_args()
    from sassafras.suite import names
    from sassafras.timing_model import ModelDevice

    rows: list[Row] = []
    for name in options.kernels.split(",") if options.kernels else names():
        for space in options.spaces.split(","):
            kept = options.folder / f"{name.replace('/', '-')}--{space}.json" if options.folder else None
            before = json.loads(kept.read_text()) if kept is not None and kept.exists() else None
            if options.kept_only:
                rows += before or []
                continue
            if before is not None and "error" in before[0]:
                rows += before
                continue
            made = kernel_rows(
                name, space, options.strategies.split(","), options.evaluations, options.exact_seconds,
                options.bound_seconds, options.seeds, before,
            )  # fmt: skip
            if kept is not None:
                kept.parent.mkdir(parents=True, exist_ok=True)
                kept.write_text(json.dumps(made))
            rows += made
    summary = summarise(rows)
    path = write("global-schedulers-modelled", rows, summary, ModelDevice().environment(), out=options.out)
    print(json.dumps(summary, indent=1), f"\nwrote {path.name}")


if __name__ == "__main__":
    main()

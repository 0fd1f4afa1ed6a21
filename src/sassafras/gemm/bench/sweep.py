"""A quick look at how fast every family is: ``python -m sassafras.gemm.bench.sweep PLAN.json``.

Runs under `bringup.supervise`. Not a benchmark: one process, few rounds, nothing is chosen apart from what is
reported. It tells which families and parameters deserve a full run, and how well `estimate_us` ranks.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..configs import registry
from ..configs.registry import Config
from ..problem.shape import Shape, cuda_l2_grid, stratified
from ..select.cost_model import estimate_us
from .bringup import LOST, append
from .bringup_plan import BringupJob

#: contestants of each family, best estimate first
MOST = {
    "SmallConfig": 8,
    "FallbackConfig": 4,
    "SplitKConfig": 24,
    "SplitKConfig+shared": 32,
    "PersistentConfig": 24,
    "UnalignedConfig": 24,
    "TwoPassSplitKConfig": 12,
}
#: shapes off the grid: few rows, odd multiples of eight, rows of any length
EXTRA = (
    Shape(8, 4096, 4096),
    Shape(16, 14336, 4096),
    Shape(40, 4096, 14336),
    Shape(96, 6144, 4096),
    Shape(200, 4096, 4096),
    Shape(296, 11008, 4096),
    Shape(1000, 1000, 1000),
    Shape(2040, 2040, 2040),
    Shape(257, 251, 4099),
    Shape(1013, 1019, 1021),
    Shape(2047, 2049, 127),
)


def shapes(count: int = 52, seed: int = 1) -> tuple[Shape, ...]:
    """Representative shapes: a stratified sample of the grid, and `EXTRA`."""
    return (*stratified(cuda_l2_grid(), count, seed), *EXTRA)


def contestants(shape: Shape, excluded: frozenset[str] = frozenset()) -> list[Config]:
    """What to time: those of each family that the estimate likes best, at most four an instance."""
    by_family: dict[str, list[Config]] = {}
    for config in registry.legal(shape):
        if config.instance.name not in excluded:
            by_family.setdefault(registry.kind(config), []).append(config)
    chosen: list[Config] = []
    for name, members in by_family.items():
        members.sort(key=lambda c: (estimate_us(c, shape), c.name))
        seen: dict[str, int] = {}
        for config in members:
            key = config.instance.name
            if seen.get(key, 0) < 4 and len([c for c in chosen if registry.kind(c) == name]) < MOST[name]:
                seen[key] = seen.get(key, 0) + 1
                chosen.append(config)
    return chosen


def sweep(tools: Any, shape: Shape, excluded: frozenset[str]) -> dict[str, Any]:
    """Times of the best cuBLASLt algorithm of either layout and of our contestants, microseconds."""
    from sassafras.cuda.cublas import CublasError
    from sassafras.cuda.driver import CudaError

    from ..problem.shape import LAYOUTS
    from .operands import Operands
    from .tune import Screen

    operands = Operands(shape, 3)
    operands.calibrate(tools.gemm_ex("nn", operands, strict=True))
    screen = Screen(tools)
    record: dict[str, Any] = {"shape": str(shape), "band": shape.band, "lt": {}}
    for layout in LAYOUTS:
        problem = tools.lt.problem(shape, layout)
        addresses = operands.addresses(layout)
        usable = []
        for algorithm in tools.lt.candidates(problem):
            enqueue = tools.lt.bind(problem, algorithm, *addresses)
            try:
                enqueue()
                tools.gpu.sync()
            except CublasError:
                continue
            usable.append((algorithm, enqueue))
        if usable:
            guess = min(tools.watch.one(enqueue) for _, enqueue in usable[:2])
            ranked = screen.rough(usable, guess)[:4]
            record["lt"][layout] = min(us for us, _ in screen.final(ranked, 0.01, 200.0))
        problem.close()
    baseline = min(record["lt"].values())
    wrong: list[str] = []
    right: list[tuple[Any, Any]] = []
    for config in contestants(shape, excluded):
        try:
            enqueue = tools.ours(config, operands)
            check = operands.check(enqueue)
        except CudaError as error:
            if error.sticky:
                raise
            wrong.append(f"{config.name}: {error}")
            continue
        if check.why:
            wrong.append(f"{config.name}: {check.why}")
        else:
            right.append((config, enqueue))
    ranked = screen.rough(right, baseline)
    final = screen.final(ranked[:6], 0.02, 200.0)
    # the three best in the modes that let launches overlap, checked like the others
    twins: list[tuple[float, Any, Any]] = []
    for us, plain in final[:3]:
        for config in plain.in_modes()[1:]:
            enqueue = tools.ours(config, operands)
            check = operands.check(enqueue)
            if check.why:
                wrong.append(f"{config.name}: {check.why}")
            else:
                twins.append((us, config, enqueue))
    overlapping = [[c.name, round(us, 3)] for us, c in screen.final(twins, 0.02, 200.0)]
    best: dict[str, Any] = {}
    for us, config, _ in ranked:
        name = registry.kind(config)
        if name not in best:
            best[name] = _entry(config, us, baseline)
    return {
        **record,
        "baseline_us": baseline,
        "wrong": wrong,
        "best": best,
        "ours": _entry(final[0][1], final[0][0], baseline) if final else None,
        "overlapping": overlapping,
        "times": [[c.name, round(us, 3), round(estimate_us(c, shape), 3)] for us, c, _ in ranked],
    }


def _entry(config: Config, us: float, baseline: float) -> dict[str, Any]:
    return {"config": config.name, "us": round(us, 3), "ratio": round(baseline / us, 4)}


def jobs(wanted: Iterable[Shape]) -> list[BringupJob]:
    """One job a shape."""
    return [BringupJob("sweep", str(shape), (str(shape),)) for shape in wanted]


def line(record: dict[str, Any]) -> str:
    """One line for the screen."""
    if "baseline_us" not in record:
        return f"{record['job']}: {record['checks'][0]['notes']}"
    each = ", ".join(
        f"{name.removesuffix('Config')} {entry['ratio']:.3f} {entry['config']}"
        for name, entry in sorted(record["best"].items(), key=lambda item: -item[1]["ratio"])
    )
    ours = record["ours"]
    head = f"{record['shape']}: AutoTuning {record['baseline_us']:.2f} us, "
    head += f"ours {ours['us']:.2f} ({ours['ratio']:.3f})" if ours else "ours none"
    if record.get("overlapping"):
        name, us = record["overlapping"][0]
        head += f", overlapping {us:.2f} ({record['baseline_us'] / us:.3f}, {name})"
    return f"{head} | {each}" + (f" | {len(record['wrong'])} WRONG" if record["wrong"] else "")


def main(path: str) -> int:
    """Work a plan off."""
    from sassafras.cuda.driver import CudaError

    from .gpu_context import GpuContext

    plan = json.loads(Path(path).read_text())
    journal = Path(plan["journal"])
    excluded = frozenset(json.loads(os.environ.get("SASSAFRAS_SWEEP_EXCLUDED", "[]")))
    tools = GpuContext(Path(plan["cache"]) if plan.get("cache") else None)
    for entry in plan["jobs"]:
        job = BringupJob(entry["config"], entry["variant"], tuple(entry["shapes"]))
        append(journal, {"begun": job.name})
        started = time.perf_counter()
        record: dict[str, Any] = {"job": job.name, "right": True, "checks": []}
        lost = False
        try:
            record |= sweep(tools, Shape.parse(job.shapes[0]), excluded)
        except Exception as error:
            lost = isinstance(error, CudaError) and error.sticky
            notes = [f"{type(error).__name__}: {error}"]
            record |= {
                "right": False,
                "checks": [{"shape": job.shapes[0], "right": False, "notes": notes}],
            }
        record["seconds"] = round(time.perf_counter() - started, 3)
        append(journal, record)
        print(line(record), flush=True)
        if lost:
            os._exit(LOST)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

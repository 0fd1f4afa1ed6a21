"""Is a cuBLASLt algorithm as fast when it is given more workspace than it asked for?

    python benchmarks/hgemm_workspace.py --cache .carry/gemm      # writes hgemm-workspace.json

A sample of the grid: every candidate of both layouts, called with all of the workspace and with what it asks
for (nothing, mostly), beside our best kernel of the dataset; all of a shape interleaved in one process. Of a
few shapes the captured graphs are printed, and counted for several sizes of workspace
(docs/experiments/2026-11-22-hgemm-workspace.md).
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from changed_kernel import arguments, interleaved, without_gpu
from common import geomean, write

ROUNDS = 9
#: candidates of a layout that are timed at length
KEPT = 3
SIZES = {"all": 128 << 20, "4MiB": 4 << 20, "asked": 0}
#: bytes with which a call's graph is counted
ROOMS = (0, 4, 16, 256, 4096, 65536, 1 << 20, 4 << 20)
#: seen to be served faster by the portfolio than AutoTuning was (hgemm-offline.json)
SEEN = (
    "2048x8192x512", "8192x2048x512", "4096x4096x512", "16384x1024x512", "1024x16384x1024", "8192x8192x512",
)  # fmt: skip


def answer(stage: Any, shape: Any, graphs: Path | None) -> dict[str, Any]:
    """Microseconds of each candidate with each size of workspace, and of ours."""
    from sassafras.gemm.cublas import LAYOUTS, CublasError
    from sassafras.gemm.entrants import recorded

    operands = stage.operands(shape, 3)
    operands.calibrate(stage.gemm_ex("nn", operands, strict=True))
    made: list[tuple[str, Any]] = []
    asks: dict[str, int] = {}
    problems = {layout: stage.lt.problem(shape, layout) for layout in LAYOUTS}
    for layout, problem in problems.items():
        proposed = {a.blob: a for a in reversed(stage.lt.candidates(problem))}
        for index, algorithm in enumerate(reversed(proposed.values())):
            tag = f"{layout} {index}"
            for size, bytes_ in SIZES.items():
                if size == "4MiB" and bytes_ < algorithm.workspace:
                    continue
                given = replace(algorithm, workspace=max(bytes_, algorithm.workspace))
                enqueue = stage.lt_call(problem, given, operands)
                try:
                    enqueue()
                    stage.gpu.sync()
                except CublasError:
                    break
                asks[tag] = algorithm.workspace
                made.append((f"{tag} {size}", enqueue))
    rough = interleaved(stage, made, 2)
    best = sorted({name.rsplit(" ", 1)[0] for name in rough}, key=lambda t: _least(rough, t))
    kept = [t for layout in LAYOUTS for t in [t for t in best if t.startswith(layout)][:KEPT]]
    finalists = [(name, enqueue) for name, enqueue in made if any(name.startswith(t + " ") for t in kept)]
    for layout in LAYOUTS:
        for config in recorded(shape, layout, 1):
            finalists.append((f"ours {config.name}", stage.ours(config, operands)))
    us = interleaved(stage, finalists, ROUNDS)
    row = {"shape": str(shape), "band": shape.band, "us": us, "asks": {t: asks[t] for t in kept}}
    if graphs:
        for name, enqueue in finalists:
            if name.startswith(kept[0] + " ") and not name.endswith("4MiB"):
                graphs.mkdir(parents=True, exist_ok=True)
                _nodes(stage, enqueue, graphs / f"{shape}-{name.replace(' ', '-')}.dot")
        layout = kept[0].split()[0]
        algorithm = stage.lt.candidates(problems[layout])[0]
        row["nodes"] = {
            size: _nodes(stage, stage.lt_call(problems[layout], replace(algorithm, workspace=size), operands))
            for size in ROOMS
            if size >= algorithm.workspace
        }
    for problem in problems.values():
        problem.close()
    return row


def _least(us: dict[str, float], tag: str) -> float:
    return min(value for name, value in us.items() if name.startswith(tag + " "))


def _nodes(stage: Any, enqueue: Any, path: Path | None = None) -> int:
    """Nodes of two calls as a graph, which is written in text, too."""
    from sassafras.device.cuda.driver import call

    driver = stage.gpu.driver
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    call(driver.cuStreamBeginCapture, stage.gpu.stream, mode)
    enqueue()
    enqueue()
    graph = call(driver.cuStreamEndCapture, stage.gpu.stream)
    if path:
        call(driver.cuGraphDebugDotPrint, graph, str(path).encode(), 1)  # verbose
    _, count = call(driver.cuGraphGetNodes, graph, 0)
    call(driver.cuGraphDestroy, graph)
    return int(count)


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Best with all of the workspace over best with what was asked for, by band; and against ours."""
    found: dict[str, Any] = {"shapes": len(rows)}
    for band in ["all", *dict.fromkeys(row["band"] for row in rows)]:
        of = [row for row in rows if band in ("all", row["band"])]
        ratios, one = [], []
        for row in of:
            lt = {n: us for n, us in row["us"].items() if not n.startswith("ours")}
            full = min(us for n, us in lt.items() if n.endswith(" all"))
            asked = min(us for n, us in lt.items() if n.endswith(" asked"))
            ratios.append(full / asked)
            best = min((n for n in lt if n.endswith(" all")), key=lt.__getitem__).removesuffix(" all")
            one.append(lt[f"{best} all"] / lt[f"{best} asked"])
        found[band] = {
            "shapes": len(of), "all_over_asked": geomean(ratios), "same_algorithm": geomean(one),
            "highest": max(ratios), "lowest": min(ratios), "above_1.01": sum(r > 1.01 for r in ratios),
        }  # fmt: skip
    return found


def main() -> int:
    """Ask all shapes."""
    parser = arguments(__doc__, prepare=False)
    parser.add_argument("--shapes", type=int, default=160)
    given = parser.parse_args()
    if without_gpu():
        return 2
    from sassafras.device.cuda import environment
    from sassafras.gemm.shapes import Shape, cuda_l2_grid, stratified
    from sassafras.gemm.stage import Stage

    seen = [Shape.parse(text) for text in SEEN]
    sample = [s for s in stratified(cuda_l2_grid(), given.shapes, 1) if s not in seen]
    # so that all bands are there when time ends early
    shuffled = [*seen, *(sample[i] for i in np.random.default_rng(1).permutation(len(sample)))]
    graphs = given.out / "graphs"
    begin, stage = time.perf_counter(), Stage(given.cache)
    rows: list[dict[str, Any]] = []
    for shape in shuffled:
        if time.perf_counter() - begin > given.seconds:
            break
        rows.append(answer(stage, shape, graphs if str(shape) in SEEN[:3] else None))
    write("hgemm-workspace", rows, summary(rows), environment(), seed=3, out=given.out)
    print(summary(rows), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

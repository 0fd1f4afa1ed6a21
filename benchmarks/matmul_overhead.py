"""CPU time per call of sassafras.matmul and torch.matmul, interleaved; writes matmul-overhead.json.

    python benchmarks/matmul_overhead.py [--rounds 60] [--calls 100] [--cache FOLDER] [--dry-run]

A round enqueues `calls` calls of each contestant and waits for the GPU, untimed, before the next: the queue
never fills, so what is timed is Python, the launcher or torch, and the driver. Figures are microseconds a
call: the median and the 1 % quantile over rounds, and the paired difference with a bootstrap interval. Rows:
who serves (ours, torch), either layout, with and without `out`, sassafras.linear with B's transpose as the
weight, the Python launcher, the operator that torch.compile and autograd use. Then the chooser's first
answers for shapes never tuned.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from common import command_line, ends, write

SHAPES = ((64, 64, 64), (256, 256, 256), (64, 64, 4096), (1024, 1024, 64))


def contestants(a: Any, b: Any, out: Any, room: Any) -> dict[str, Any]:
    """name -> a call without arguments."""
    import torch

    import sassafras

    weight, functional = b.t(), torch.nn.functional.linear
    found = {
        "torch": lambda: torch.matmul(a, b),
        "sassafras": lambda: room.matmul(a, b),
        "torch_out": lambda: torch.matmul(a, b, out=out),
        "sassafras_out": lambda: room.matmul(a, b, out),
        "torch_linear": lambda: functional(a, weight),
        "sassafras_linear": lambda: sassafras.linear(a, weight),
        "operator": lambda: room._mm(a, b),
    }
    if room._engine is not None:
        slow = _python_launcher(room, a, b)
        if slow is not None:
            found["python_launcher"] = lambda: slow(a, b, out)
    return found


def _python_launcher(room: Any, a: Any, b: Any) -> Any:
    """The launcher in Python with the same plan, beside the compiled one."""
    from sassafras.gemm.matmul.launcher_python import PythonLauncher

    engine = room._engine
    other = PythonLauncher(engine.driver, engine.torch)
    compiled, engine.launcher = engine.launcher, other
    try:
        for call in ((a, b), (a, b, a.new_empty((a.shape[0], b.shape[1])))):
            engine.serve(other.key(*call))
    finally:
        engine.launcher = compiled
    return other


def timed(calls: dict[str, Any], rounds: int, count: int, sync: Any) -> dict[str, list[float]]:
    """name -> microseconds a call, one figure a round; contestants forward and backward by turns."""
    names = list(calls)
    times: dict[str, list[float]] = {name: [] for name in names}
    for index in range(rounds + 2):
        for name in names if index % 2 == 0 else names[::-1]:
            call = calls[name]
            sync()
            begin = time.perf_counter()
            for _ in range(count):
                call()
            spent = 1e6 * (time.perf_counter() - begin) / count
            sync()
            if index >= 2:
                times[name].append(spent)
    return times


def row(name: str, times: dict[str, list[float]], pairs: dict[str, str]) -> dict[str, Any]:
    """Medians, and each contestant's paired difference from torch."""
    import numpy as np

    from sassafras.core.statistics import bootstrap_median

    found: dict[str, Any] = {"case": name}
    for who, values in times.items():
        found[f"{who}_us"] = float(np.median(values))
        found[f"{who}_p01_us"] = float(np.quantile(values, 0.01))
    for who, torchs in pairs.items():
        if who in times:
            difference = np.array(times[who]) - np.array(times[torchs])
            found[f"{who}_over_torch_us"] = float(np.median(difference))
            found |= ends(f"{who}_over_torch", bootstrap_median(difference))
    return found


def choices() -> dict[str, Any]:
    """Microseconds of the chooser's first answers for shapes never tuned."""
    import numpy as np

    from sassafras.gemm.bench.grids import drawn
    from sassafras.gemm.select.selector import Selector
    from sassafras.gemm.select.table import TunedTable, shipped_path

    table = TunedTable.load(shipped_path("NVIDIA H200"))
    chooser, shapes = Selector(table), drawn()["judge-1"]
    chooser.choose(shapes[0], "tn", lambda c: True)
    times = []
    for shape in shapes[1:]:
        begin = time.perf_counter()
        chooser.choose(shape, "tn", lambda c, s=shape: c.layout == "tn" and c.why_illegal(s) is None)  # type: ignore[misc]
        times.append(1e6 * (time.perf_counter() - begin))
    found = {"case": "choosing", "median_us": float(np.median(times)), "worst_us": max(times)}
    return found | {"rows": len(table)}


def main() -> int:
    """Measure and write; 1 when ours costs more than torch and one microsecond anywhere."""
    parser = command_line(__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--cache", type=Path, help="folder of compiled kernels")
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, where torch serves everything")
    given = parser.parse_args()
    if given.cache:
        os.environ["SASSAFRAS_GEMM_CACHE"] = str(given.cache)
    import torch

    from sassafras.cuda.environment import environment
    from sassafras.gemm.configs.registry import legal
    from sassafras.gemm.matmul import api as room
    from sassafras.gemm.problem.shape import Shape
    from sassafras.gemm.select.selector import Selector
    from sassafras.gemm.select.table import TableRow, TunedTable

    device = "cpu" if given.dry_run else "cuda"
    sync = (lambda: None) if given.dry_run else torch.cuda.synchronize
    if not given.dry_run:
        room._set_up()
        room.settle()
        print("launcher:", room.status()["launcher"], room.status()["notes"], flush=True)
    rows: list[dict[str, Any]] = []
    pairs = {"sassafras": "torch", "sassafras_out": "torch_out", "sassafras_linear": "torch_linear"}
    pairs |= {"operator": "torch", "python_launcher": "torch_out"}
    for m, n, k in ((m // 8, n // 8, k // 8) if given.dry_run else (m, n, k) for m, n, k in SHAPES):
        for layout in ("nn", "tn"):
            for member in ("ours", "torch"):
                a = torch.randn(m, k, device=device).half()
                b = torch.randn(k, n, device=device).half()
                b = b if layout == "nn" else b.t().contiguous().t()
                out = torch.empty(m, n, device=device, dtype=torch.float16)
                if room._engine is not None:
                    shape = Shape(m, n, k)
                    config = next((c for c in legal(shape) if c.layout == layout), None)
                    mine = ((config, 1.0 if member == "ours" else 9.0),) if config else ()
                    room._engine.forget()
                    room._engine.gpu(0).chooser = Selector(
                        TunedTable({}, [TableRow(shape, layout, mine, 2.0)])
                    )
                calls = contestants(a, b, out, room)
                for call in calls.values():
                    call()
                room.settle()
                for call in calls.values():
                    call()
                found = row(
                    f"{m}x{n}x{k} {layout} {member}", timed(calls, given.rounds, given.calls, sync), pairs
                )
                found["served"] = [p["member"] for p in room.status()["problems"]]
                print(json.dumps(found), flush=True)
                rows.append(found)
    rows.append(choices())
    over = [r["sassafras_over_torch_us"] for r in rows if "sassafras_over_torch_us" in r]
    ours = [r["sassafras_over_torch_us"] for r in rows if r.get("served") == ["ours"]]
    summary = {
        "worst_over_torch_us": max(over),
        "worst_over_torch_us_ours": max(ours, default=None),
        "choosing_us": next(r["median_us"] for r in rows if r["case"] == "choosing"),
        "launcher": room.status()["launcher"],
        "modelled": given.dry_run,
    }
    name = "matmul-overhead" + ("-dry" if given.dry_run else "")
    path = write(name, rows, summary, environment(), out=given.out)
    print(json.dumps(summary), path.name)
    return 1 if not given.dry_run and max(over) > 1.0 else 0


if __name__ == "__main__":
    sys.exit(main())

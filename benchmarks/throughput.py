"""Legal candidates a second: proposed, checked and emitted as cubin bytes. Writes throughput.json.

    python benchmarks/throughput.py [--seconds 2] [--out FOLDER]

One core, no GPU. A candidate is a move drawn at random from the schedule before it (two in three are kept as
the next start, so that the walk goes on), with its stall counts settled, and the cubin of the result. The
`moves="all"` space is measured, and beside it how many of the candidates of a sample the independent
validator approves.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from typing import Any

import numpy as np
from common import ROOT, write

sys.path.insert(0, str(ROOT))

#: (workload, case), from small to large
KERNELS = (
    ("rmsnorm", None), ("softmax", None), ("layernorm", None), ("swiglu", None), ("gemm_leakyrelu", None),
    ("cross_entropy", None), ("gemv_int4", None), ("attention", None), ("attention", "1x4x4096x128"),
)  # fmt: skip


def measure(workload: str, case: str | None, seconds: float, seed: int) -> dict[str, Any]:
    """Candidates a second for one kernel."""
    from sassafras import suite
    from sassafras.schedule import ScheduleSpace
    from sassafras.validate import Validator

    loaded = suite.load(workload)
    which = loaded.case(case)
    kernel = loaded.build(which, "sm_90a")
    begin = time.perf_counter()
    space = ScheduleSpace(kernel)
    analysis = time.perf_counter() - begin
    rng = np.random.default_rng(seed)
    state = space.start()
    space.emit(state)
    space.sample(state, rng)  # the compiled parts are loaded now
    count = 0
    sampled = []
    begin = time.perf_counter()
    while (spent := time.perf_counter() - begin) < seconds:
        for _ in range(64):
            move = space.sample(state, rng)
            if move is None:
                continue
            new = space.apply(state, move)
            cubin = space.candidate(new).kernel.cubin
            count += 1
            if count % 1000 == 0:
                sampled.append(cubin)
            if count % 3:
                state = new
            if new.depth >= 2000:
                state = space.start()
    validator = Validator(kernel.cubin, kernel.name)
    approved = sum(validator.check(c).ok for c in sampled[:200])
    return {
        "kernel": f"{workload} {which.name}",
        "instructions": len(space.function),
        "movable": len(space.movable),
        "candidates_per_second": round(count / spent),
        "candidates": count,
        "analysis_seconds": round(analysis, 3),
        "validated": len(sampled[:200]),
        "approved": approved,
    }


def at_1000(rows: list[dict[str, Any]]) -> int:
    """Candidates a second at 1,000 instructions: microseconds a candidate, linear between the neighbours."""
    sizes = [r["instructions"] for r in sorted(rows, key=lambda r: r["instructions"])]
    times = [1e6 / r["candidates_per_second"] for r in sorted(rows, key=lambda r: r["instructions"])]
    return round(1e6 / float(np.interp(1000, sizes, times)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=2.0, help="per kernel")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="folder for throughput.json")
    given = parser.parse_args()
    import numba

    rows = []
    for workload, case in KERNELS:
        rows.append(measure(workload, case, given.seconds, given.seed))
        print(rows[-1], flush=True)
    rows.sort(key=lambda r: r["instructions"])
    summary = {
        "candidates_per_second_1000": at_1000(rows),
        "instructions": [rows[0]["instructions"], rows[-1]["instructions"]],
        "validated": sum(r["validated"] for r in rows),
        "approved": sum(r["approved"] for r in rows),
    }
    environment = {
        "gpu": None, "cores": 1, "machine": platform.machine(), "processor": _processor(),
        "python": platform.python_version(), "numpy": np.__version__, "numba": numba.__version__,
    }  # fmt: skip
    print(summary)
    print(write("throughput", rows, summary, environment, seed=given.seed, out=given.out))


def _processor() -> str | None:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:  # noqa: PTH123
            return next((x.split(":", 1)[1].strip() for x in lines if x.startswith("model name")), None)
    except OSError:
        return None


if __name__ == "__main__":
    main()

"""Evaluations a second on 1, 2, 4, ... workers of a cluster: `python benchmarks/cluster.py`.

Every step runs the same kernels for as long on that many workers; the ratio to one worker is the figure.
Without a GPU, `--device model` exercises it (one machine's CPUs share much more than GPUs do).
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from common import write

import sassafras


def main() -> None:
    """Measure, print and write `cluster.json`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", default="softmax,rmsnorm,layernorm")
    parser.add_argument("--workers", default="1,2,4")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--device", default="cuda", choices=("cuda", "model"))
    parser.add_argument("--address", default="auto")
    parser.add_argument("--out", type=Path, help="folder to write to [default: $OUT or benchmarks/results]")
    arguments = parser.parse_args()

    rows: list[dict[str, Any]] = []
    environment: dict[str, Any] = {}
    for kernel in arguments.kernels.split(","):
        one = 0.0
        for workers in map(int, arguments.workers.split(",")):
            begin = time.monotonic()
            result = sassafras.optimize(
                f"suite:{kernel}", device=arguments.device, cluster=arguments.address, workers=workers,
                budget=f"{arguments.seconds:g}s", store=False,
            )  # fmt: skip
            rate = result.evaluations / result.seconds
            one = rate if workers == 1 else one
            environment = dict(result.environment)
            rows.append(
                {
                    "kernel": kernel, "workers": workers, "evaluations": result.evaluations,
                    "evaluations_per_second": rate, "times_one": rate / one if one else None,
                    "speedup": result.speedup, "modelled_ratio": result.modelled_ratio,
                    "wall_seconds": time.monotonic() - begin,
                }
            )  # fmt: skip
            print(rows[-1], flush=True)
    summary = {
        str(n): min((r["times_one"] for r in rows if r["workers"] == n and r["times_one"]), default=None)
        for n in map(int, arguments.workers.split(","))
    }
    print(write("cluster", rows, {"least_times_one": summary}, environment, out=arguments.out))


if __name__ == "__main__":
    main()

"""Evaluations a second on 1, 2, 4, ... workers of a cluster: `python benchmarks/cluster.py`.

Every step runs the same kernels for as long on that many workers; the ratio to one worker is the figure. With
`--shapes N` it is also a sweep of N shapes of HGEMM (`gemm tune`): shapes a second. Without a GPU,
`--device model` exercises it (one machine's CPUs share much more than GPUs do).
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from pathlib import Path
from typing import Any

from common import write

import sassafras


def swept(arguments: argparse.Namespace, workers: int) -> dict[str, Any]:
    """A row: shapes a second of a sweep, kernels compiled before."""
    from sassafras.cluster import Pool
    from sassafras.cluster.gemm import ClusterCrew
    from sassafras.gemm import bench
    from sassafras.gemm.select import Options
    from sassafras.gemm.shapes import cuda_l2_grid, in_bands, stratified

    bands = ["<1e8", "1e8-1e9", "1e9-1e10"]
    shapes = stratified(in_bands(cuda_l2_grid(), bands), arguments.shapes, 0)
    dry = arguments.device == "model"
    heard: set[str] = set()
    begun: list[float] = []
    left: list[int] = []

    def say(text: str) -> None:
        print(text, flush=True)
        found = re.match(r"select \S+ on (.*?) AutoTuning.* (\d+) left$", text)
        if found and not begun:
            heard.add(found[1])
            if len(heard) == workers:  # from here on every process works, its start is over
                begun.append(time.monotonic())
                left.append(int(found[2]))

    with (
        Pool(arguments.address, device=arguments.device, workers=workers) as pool,
        tempfile.TemporaryDirectory() as folder,
    ):
        options = Options(exclude=arguments.exclude)
        dataset = bench.sweep(
            shapes, Path(folder), options, crew=ClusterCrew(pool), dry=dry, progress=1, say=say,
            cache=arguments.cache,
        )  # fmt: skip
        if not begun or not left[0]:
            raise SystemExit(f"{arguments.shapes} shapes are too few for {workers} workers")
        seconds = time.monotonic() - begun[0]
        return {
            "kernel": "hgemm sweep", "workers": pool.size, "evaluations": dataset.pairs,
            "evaluations_per_second": left[0] / seconds, "unit": "shapes", "seconds": seconds,
            "modelled": dry,
        }  # fmt: skip


def main() -> None:
    """Measure, print and write `cluster.json`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", default="softmax,rmsnorm,layernorm")
    parser.add_argument("--workers", default="1,2,4")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--device", default="cuda", choices=("cuda", "model"))
    parser.add_argument("--address", default="auto")
    parser.add_argument("--shapes", type=int, default=0, help="also sweep so many shapes of HGEMM")
    parser.add_argument("--exclude", default="", help="regular expression: HGEMM configurations that fail")
    parser.add_argument("--cache", type=Path, help="folder of compiled HGEMM kernels")
    parser.add_argument("--out", type=Path, help="folder to write to [default: $OUT or benchmarks/results]")
    arguments = parser.parse_args()

    rows: list[dict[str, Any]] = []
    environment: dict[str, Any] = {}
    for kernel in filter(None, arguments.kernels.split(",")):
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
    if arguments.shapes:
        one = 0.0
        for workers in map(int, arguments.workers.split(",")):
            row = swept(arguments, workers)
            one = row["evaluations_per_second"] if workers == 1 else one
            rows.append({**row, "times_one": row["evaluations_per_second"] / one if one else None})
            print(rows[-1], flush=True)
    summary = {
        str(n): min((r["times_one"] for r in rows if r["workers"] == n and r["times_one"]), default=None)
        for n in map(int, arguments.workers.split(","))
    }
    print(write("cluster", rows, {"least_times_one": summary}, environment, out=arguments.out))


if __name__ == "__main__":
    main()

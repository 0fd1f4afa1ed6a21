"""Evaluations a second on 1, 2, 4, ... workers of a cluster.

    python benchmarks/cluster.py [--kernels softmax,...] [--workers 1,2,4] [--seconds 20] [--sampling 10]
        [--resume FOLDER]

Every step runs the same kernels for as long on that many workers; the ratio to one worker is the figure. With
`--shapes N` it is also a sweep of N shapes of HGEMM (`gemm tune`): shapes a second; with `--sampling SECONDS`
also what `verify --cluster` does: launches on fresh inputs a second (GPUs only). Without a GPU,
`--device model` exercises the others (one machine's CPUs share much more than GPUs do).

The file is written after every row. Rows that it holds already, measured with the same settings at the same
commit, are not measured again. `--resume` also takes over an earlier sitting's, whatever their commit.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import tempfile
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from common import ROOT, commit, write

import sassafras
from sassafras.cluster import connected

#: what a sweep is called among the kernels
SWEEP = "hgemm sweep"
#: before the kernel whose launches on fresh inputs are counted
SAMPLING = "sampling "
#: columns that must agree for a row to stand for a measurement
SETTINGS = ("kernel", "asked_workers", "device", "budget_s", "shapes", "exclude")


def swept(arguments: argparse.Namespace, workers: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """A row: shapes a second of a sweep, kernels compiled before; and the environment."""
    from sassafras.cluster import Pool
    from sassafras.cluster.gemm import ClusterCrew
    from sassafras.gemm.bench import runs
    from sassafras.gemm.bench.options import Options
    from sassafras.gemm.problem.shape import cuda_l2_grid, in_bands, stratified

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
        settings = runs.RunSettings(
            Path(folder), options, crew=ClusterCrew(pool), dry=dry, cache=arguments.cache, say=say
        )
        dataset = runs.sweep(shapes, settings)
        if not begun or not left[0]:
            raise SystemExit(f"{arguments.shapes} shapes are too few for {workers} workers")
        seconds = time.monotonic() - begun[0]
        row = {
            "kernel": SWEEP, "workers": pool.size, "evaluations": dataset.pairs,
            "evaluations_per_second": left[0] / seconds, "unit": "shapes", "seconds": seconds,
            "modelled": dry,
        }  # fmt: skip
        return row, dict(pool.facts["environment"])


def sampled(arguments: argparse.Namespace, name: str, workers: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """A row: launches on fresh inputs a second, an original against itself; and the environment."""
    from sassafras.cluster import Pool
    from sassafras.cluster.random_tests import sample
    from sassafras.core import Candidate
    from sassafras.targets import load

    begin = time.monotonic()
    workload = load(f"suite:{name.removeprefix(SAMPLING)}")
    case = workload.cases[0]
    with Pool(arguments.address, device=arguments.device, workers=workers) as pool:
        original = workload.build(case, pool.facts["arch"])
        found = sample(
            pool, workload, [case.name], original, Candidate(original),
            samples=1_000_000_000 * workers, seconds=arguments.sampling,
        )  # fmt: skip
        if found.fault is not None or found.inexact is not None:
            raise SystemExit(f"{name}: {found.fault or found.inexact}")
        row = {
            "kernel": name, "workers": pool.size, "evaluations": found.samples, "gpus": found.gpus,
            "evaluations_per_second": found.per_second, "unit": "samples", "seconds": found.seconds,
            "parts": found.facts()["parts"], "wall_seconds": time.monotonic() - begin,
        }  # fmt: skip
        return row, dict(pool.facts["environment"])


def searched(
    arguments: argparse.Namespace, kernel: str, workers: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A row: evaluations a second of one search; and the environment."""
    begin = time.monotonic()
    stages: list[tuple[float, str]] = []
    result = sassafras.optimize(
        f"suite:{kernel}", device=arguments.device, cluster=arguments.address, workers=workers,
        budget=f"{arguments.seconds:g}s", store=False,
        stage=lambda text: stages.append((round(time.monotonic() - begin, 2), text)),
    )  # fmt: skip
    row = {
        "kernel": kernel, "workers": workers, "evaluations": result.evaluations,
        "evaluations_per_second": result.evaluations / result.seconds,
        "speedup": result.speedup, "modelled_ratio": result.modelled_ratio,
        "wall_seconds": time.monotonic() - begin, "stages_at_s": stages,
    }  # fmt: skip
    return row, dict(result.environment)


def settings(arguments: argparse.Namespace, kernel: str, workers: int) -> dict[str, Any]:
    """What makes two rows the same measurement."""
    asked: dict[str, Any] = {"kernel": kernel, "asked_workers": workers, "device": arguments.device}
    if kernel == SWEEP:
        return {**asked, "shapes": arguments.shapes, "exclude": arguments.exclude}
    return {**asked, "budget_s": arguments.sampling if kernel.startswith(SAMPLING) else arguments.seconds}


def earlier(
    arguments: argparse.Namespace, folder: Path, here: str | None
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows that may stand: of the file of this very commit, and of `--resume`; and their environment.

    Raises:
        SystemExit: rows of two kinds of GPU.
    """
    rows: list[dict[str, Any]] = []
    environment: dict[str, Any] = {}
    for path, any_commit in ((folder, False), (arguments.resume, True)):
        if path is None or not (Path(path) / "cluster.json").is_file():
            continue
        found = json.loads((Path(path) / "cluster.json").read_text())
        for row in found["rows"]:
            told = "asked_workers" in row and row["device"] == arguments.device
            if told and (any_commit or row.get("commit") == here):
                rows += [row] if not any(same(row, other) for other in rows) else []
                environment = one_gpu(environment, found["environment"])
    return rows, environment


def same(row: dict[str, Any], other: dict[str, Any]) -> bool:
    """Two rows of one measurement."""
    return all(row.get(key) == other.get(key) for key in SETTINGS)


def one_gpu(environment: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """The environment of both. Raises SystemExit where their GPUs differ."""
    if environment and environment.get("gpu") != other.get("gpu"):
        raise SystemExit(f"rows of {environment.get('gpu')} and {other.get('gpu')} do not belong in one file")
    return environment or other


def finished(rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The rows with `times_one`, their rate over that of one worker; and the least of each size
    (samples apart: nothing is judged between them)."""
    done = []
    for row in rows:
        alone = {**row, "asked_workers": 1}
        one = next((other for other in rows if other["workers"] == 1 and same(alone, other)), None)
        times = None if one is None else row["evaluations_per_second"] / one["evaluations_per_second"]
        done.append({**row, "times_one": times})
    sizes = sorted({row["workers"] for row in done})
    judged = [row for row in done if row["times_one"] and row.get("unit") != "samples"]
    least = {
        str(n): min((row["times_one"] for row in judged if row["workers"] == n), default=None) for n in sizes
    }
    return done, {"least_times_one": least}


def main(given: list[str] | None = None) -> None:
    """Measure, print and write `cluster.json`, a row at a time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kernels", default="softmax,rmsnorm,layernorm")
    parser.add_argument("--workers", default="1,2,4")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--device", default="cuda", choices=("cuda", "model"))
    parser.add_argument("--address", default="auto")
    parser.add_argument("--shapes", type=int, default=0, help="also sweep so many shapes of HGEMM")
    parser.add_argument("--sampling", type=float, default=0.0, help="also sample each kernel for so long")
    parser.add_argument("--exclude", default="", help="regular expression: HGEMM configurations that fail")
    parser.add_argument("--cache", type=Path, help="folder of compiled HGEMM kernels")
    parser.add_argument("--resume", type=Path, help="folder of an earlier sitting's cluster.json")
    parser.add_argument("--out", type=Path, help="folder to write to [default: $OUT or benchmarks/results]")
    arguments = parser.parse_args(given)

    folder = Path(arguments.out or os.environ.get("OUT") or ROOT / "benchmarks" / "results")
    here = commit()
    rows, environment = earlier(arguments, folder, here)
    kernels = [*filter(None, arguments.kernels.split(","))]
    sampling = [SAMPLING + kernel for kernel in kernels] if arguments.sampling > 0 else []
    kernels += [*sampling, *([SWEEP] if arguments.shapes else [])]
    with ExitStack() as stack:
        connection = False
        for kernel in kernels:
            for workers in map(int, arguments.workers.split(",")):
                asked = settings(arguments, kernel, workers)
                if any(same(asked, row) for row in rows):
                    print(f"{kernel} on {workers}: in the file already", flush=True)
                    continue
                if not connection:  # one for all rows: starting Ray takes seconds
                    stack.enter_context(connected(arguments.address))
                    connection = True
                if kernel == SWEEP:
                    row, found = swept(arguments, workers)
                elif kernel.startswith(SAMPLING):
                    row, found = sampled(arguments, kernel, workers)
                else:
                    row, found = searched(arguments, kernel, workers)
                environment = one_gpu(environment, found)
                rows.append({**asked, **row, "commit": here, "date": datetime.now(UTC).strftime("%Y-%m-%d")})
                done, summary = finished(rows)
                print(done[-1], flush=True)
                write("cluster", done, summary, environment, out=folder, commits=commits(rows))
    done, summary = finished(rows)
    print(write("cluster", done, summary, environment, out=folder, commits=commits(rows)))


def commits(rows: list[dict[str, Any]]) -> str | None:
    """Of all rows, for the head of the file."""
    return ", ".join(sorted({row["commit"] for row in rows if row.get("commit")})) or None


if __name__ == "__main__":
    main()

"""How many launches a second can be tested, beside what the launches alone allow: writes samples.json.

    python benchmarks/samples.py [--seconds 4] [--only softmax,...] [--gpus N]
    python benchmarks/samples.py --merge A.json B.json     # rows of both; where both have a kernel, of B

For every kernel of the suite: original against original, fresh inputs made on the GPU for each sample, every
output byte compared on the GPU. The bound is what one launch of either costs, timed back to back. A mismatch
is a defect of ours or of the kernel, and fails the run.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from common import gpu_count, per_gpu, read_result, write

Row = dict[str, Any]


def one(name: str, seconds: float) -> Row:
    """Sample one kernel on this process's GPU."""
    from sassafras.core import Candidate
    from sassafras.evaluate.gpu import CudaDevice
    from sassafras.targets import load

    workload = load(f"suite:{name}")
    case = workload.cases[0]
    with CudaDevice() as device:
        kernel = workload.build(case, device.arch)
        device.open(workload, case, kernel)
        report = device.sample(Candidate(kernel, {"samples": True}), seconds=seconds)
        return {
            "kernel": name, "case": case.name, "launch_us": device.facts["launch_us"],
            "samples": report.samples, "seconds": report.seconds, "mismatches": report.mismatches,
            "per_second": report.per_second, "bound_per_second": report.bound_per_second,
            "fraction_of_bound": report.per_second / (report.bound_per_second or float("inf")),
            "failure_bound": report.failure_bound, "verdict": str(report.verdict), "detail": report.detail,
            "scope": report.scope,
        }  # fmt: skip


def summarise(rows: list[Row]) -> Row:
    """Totals; the fraction is the lowest kernel's."""
    good = [row for row in rows if "error" not in row]
    lowest = min(good, key=lambda row: float(row["fraction_of_bound"]), default=None)
    return {
        "samples": sum(row["samples"] for row in good), "mismatches": sum(row["mismatches"] for row in good),
        "fraction_of_bound": lowest["fraction_of_bound"] if lowest else None,
        "lowest": lowest["kernel"] if lowest else None,
        "at_least_half": sum(row["fraction_of_bound"] >= 0.5 for row in good), "kernels": len(good),
        "ten_million_take_s": {row["kernel"]: round(1e7 / row["per_second"], 1) for row in good},
        "failed": [row["kernel"] for row in rows if "error" in row],
    }  # fmt: skip


def main() -> int:
    """Sample every kernel; 1 when anything differed or failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--only", default="")
    parser.add_argument("--gpus", type=int)
    parser.add_argument("--merge", nargs="+", type=Path, help="result files, newest last")
    parser.add_argument("--out", default=os.environ.get("OUT"))
    options = parser.parse_args()
    from sassafras import suite
    from sassafras.cuda.environment import environment

    if options.merge:
        files = [read_result(path, "environment", of="samples") for path in options.merge]
        kept = {row.get("kernel"): row for file in files for row in file["rows"]}
        merged = [kept[name] for name in map(str, suite.names()) if name in kept]
        if not merged:  # or a published result would become an empty one
            parser.error("no kernel of the suite in " + ", ".join(map(str, options.merge)))
        print("wrote", write("samples", merged, summarise(merged), files[-1]["environment"], out=options.out))
        return 0
    if not (options.gpus or gpu_count()):
        print("no GPU here")
        return 2
    names = [n for n in options.only.split(",") if n] or [str(n) for n in suite.names()]
    rows: list[Row] = []
    for index, row in per_gpu(one, [(name, options.seconds) for name in names], options.gpus):
        rows.append({"kernel": names[index], "error": repr(row)} if isinstance(row, Exception) else dict(row))
        print(rows[-1], flush=True)
        rows.sort(key=lambda r: names.index(r["kernel"]))
        write("samples", rows, summarise(rows), environment(), out=options.out)
    summary = summarise(rows)
    print(json.dumps(summary, indent=1))
    return 1 if summary["mismatches"] or summary["failed"] else 0


if __name__ == "__main__":
    raise SystemExit(main())

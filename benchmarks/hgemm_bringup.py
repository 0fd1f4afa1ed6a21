"""First run of the TMA + WGMMA kernels on a GPU: right or wrong, why, and a quick look at their speed.

    python benchmarks/hgemm_bringup.py --prepare --cache .carry/gemm     # without a GPU: compile all variants
    python benchmarks/hgemm_bringup.py --cache .carry/gemm [--seconds 420] [--only REGEX] [--sweep 52]

Every configuration runs in a worker process that is killed when it hangs. Configurations that fail are run
again in variants that tell why (a watchdog that names the barrier of a hang; exchanged descriptor offsets; no
setmaxnreg; explicit release). Then shapes are swept, without the instances that failed. Files go to $OUT, or
to benchmarks/results: hgemm-bringup.json, journals beside it; the same command resumes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

from common import ROOT, write


def wanted(item: Any, only: str) -> bool:
    """Whether an instance or a configuration is asked for; unproven families only by their names."""
    from sassafras.gemm import families

    return bool(re.search(only, item.name)) and (bool(only) or families.proven(item))


def prepare(cache: Path | None, only: str) -> None:
    """Compile everything that a GPU machine may ask for (some five minutes on two cores)."""
    from sassafras.gemm import families
    from sassafras.gemm.bringup_plan import VARIANTS, hopper_instances, variants_for
    from sassafras.gemm.compile import build

    begin = time.perf_counter()
    instances = (*families.INSTANCES, *families.OTHER_INSTANCES, *families.EPILOGUE_INSTANCES)
    everything = [i for i in (*instances, *families.UNPROVEN_INSTANCES) if wanted(i, only)]
    build(everything, cache)
    print(f"{len(everything)} cubins ready after {time.perf_counter() - begin:.0f} s", flush=True)
    for variant, defines in VARIANTS.items():
        found = [i for i in hopper_instances() if variant in variants_for(i) and wanted(i, only)]
        if not found:
            continue
        build(found, cache, defines=defines)
        print(f"{variant}: {len(found)} cubins ready after {time.perf_counter() - begin:.0f} s", flush=True)


def failures(records: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Instance name -> its first failing record."""
    found: dict[str, dict[str, Any]] = {}
    for record in records:
        if not record["right"]:
            found.setdefault(record["config"].split("/")[0], record)
    return found


def main() -> int:
    """Run the stages; 1 when anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cache", type=Path, help="folder of compiled kernels")
    parser.add_argument("--prepare", action="store_true", help="only compile; needs no GPU")
    parser.add_argument("--seconds", type=float, default=420, help="stop starting work after so long")
    parser.add_argument(
        "--only",
        default="",
        help="configurations whose name matches; unproven families take part only with it",
    )
    parser.add_argument("--sweep", type=int, default=52, help="shapes of the sweep, 0 for none")
    parser.add_argument("--patience", type=float, default=60, help="seconds without progress before a kill")
    parser.add_argument("--fresh", action="store_true", help="delete the journals in --out first")
    parser.add_argument(
        "--out", type=Path, default=Path(os.environ.get("OUT") or ROOT / "benchmarks/results")
    )
    options = parser.parse_args()
    if options.prepare:
        prepare(options.cache, options.only)
        return 0
    from sassafras.device.cuda import available, environment
    from sassafras.gemm import bringup, sweep
    from sassafras.gemm.bringup_plan import Job, jobs, variants_for
    from sassafras.gemm.families import parse, parse_instance

    usable, reason = available()
    print(reason, flush=True)
    if not usable:
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    journal, swept = options.out / "hgemm-bringup.jsonl", options.out / "hgemm-sweep.jsonl"
    if options.fresh:
        for path in (journal, swept):
            path.unlink(missing_ok=True)
    begin = time.monotonic()
    deadline = begin + options.seconds
    asked = [job for job in jobs() if wanted(parse(job.config), options.only)]
    common: dict[str, Any] = {"cache": options.cache, "patience": options.patience}
    # half of the time at most goes to finding out what is right
    records = bringup.supervise(asked, journal, deadline=begin + options.seconds / 2, **common)
    bad = failures(records)
    for record in records:
        if not record["right"]:
            print(bringup.line(record), flush=True)
    print(
        f"{sum(r['right'] for r in records)} of {len(asked)} configurations right, "
        f"{len(bad)} instances fail, {time.monotonic() - begin:.0f} s", flush=True,
    )  # fmt: skip
    variants = [
        Job(record["config"], variant, tuple(c["shape"] for c in record["checks"]))
        for name, record in bad.items()
        for variant in variants_for(parse_instance(name))
    ]
    again = bringup.supervise(variants, journal, deadline=begin + 0.7 * options.seconds, **common)
    for record in again:
        print("  " + bringup.line(record), flush=True)
    speeds: list[dict[str, Any]] = []
    if options.sweep:
        os.environ["SASSAFRAS_SWEEP_EXCLUDED"] = json.dumps(sorted(bad))
        speeds = bringup.supervise(
            sweep.jobs(sweep.shapes(options.sweep)), swept, deadline=deadline,
            command=(sys.executable, "-P", "-m", "sassafras.gemm.sweep"), **common,
        )  # fmt: skip
    summary = {
        "configurations": len(asked), "run": len(records), "right": sum(r["right"] for r in records),
        "failing_instances": sorted(bad), "shapes_swept": len([r for r in speeds if "baseline_us" in r]),
        "seconds": round(time.monotonic() - begin, 1),
        **_geomeans(speeds),
    }  # fmt: skip
    rows = [{"stage": "bringup", **r} for r in (*records, *again)] + [{"stage": "sweep", **r} for r in speeds]
    path = write("hgemm-bringup", rows, summary, environment(), seed=17, out=options.out)
    print(json.dumps(summary, indent=1), path.name, flush=True)
    return 1 if bad or len(records) < len(asked) else 0


def _geomeans(speeds: list[dict[str, Any]]) -> dict[str, Any]:
    """Geometric means of baseline / ours by band (a look, not a result)."""
    import math

    bands: dict[str, list[float]] = {}
    for record in speeds:
        if record.get("ours"):
            bands.setdefault(record["band"], []).append(math.log(record["ours"]["ratio"]))
    return {f"ratio {band}": round(math.exp(sum(v) / len(v)), 4) for band, v in bands.items()}


if __name__ == "__main__":
    sys.exit(main())

"""Exercise every path of `CudaDevice` in under a minute; print a table, write smoke_gpu.json.

    python benchmarks/smoke_gpu.py [--out FOLDER] [--suite] [--seconds 3]

Every step is caught on its own, so that one run shows all that is broken. With --suite it also opens every
kernel of the suite and reports launch time, evaluations a second and the null experiment.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))
sys.path.insert(0, str(ROOT / "tests" / "gpu"))

Row = dict[str, Any]
ROWS: list[Row] = []


def step(name: str, work: Callable[[], Row]) -> Row | None:
    """Run one step; record what it returns or how it failed."""
    begin = time.perf_counter()
    try:
        row: Row = {"step": name, "ok": True, **work()}
    except Exception as error:
        traceback.print_exc()
        row = {"step": name, "ok": False, "error": f"{type(error).__name__}: {error}"}
    row["seconds"] = round(time.perf_counter() - begin, 3)
    ROWS.append(row)
    rest = {k: v for k, v in row.items() if k not in ("step", "ok", "seconds")}
    print(
        f"{'ok  ' if row['ok'] else 'FAIL'} {name:34s} {row['seconds']:8.2f} s  {json.dumps(rest)[:900]}",
        flush=True,
    )
    return row if row["ok"] else None


def rate(device: Any, candidate: Any, seconds: float) -> Row:
    """Evaluations a second of one candidate, and what they said."""
    begin, verdicts, speedups = time.perf_counter(), {}, []
    phases: dict[str, list[float]] = {}
    count = 0
    while time.perf_counter() - begin < seconds:
        outcome = device.run(candidate)
        verdicts[str(outcome.verdict)] = verdicts.get(str(outcome.verdict), 0) + 1
        if outcome.speedup:
            speedups.append(outcome.speedup)
        for key, value in device.last_answer.get("phases_ms", {}).items():
            phases.setdefault(key, []).append(value)
        count += 1
    spent = time.perf_counter() - begin
    deciles = statistics.quantiles(speedups, n=10) if len(speedups) > 1 else [float("nan")]
    return {
        "evaluations_per_second": round(count / spent, 1),
        "verdicts": verdicts,
        "speedup_median": round(statistics.median(speedups), 5) if speedups else None,
        "speedup_p10_p90": [round(deciles[0], 5), round(deciles[-1], 5)],
        "last": outcome.detail,
        "phases_ms": {k: round(statistics.median(v), 3) for k, v in phases.items()},
    }  # fmt: skip


def faults(device: Any) -> None:
    """Each faulty kernel gets its verdict, and the next honest candidate still runs."""
    from affine import candidate

    expected = {
        "none": "correct", "slower": "correct", "wrong": "wrong_result", "last_element": "wrong_result",
        "writes_nothing": "wrong_result", "past_the_end": "wrong_result", "modifies_input": "wrong_result",
        "before_the_beginning": "wrong_result", "wrong_later": "wrong_result", "illegal_address": "crashed",
        "hangs": "timed_out",
    }  # fmt: skip
    for fault, verdict in expected.items():

        def judge(fault: str = fault, verdict: str = verdict) -> Row:
            made = candidate(fault, device.arch)
            begin = time.perf_counter()
            outcome = device.run(made)
            took = time.perf_counter() - begin
            begin = time.perf_counter()
            after = device.run(candidate("none", device.arch))
            if outcome.verdict != verdict or after.verdict != "correct":
                raise AssertionError(
                    f"{outcome.verdict} instead of {verdict}: {outcome.detail}; then {after}"
                )
            return {
                "verdict": str(outcome.verdict), "detail": outcome.detail, "took": round(took, 3),
                "next_took": round(time.perf_counter() - begin, 3), "speedup": outcome.speedup,
            }  # fmt: skip

        step(f"fault {fault}", judge)


def main() -> int:
    """Run all steps; 1 when any failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default=os.environ.get("OUT", "."))
    parser.add_argument("--suite", action="store_true")
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    from sassafras.core import Candidate
    from sassafras.device.cuda import CudaDevice, Limits, available, environment
    from sassafras.frontend import load

    usable, reason = available()
    print(reason)
    if not usable:
        return 2
    step("environment", environment)
    device = CudaDevice(limits=Limits(candidate_s=3.0))

    def opened(target: str) -> Row:
        workload = load(target)
        kernel = workload.build(workload.cases[0], device.arch)
        device.open(workload, workload.cases[0], kernel)
        opened.kernel = kernel  # type: ignore[attr-defined]
        return dict(device.facts)

    def identity() -> Any:
        return Candidate(opened.kernel, {"identity": True})  # type: ignore[attr-defined]

    affine = str(ROOT / "tests/gpu/affine.py")
    if step("open affine", lambda: opened(affine + ":workload")):
        step("identity affine", lambda: rate(device, identity(), options.seconds))
        faults(device)
    if step("open affine, varying", lambda: opened(affine + ":varying")):
        step("identity, tolerance mode", lambda: rate(device, identity(), 1.0))
    for bad in ("mistaken", "stray"):

        def refused(bad: str = bad) -> Row:
            try:
                opened(f"{affine}:{bad}")
            except Exception as error:
                return {"error_is": f"{type(error).__name__}: {error}"}
            raise AssertionError("was not refused")

        step(f"open {bad} is refused", refused)
    if step("open softmax", lambda: opened("suite:softmax")):
        step("identity softmax", lambda: rate(device, identity(), options.seconds))

        def sampled() -> Row:
            report = device.sample(identity(), seconds=options.seconds)
            return {
                "samples": report.samples, "mismatches": report.mismatches,
                "per_second": round(report.per_second),
                "bound_per_second": report.bound_per_second, "failure_bound": report.failure_bound,
                "verdict": str(report.verdict), "scope": report.scope,
            }  # fmt: skip

        step("sample softmax", sampled)
        step("identity softmax after sampling", lambda: rate(device, identity(), 0.5))

        def remeasured() -> Row:
            e = device.remeasure(identity(), processes=3)
            return {
                "verdict": str(e.verdict), "detail": e.detail, "speedup": e.speedup,
                "interval": str(e.interval), "null": e.null, "null_interval": str(e.null_interval),
                "time_us": e.time_us, "samples": e.samples, "facts": dict(e.facts),
            }  # fmt: skip

        step("remeasure softmax, 3 processes", remeasured)
    if options.suite:
        from sassafras import suite

        for name in suite.names():
            if step(f"open {name}", lambda name=name: opened(f"suite:{name}")):  # type: ignore[misc]
                step(f"identity {name}", lambda: rate(device, identity(), 1.0))

                def brief() -> Row:
                    report = device.sample(identity(), seconds=1.0)
                    return {
                        "per_second": round(report.per_second), "bound": report.bound_per_second,
                        "mismatches": report.mismatches, "detail": report.detail,
                    }  # fmt: skip

                step(f"sample {name}", brief)
    device.close()
    failed = [row["step"] for row in ROWS if not row["ok"]]
    out = Path(options.out, "smoke_gpu.json")
    out.write_text(
        json.dumps({"benchmark": "smoke_gpu", "rows": ROWS, "failed": failed}, indent=1, default=str)
    )
    print(f"{len(ROWS) - len(failed)} steps ok, failed: {failed or 'none'}; wrote {out.name}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

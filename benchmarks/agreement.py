"""Does the validator approve what the schedule space offers, and what do control codes from scratch cost?

    python benchmarks/agreement.py [--moves 400] [--only softmax,rotary] [--out FOLDER]

No GPU; writes agreement.json. For every distinct variant of the suite and both ways to treat control codes
(`ScheduleSpace(control=...)`), a random walk through the space; every schedule on it is judged by the
validator, which shares no code with the scheduler. For headline cases the timing model also says what the
compiler's own order costs with all control codes and stall counts worked out anew (modelled, no measurement).
"""

from __future__ import annotations

import argparse
import os
import platform
from importlib.metadata import version
from typing import Any

import numpy as np
from common import geomean, write

Row = dict[str, Any]
CONTROL = ("keep", "regenerate")


def walk(kernel: Any, control: str, moves: int, seed: int) -> tuple[int, list[str]]:
    """Schedules judged on one walk, and what was refused."""
    from sassafras.schedule import ScheduleSpace
    from sassafras.validate import Validator

    space = ScheduleSpace(kernel, control=control)  # type: ignore[arg-type]
    validator = Validator(kernel.cubin, kernel.name)
    rng, state, judged, refused = np.random.default_rng(seed), space.start(), 0, list[str]()
    for _ in range(moves):
        move = space.sample(state, rng)
        if move is None:
            break
        state = space.apply(state, move)
        report = validator.check(space.emit(state))
        judged += 1
        if not report.ok:
            refused.append(f"{move} at depth {state.depth}: {report.violations[0]}")
    return judged, refused


def from_scratch(workload: Any, case: Any, kernel: Any) -> float | None:
    """Modelled speed-up of the compiler's order under codes from scratch; None where the model refuses it."""
    from sassafras.core import Candidate, SassafrasError
    from sassafras.schedule import ScheduleSpace
    from sassafras.timing_model import ModelDevice

    space = ScheduleSpace(kernel, control="regenerate")
    device = ModelDevice("sm_90a")
    try:
        device.open(workload, case, kernel)
    except SassafrasError:
        return None
    tight = space.emit(space.tightened(space.start()))
    return device.run(Candidate(kernel.with_cubin(tight))).modelled_ratio


def measure(name: str, moves: int, seed: int) -> list[Row]:
    """A row for every distinct variant of a workload."""
    from sassafras import suite

    workload = suite.load(name)
    rows, seen = list[Row](), set[str]()
    for case in workload.cases:
        kernel = workload.build(case, "sm_90a")
        if kernel.digest in seen:
            continue
        seen.add(kernel.digest)
        row: Row = {"kernel": name, "shape": case.name, "digest": kernel.digest[:16]}
        for control in CONTROL:
            row[f"judged_{control}"], row[f"refused_{control}"] = walk(kernel, control, moves, seed)
        if case is workload.cases[0]:
            row["modelled_from_scratch"] = from_scratch(workload, case, kernel)
        rows.append(row)
    return rows


def summarise(rows: list[Row]) -> Row:
    """Totals, and the modelled cost of codes from scratch."""
    ratios = {r["kernel"]: r["modelled_from_scratch"] for r in rows if r.get("modelled_from_scratch")}
    summary: Row = {"variants": len(rows), "modelled_kernels": len(ratios)}
    for control in CONTROL:
        summary[f"judged_{control}"] = sum(r[f"judged_{control}"] for r in rows)
        summary[f"refused_{control}"] = sum(len(r[f"refused_{control}"]) for r in rows)
    if ratios:
        worst, best = min(ratios, key=ratios.__getitem__), max(ratios, key=ratios.__getitem__)
        summary |= {
            "modelled_geomean": geomean(ratios.values()), "modelled_worst": ratios[worst],
            "modelled_worst_kernel": worst, "modelled_best": ratios[best], "modelled_best_kernel": best,
        }  # fmt: skip
    return summary


def main(arguments: list[str] | None = None) -> int:
    """See the module; 1 when anything was refused."""
    from sassafras import suite

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--moves", type=int, default=400, help="of a walk")
    parser.add_argument("--only", default="", help="workloads, by comma")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default=os.environ.get("OUT"))
    options = parser.parse_args(arguments)
    rows: list[Row] = []
    for name in options.only.split(",") if options.only else suite.names():
        rows += measure(name, options.moves, options.seed)
        print(f"{name}: {summarise([r for r in rows if r['kernel'] == name])}", flush=True)
    summary = summarise(rows)
    packages = {name: version(name) for name in ("numba", "numpy", "triton")}
    environment = {"gpu": None, "python": platform.python_version(), **packages}
    print(write("agreement", rows, summary, environment, seed=options.seed, out=options.out))
    return 1 if any(summary[f"refused_{control}"] for control in CONTROL) else 0


if __name__ == "__main__":
    raise SystemExit(main())

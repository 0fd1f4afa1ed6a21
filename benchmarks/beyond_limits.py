"""What limits each kernel of the ladder, by the profiler: one launch of each, under ncu.

    ncu --clock-control none --profile-from-start off --section SpeedOfLight --section SchedulerStats \
        --section WarpStateStats --section Occupancy --page raw --csv --log-file $OUT/ncu.csv \
        python benchmarks/beyond.py limits --out $OUT

writes ncu.csv, and subjects.txt, which names the launches in their order. `read` puts them together.
"""

from __future__ import annotations

import csv
import io
import traceback
from pathlib import Path
from typing import Any

#: our name -> ncu's, percent of what the machine can do
SHARES = {
    "compute": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "memory": "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "dram": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "l2": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "l1": "l1tex__throughput.avg.pct_of_peak_sustained_active",
    "issue": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
}
DURATION = "gpu__time_duration.sum"
STALL = "smsp__average_warps_issue_stalled_"
STALL_END = "_per_issue_active.ratio"
#: a warp that issues, or could have, is not held up
NO_STALL = ("selected", "not_selected")
#: below this share of its peak no unit is said to limit a kernel
BUSY = 60.0


def launch_all(subjects: list[str], out: Path) -> None:
    """Launch each subject's kernel once while the profiler looks; name them in ``subjects.txt``."""
    import torch

    from sassafras.evaluate.gpu.judge import KernelJudge
    from sassafras.targets import load

    out.mkdir(parents=True, exist_ok=True)
    with (out / "subjects.txt").open("w") as names:
        for subject in subjects:
            try:
                workload = load(subject)
                case = workload.case()
                kernel = workload.build(case, "sm_90a")
                bench = KernelJudge(workload, case, kernel, seeds=1, all_cases=False, special=False)
                bench.headline.restore(bench.headline.images[0])
                bench.gpu.sync()
                torch.cuda.profiler.start()
                bench.headline.launch(bench.plan, bench.function)
                bench.gpu.sync()
                torch.cuda.profiler.stop()
            except Exception:  # the others are still wanted
                traceback.print_exc()
                continue
            names.write(subject + "\n")
            names.flush()
            del bench
            torch.cuda.empty_cache()


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """Kernel -> percentages of peak, microseconds, main stall reasons (warps an issued instruction), limit.

    Raises:
        ValueError: the launches in ``ncu.csv`` are not those that ``subjects.txt`` names.
    """
    subjects = (folder / "subjects.txt").read_text().split()
    lines = (folder / "ncu.csv").read_text().splitlines()
    start = next((n for n, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        raise ValueError(f"{folder}/ncu.csv has no table")
    table = csv.reader(io.StringIO("\n".join(lines[start:])))
    header, units = next(table), next(table)
    rows = [row for row in table if len(row) == len(header)]
    if len(rows) != len(subjects):
        raise ValueError(f"{len(rows)} launches were profiled, {len(subjects)} are named")
    return {
        subject.removeprefix("suite:"): _facts(
            dict(zip(header, row, strict=True)), dict(zip(header, units, strict=True))
        )
        for subject, row in zip(subjects, rows, strict=True)
    }


def _facts(row: dict[str, str], units: dict[str, str]) -> dict[str, Any]:
    facts: dict[str, Any] = {name: _number(row[key]) for name, key in SHARES.items() if row.get(key)}
    if row.get(DURATION):
        scale = {"ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3}
        facts["us"] = _number(row[DURATION]) * scale.get(units[DURATION], 1.0)
    stalls = {
        key.removeprefix(STALL).removesuffix(STALL_END): _number(value)
        for key, value in row.items()
        if key.startswith(STALL) and key.endswith(STALL_END) and value
    }
    top = sorted(stalls.keys() - set(NO_STALL), key=lambda name: (-stalls[name], name))[:3]
    facts["stalls"] = {name: stalls[name] for name in top}
    units_busy = {name: facts[name] for name in ("compute", "dram", "l2", "l1") if name in facts}
    if units_busy and max(units_busy.values()) >= BUSY:
        facts["limit"] = max(units_busy, key=lambda name: units_busy[name])
    else:
        facts["limit"] = f"latency ({top[0]})" if top else "latency"
    return facts


def _number(text: str) -> float:
    return float(text.replace(",", ""))

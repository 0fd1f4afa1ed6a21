"""A short list of ncu's metrics of kernels on a workload's case, where ncu is there and may read counters.

One process launches all kernels on inputs made as the evaluator makes them (`sanitizer_target`). Clocks and
caches are left alone. What could not be measured is said in words, and nothing stands in its place.
"""

from __future__ import annotations

import csv
import json
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sassafras.core import Case, Kernel, Workload

from .protocol import kernel_facts
from .sanitizer import program, run_under

#: metric of ours -> ncu's names, the first that this GPU has
METRICS: dict[str, tuple[str, ...]] = {
    "duration_ns": ("gpu__time_duration.sum",),
    "dram_read_bytes": ("dram__bytes_read.sum",),
    "dram_write_bytes": ("dram__bytes_write.sum",),
    "dram_percent": ("dram__throughput.avg.pct_of_peak_sustained_elapsed",),
    "l2_hit_percent": ("lts__t_sector_hit_rate.pct",),
    "tensor_percent": (
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
        "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active",
    ),
    "occupancy_percent": ("sm__warps_active.avg.pct_of_peak_sustained_active",),
    "registers": ("launch__registers_per_thread",),
    "shared_bytes": ("launch__shared_mem_per_block",),
}
_STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
#: why a warp does not issue
STALLS = (
    "barrier", "branch_resolve", "dispatch_stall", "drain", "gmma", "imc_miss", "lg_throttle",
    "long_scoreboard", "math_pipe_throttle", "membar", "mio_throttle", "no_instruction", "not_selected",
    "short_scoreboard", "sleeping", "tex_throttle", "wait",
)  # fmt: skip
#: launches of each kernel; the last one is profiled
_LAUNCHES = 2
#: stall reasons that are kept
_TOP = 3


def profile(
    workload: Workload, case: Case, kernels: Sequence[Kernel], *, seconds: float = 120.0
) -> list[dict[str, Any]]:
    """Metrics of each kernel; ``{"unavailable": why}`` where there are none. Never raises for want of ncu.

    Args:
        workload, case: what to launch them on; the workload needs a source.
        kernels: what to launch, in this order.
        seconds: limit of the whole.

    Returns: a kernel's `METRICS` (nanoseconds, bytes, percent, counts) and ``stalls``: the largest reasons
        with their warps an issue.
    """
    path = program("ncu")
    if path is None:
        return [{"unavailable": "ncu is not installed"} for _ in kernels]
    names = [name for alternatives in METRICS.values() for name in alternatives]
    names += [_STALL.format(reason) for reason in STALLS]
    with tempfile.TemporaryDirectory(prefix="sassafras-ncu-") as folder:
        pairs = []
        for index, kernel in enumerate(kernels):
            facts, cubin = Path(folder, f"{index}.json"), Path(folder, f"{index}.cubin")
            facts.write_text(json.dumps(kernel_facts(kernel)))
            cubin.write_bytes(kernel.cubin)
            pairs += [str(facts), str(cubin)]
        wanted = "|".join(sorted({re.escape(kernel.name) for kernel in kernels}))
        target = [str(workload.source), case.name, str(_LAUNCHES), *pairs]
        for _ in range(3):  # a metric that this GPU lacks is left out the next time
            command = [
                *(path, "--csv", "--page", "raw", "--print-units", "base", "--target-processes", "all"),
                *("--clock-control", "none", "--cache-control", "none"),
                *("--kernel-name-base", "mangled", "--kernel-name", f"regex:^({wanted})$"),
                *("--metrics", ",".join(names)),
            ]
            try:
                done = run_under(command, target, seconds)
            except (OSError, subprocess.TimeoutExpired) as error:
                return [{"unavailable": f"ncu: {error}"[:200]} for _ in kernels]
            said = done.stdout + "\n" + done.stderr
            lacking = [name for name in names if re.search(rf"find metric.*{re.escape(name)}", said)]
            if not lacking:
                break
            names = [name for name in names if name not in lacking]
    return parse(said, [kernel.name for kernel in kernels])


def parse(text: str, kernels: Sequence[str]) -> list[dict[str, Any]]:
    """Read ncu's CSV (``--page raw``): `_LAUNCHES` rows a kernel, in order; the last of each is kept."""
    lines = text.splitlines()
    start = next((index for index, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        words = [line.strip() for line in lines if line.startswith("==ERROR==")] or ["no profile was written"]
        return [{"unavailable": f"ncu: {words[0][:200]}"} for _ in kernels]
    table = [line for line in lines[start:] if line.startswith('"')]
    rows = [row for row in csv.DictReader(table) if (row.get("ID") or "").isdecimal()]
    found = []
    for index, name in enumerate(kernels):
        at = (index + 1) * _LAUNCHES - 1
        if at >= len(rows) or name not in (rows[at].get("Kernel Name") or ""):
            found.append({"unavailable": "ncu saw no launch of this kernel"})
            continue
        found.append(_one(rows[at]))
    return found


def _one(row: dict[str, str]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for ours, alternatives in METRICS.items():
        values = [value for name in alternatives if (value := _number(row.get(name))) is not None]
        kept |= {ours: values[0]} if values else {}
    stalls = {reason: value for reason in STALLS if (value := _number(row.get(_STALL.format(reason))))}
    top = sorted(stalls, key=lambda reason: -stalls[reason])[:_TOP]
    return {**kept, "stalls": {reason: round(stalls[reason], 2) for reason in top}}


def _number(text: str | None) -> float | None:
    try:
        return float((text or "").replace(",", ""))
    except ValueError:
        return None

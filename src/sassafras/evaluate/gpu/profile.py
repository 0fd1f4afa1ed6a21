"""A short list of ncu's metrics of kernels on a workload's case, where ncu is there and may read counters.

One process launches all kernels on inputs made as the evaluator makes them (`sanitizer_target`). Clocks and
caches are left alone. What could not be measured is said in words, and nothing stands in its place.
"""

from __future__ import annotations

import csv
import json
import math
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sassafras.core import Case, DeviceError, Kernel, Workload

from .protocol import kernel_facts
from .sanitizer import TARGET, program, run_under

#: metric of ours -> ncu's names, the first that this GPU has
METRICS: dict[str, tuple[str, ...]] = {
    "duration_ns": ("gpu__time_duration.sum",),
    "dram_read_bytes": ("dram__bytes_read.sum",),
    "dram_write_bytes": ("dram__bytes_write.sum",),
    "dram_percent": ("dram__throughput.avg.pct_of_peak_sustained_elapsed",),
    "l2_hit_percent": ("lts__t_sector_hit_rate.pct",),
    "l2_bytes": ("lts__t_bytes.sum",),
    "l2_percent": ("lts__throughput.avg.pct_of_peak_sustained_elapsed",),
    "tensor_percent": (
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
        "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active",
    ),
    "sms_busy_percent": ("sm__cycles_active.avg.pct_of_peak_sustained_elapsed",),
    "waves": ("launch__waves_per_multiprocessor",),
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
    with tempfile.TemporaryDirectory(prefix="sassafras-ncu-") as folder:
        target = [*TARGET, str(workload.source), case.name, str(_LAUNCHES)]
        for index, kernel in enumerate(kernels):
            facts, cubin = Path(folder, f"{index}.json"), Path(folder, f"{index}.cubin")
            facts.write_text(json.dumps(kernel_facts(kernel)))
            cubin.write_bytes(kernel.cubin)
            target += [str(facts), str(cubin)]
        wanted = "|".join(sorted({re.escape(kernel.name) for kernel in kernels}))
        try:
            rows = launches(target, "--kernel-name", f"regex:^({wanted})$", seconds=seconds)
        except DeviceError as error:
            return [{"unavailable": str(error)} for _ in kernels]
    return last(rows, [kernel.name for kernel in kernels])


def last(rows: Sequence[dict[str, Any]], kernels: Sequence[str]) -> list[dict[str, Any]]:
    """The last of each kernel's `_LAUNCHES` rows, which are in order."""
    found = rows[_LAUNCHES - 1 :: _LAUNCHES]
    found = [*found, *[{"kernel": ""}] * (len(kernels) - len(found))]
    return [
        {key: value for key, value in row.items() if key != "kernel"}
        if name in row["kernel"]
        else {"unavailable": "ncu saw no launch of this kernel"}
        for name, row in zip(kernels, found, strict=False)
    ]


def launches(target: Sequence[str], *which: str, seconds: float = 120.0) -> list[dict[str, Any]]:
    """`METRICS`, ``stalls`` and ``kernel`` (its mangled name) of each launch that ncu sees, in order.

    Args:
        target: the program that launches, arguments of Python.
        which: options of ncu that choose among its launches.
        seconds: limit.

    Raises:
        DeviceError: ncu is not installed, does not end, or wrote no profile.
    """
    if (path := program("ncu")) is None:
        raise DeviceError("ncu is not installed")
    names = [name for alternatives in METRICS.values() for name in alternatives]
    names += [_STALL.format(reason) for reason in STALLS]
    for _ in range(3):  # a metric that this GPU lacks is left out the next time
        command = [
            *(path, "--csv", "--page", "raw", "--print-units", "base", "--target-processes", "all"),
            *("--clock-control", "none", "--cache-control", "none", "--kernel-name-base", "mangled"),
            *(*which, "--metrics", ",".join(names)),
        ]
        try:
            done = run_under(command, target, seconds)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise DeviceError(f"ncu: {error}"[:200]) from error
        said = done.stdout + "\n" + done.stderr
        lacking = [name for name in names if re.search(rf"find metric.*{re.escape(name)}", said)]
        if not lacking:
            break
        names = [name for name in names if name not in lacking]
    return parse(said)


def parse(text: str) -> list[dict[str, Any]]:
    """Read ncu's CSV (``--page raw``), a row a launch. Raises DeviceError: there is none."""
    lines = text.splitlines()
    start = next((index for index, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        words = [line.strip() for line in lines if line.startswith("==ERROR==")] or ["no profile was written"]
        raise DeviceError(f"ncu: {words[0][:200]}")
    table = [line for line in lines[start:] if line.startswith('"')]
    return [_one(row) for row in csv.DictReader(table) if (row.get("ID") or "").isdecimal()]


def _one(row: dict[str, str]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for ours, alternatives in METRICS.items():
        values = [value for name in alternatives if (value := _number(row.get(name))) is not None]
        kept |= {ours: values[0]} if values else {}
    stalls = {reason: value for reason in STALLS if (value := _number(row.get(_STALL.format(reason))))}
    top = sorted(stalls, key=lambda reason: -stalls[reason])[:_TOP]
    kept["stalls"] = {reason: round(stalls[reason], 2) for reason in top}
    return {**kept, "kernel": row.get("Kernel Name") or ""}


def _number(text: str | None) -> float | None:
    try:
        number = float((text or "").replace(",", ""))
    except ValueError:
        return None
    return number if math.isfinite(number) else None  # ncu divides by nought: nan

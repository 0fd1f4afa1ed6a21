"""A time in words: microseconds, GB/s or TFLOP/s, and the share of what the GPU could do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sassafras.core import Case, Workload
from sassafras.evaluate.roofline import H200, GpuPeaks, flops_of, traffic

#: part of a GPU's name -> its peaks
_PEAKS: Mapping[str, GpuPeaks] = {"H200": H200, "H100": replace(H200, dram_bytes_s=3.35e12)}


def work_of(workload: Workload, case: Case) -> dict[str, float]:
    """Bytes that a launch reads and writes at least, and its operations if ``meta["flops"]`` says them."""
    written, read = traffic(case)
    return {"bytes": float(written + read), "flops": flops_of(case, workload.meta)}


def rates(time_us: float | None, before_us: float | None, work: Mapping[str, Any], gpu: str) -> str:
    """For example ``7.31 us (7.88 before), 2297 GB/s, 48 % of the memory bound``; ``""`` without a time.

    Buffers are counted whole. Data that the L2 can hold has no memory bound.

    Args:
        time_us, before_us: microseconds a launch, tuned and unmodified.
        work: of `work_of`; may lack everything.
        gpu: its name.
    """
    if not time_us:
        return ""
    text = f"{time_us:.2f} us a launch"
    if before_us and before_us != time_us:
        text += f" ({before_us:.2f} before)"
    nbytes, flops = float(work.get("bytes", 0.0)), float(work.get("flops", 0.0))
    peaks = next((peak for name, peak in _PEAKS.items() if name in gpu), None)
    compute = memory = 0.0
    if peaks is not None:
        compute = flops / (peaks.multiprocessors * peaks.flops_clock * peaks.clock_mhz)
        memory = 1e6 * nbytes / peaks.dram_bytes_s if nbytes > peaks.l2_bytes else 0.0
    if flops:
        text += f", {1e-6 * flops / time_us:.3g} TFLOP/s"
    if nbytes and compute <= memory:
        text += f", {1e-3 * nbytes / time_us:,.0f} GB/s"
    if peaks is not None and nbytes and not compute and not memory:
        text += " (the data fits the L2)"
    elif bound := max(compute, memory):
        text += f", {100 * bound / time_us:.0f} % of the {'compute' if compute > memory else 'memory'} bound"
    return text

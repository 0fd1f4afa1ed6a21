"""The time below which no honest launch can be: what it must read and write, at the fastest there is."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sassafras.core import Buffer, Case


@dataclass(frozen=True, slots=True)
class GpuPeaks:
    """Peaks of a GPU, deliberately optimistic.

    Attributes:
        multiprocessors: count.
        clock_mhz: the highest SM clock seen or allowed.
        l2_bytes: size of the L2: data of at most this size may never touch DRAM.
        dram_bytes_s: DRAM bandwidth, bytes a second.
        l2_bytes_clock: bytes a clock that one multiprocessor can move from or to the L2, one side
            only (64 on sm_80 to sm_90, measured by many).
        flops_clock: dense FP16 tensor operations a clock and multiprocessor (4096 on sm_90: 989 TFLOPS at
            1830 MHz and 132 multiprocessors), counting multiply and add.
    """

    multiprocessors: int = 132
    clock_mhz: float = 1980.0
    l2_bytes: int = 50 << 20
    dram_bytes_s: float = 4.8e12
    l2_bytes_clock: float = 64.0
    flops_clock: float = 4096.0


H200 = GpuPeaks()
H100 = GpuPeaks(dram_bytes_s=3.35e12)
#: SM clock at which NVIDIA states a Hopper GPU's peaks, MHz
NOMINAL_MHZ = 1830.0


def floor_us(case: Case, *, flops: float = 0.0, scratch: Collection[str] = ()) -> float:
    """Microseconds that no launch of this case can beat, on an H200.

    Every output byte must be written once, whatever the algorithm, and that passes the L2. Inputs are counted
    only as far as DRAM is concerned, and only beyond what the L2 can hold: an algorithm may not need all of
    them (gathers, masks), so they count a half. `flops` are those that the workload cannot do without.

    Args:
        case: whose buffers are counted.
        flops: multiply and add counted as two.
        scratch: buffers that a launch need not touch.
    """
    written, read = traffic(case, scratch)
    l2 = written / (H200.multiprocessors * H200.l2_bytes_clock * H200.clock_mhz)
    beyond = max(0.0, written + 0.5 * read - H200.l2_bytes)
    dram = 1e6 * beyond / H200.dram_bytes_s
    compute = flops / (H200.multiprocessors * H200.flops_clock * H200.clock_mhz)
    return max(l2, dram, compute)


def traffic(case: Case, scratch: Collection[str] = ()) -> tuple[int, int]:
    """(bytes of outputs, bytes of inputs) of a case; inout buffers count as both, `scratch` as neither."""
    buffers = [b for name, b in case.args.items() if isinstance(b, Buffer) and name not in scratch]
    written = sum(b.nbytes for b in buffers if b.role != "in")
    return written, sum(b.nbytes for b in buffers if b.role != "out")


def impossible(time_us: float, case: Case, meta: Mapping[str, object]) -> str:
    """Why a time cannot be true, or ``""``. ``meta["flops"]``: operations of a launch, perhaps by case."""
    bound = floor_us(case, flops=flops_of(case, meta), scratch=meta.get("scratch", ()))  # type: ignore[arg-type]
    if time_us >= bound:
        return ""
    return f"{time_us:.3f} us a launch is faster than the machine allows ({bound:.3f} us)"


def flops_of(case: Case, meta: Mapping[str, object]) -> float:
    """Operations that ``meta["flops"]`` of a workload states for a launch, perhaps by case; 0 for none."""
    flops = meta.get("flops", 0.0)
    return float(flops.get(case.name, 0.0) if isinstance(flops, Mapping) else flops)  # type: ignore[arg-type]

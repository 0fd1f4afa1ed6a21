"""Every number of the timing model, in one place, with where it comes from.

Cycles are SM clock cycles; a "sub-core" is one of an SM's four partitions. ``sources()`` returns, field by
field, the origin: a published microbenchmark, NVIDIA's documentation, our own observations of ptxas output,
or a plain assumption.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

_HUERTA = (
    "Huerta et al., Analyzing Modern NVIDIA GPU Cores, arXiv 2503.20481 (Ampere; assumed to hold on Hopper)"
)
_LUO = "Luo et al., Benchmarking and Dissecting the Nvidia Hopper GPU Architecture, arXiv 2402.13499 (H100)"
_GUIDE = "CUDA C++ Programming Guide, throughput of native arithmetic instructions, compute capability 9.0"
_WHITE = "NVIDIA H100 Tensor Core GPU Architecture white paper"
_PTXAS = "distances that ptxas keeps on sm_90 (docs of this project: SASS facts)"
_ASSUMED = "assumed"


def _c(default: float, source: str) -> Any:
    return field(default=default, metadata={"source": source})


@dataclass(frozen=True)
class Constants:
    """Constants of the model for one GPU. Integers are cycles unless the name says otherwise."""

    # the chip
    sms: int = _c(132, "NVIDIA H200 and H100 SXM data sheets")
    clock_mhz: int = _c(
        1830, "order of the clock of an H200 under light load; facts only, ratios do not use it"
    )
    l2_bytes: int = _c(50 * 2**20, _WHITE)
    registers: int = _c(65536, _GUIDE)
    shared_bytes: int = _c(228 * 1024, _GUIDE)
    shared_reserved: int = _c(1024, _GUIDE + ": shared memory reserved a block")
    max_warps: int = _c(64, _GUIDE)
    max_ctas: int = _c(32, _GUIDE)

    # issue
    launch: int = _c(1200, _ASSUMED + ": grid launch and drain, the same for every schedule")
    cta_stagger: int = _c(40, _ASSUMED + ": cycles between the starts of two CTAs on one SM")
    warp_stagger: int = _c(3, _ASSUMED + ": cycles between the starts of two warps of a CTA")
    start_jitter: int = _c(24, _ASSUMED + ": most cycles by which a warp's start differs between replicas")
    cta_turnaround: int = _c(150, _ASSUMED + ": last EXIT of a CTA to the first issue of its successor")
    branch_taken: int = _c(6, _ASSUMED + ": extra cycles of a taken branch (instruction fetch)")
    register_window: int = _c(
        3, _HUERTA + ": operands of a fixed-latency instruction are read within 3 cycles"
    )

    # sub-core pipes: cycles a warp instruction keeps its pipe busy
    alu_busy: int = _c(2, _GUIDE + ": 64 integer/logic results a cycle and SM")
    fma_busy: int = _c(1, _GUIDE + ": 128 FP32 results a cycle and SM")
    imad_busy: int = _c(2, _GUIDE + ": 64 integer multiply-adds a cycle and SM")
    half_busy: int = _c(1, _GUIDE + ": 256 half results (128 packed pairs) a cycle and SM")
    fp64_busy: int = _c(2, _GUIDE + ": 64 FP64 results a cycle and SM")
    xu_busy: int = _c(8, _GUIDE + ": 16 special-function results a cycle and SM; ptxas spaces MUFU by 8")
    const_busy: int = _c(8, _PTXAS + ": LDC 8 apart")
    special_busy: int = _c(8, _PTXAS + ": S2UR 8 apart")
    uniform_busy: int = _c(2, _ASSUMED)

    # fixed latencies of scoreboard-guarded instructions that stay in the sub-core
    xu_latency: int = _c(23, "MUFU about 23 cycles: Volta to Ampere microbenchmarks; assumed on Hopper")
    fp64_latency: int = _c(16, _ASSUMED)
    const_latency: int = _c(29, _HUERTA + ": LDC with a register index, hit")
    special_latency: int = _c(25, _ASSUMED + ": S2R, S2UR")
    uniform_latency: int = _c(12, _ASSUMED + ": variable-latency uniform operations")

    # memory front end, shared by LSU, shared memory and shuffles
    mem_queue: int = _c(5, _HUERTA + ": memory instructions that a sub-core can buffer")
    agu_interval: int = _c(4, _HUERTA + ": a sub-core dispatches one memory instruction every 4 cycles")
    lsu_interval: int = _c(2, _HUERTA + ": the SM accepts one memory instruction every 2 cycles")
    wavefront_bytes: int = _c(128, _WHITE + ": L1/shared bandwidth, bytes a cycle and SM")
    operand_read: int = _c(9, _HUERTA + ": issue to operands read, memory instruction, 32 bit")
    store_read_per_wavefront: int = _c(2, _HUERTA + ": extra operand read time of 64 and 128-bit stores")

    # memory latencies: dispatch to write-back
    shared_latency: int = _c(23, _HUERTA + " (23 to 26); " + _LUO + " reports 29 for a pointer chase")
    shuffle_latency: int = _c(24, _ASSUMED)
    redux_latency: int = _c(30, _ASSUMED)
    l1_latency: int = _c(33, _HUERTA + " (29 to 38)")
    l2_latency: int = _c(263, _LUO + ": 263")
    dram_latency: int = _c(560, _LUO + ": 479 on HBM2e; HBM3e under load assumed somewhat longer")
    atomic_latency: int = _c(320, _ASSUMED)
    ldgsts_extra: int = _c(12, _ASSUMED + ": data of an asynchronous copy into shared memory")
    tma_extra: int = _c(180, _LUO + ": about 170 cycles on top of a plain load")

    # bandwidth, bytes a cycle
    sm_l2_bytes: float = _c(64.0, _WHITE + ": one SM's port to the L2")
    chip_l2_bytes: float = _c(
        3300.0, "about 5.5 to 6 TB/s of L2 reads on H100: chipsandcheese.com, 2023-07-02, scaled"
    )
    chip_dram_bytes: float = _c(2450.0, "4.8 TB/s peak of H200 at 1.83 GHz, times 0.93 achievable (assumed)")

    # tensor cores
    hmma_busy: int = _c(6, _PTXAS + ": HMMA.16816 6 apart; " + _LUO + ": mma.sync at 62 % of peak (4 cycles)")
    hgmma_cycles_per_n: float = _c(0.5, _WHITE + ": 64xNx16 in N/2 cycles; " + _LUO + ": m64n256k16 in 128")
    hgmma_latency: int = _c(20, _ASSUMED + ": start-up of an HGMMA, issue to first use of the tensor core")
    hgmma_queue: int = _c(4, _ASSUMED + ": HGMMAs that a warp may have in flight before issue waits")

    # synchronisation
    bar_latency: int = _c(14, _ASSUMED + ": last arrival to the first issue of the waiters")
    depbar_latency: int = _c(2, _ASSUMED)
    membar_latency: int = _c(250, _ASSUMED + ": MEMBAR.GPU waits for the L2")
    mbarrier_latency: int = _c(30, _ASSUMED + ": SYNCS on a completed phase")

    def sources(self) -> dict[str, str]:
        """Where each number comes from, by field name."""
        return {f.name: f.metadata["source"] for f in dataclasses.fields(self)}

    def replace(self, **changes: float) -> Constants:
        """A copy with other values, for fits and what-if questions."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]


#: the H200 that this project measures on
H200 = Constants()

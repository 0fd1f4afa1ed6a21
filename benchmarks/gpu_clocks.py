"""Clocks of multiprocessors against the global timer: cycles, clock and time of what runs between two looks.

The timer ticks every 32 ns on an H200, for all multiprocessors at once; within a GPC their clocks show the
same (docs/experiments/2026-11-23-hgemm-cycles.md).
"""

from __future__ import annotations

from typing import Any

import numpy as np

#: ticks of the global timer that a calibration waits for
TICKS = 256
CALIBRATE = r"""
extern "C" __global__ void calibrate(unsigned *out) {
    unsigned sm, before, now, *const mine = out + blockIdx.x * (1 + 2 * TICKS);
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    mine[0] = sm;
    asm volatile("mov.u32 %0, %%globaltimer_lo;" : "=r"(before));
    for (int i = 0; i < TICKS;) {
        asm volatile("mov.u32 %0, %%globaltimer_lo;" : "=r"(now));
        const unsigned clock = (unsigned)clock64();
        if (now != before) {
            mine[1 + 2 * i] = now;
            mine[2 + 2 * i++] = clock;
        }
        before = now;
    }
}
""".replace("TICKS", str(TICKS))


class Clocks:
    """What to subtract from a multiprocessor's clock, so that all show the same time (within a GPC)."""

    def __init__(self, tools: Any) -> None:
        import torch

        from sassafras.device.cuda.compile import compile_cuda

        self.tools = tools
        self.cubin = compile_cuda(CALIBRATE, "sm_90a", name="calibrate.cu")
        self.function = tools.gpu.load(self.cubin, "calibrate", 200 << 10)
        self.out = [torch.zeros((132, 1 + 2 * TICKS), dtype=torch.int32, device="cuda") for _ in range(2)]

    def launch(self, slot: int) -> int:
        """Enqueue a calibration; its slot, for `read`."""
        import ctypes

        gpu = self.tools.gpu
        value = ctypes.c_uint64(int(self.out[slot].data_ptr()))
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(value))
        gpu.launch(gpu.config((132, 1, 1), 1, 200 << 10), self.function, ctypes.addressof(pointers))
        return slot

    def read(self, slot: int) -> dict[int, dict[int, int]]:
        """Of each multiprocessor: its clock at each tick of the global timer (ns) that it saw."""
        found = self.out[slot].cpu().numpy().view(np.uint32).astype(np.int64)
        return {int(row[0]): dict(zip(row[1::2].tolist(), row[2::2].tolist(), strict=True)) for row in found}

    def ticks(self) -> dict[int, dict[int, int]]:
        """A calibration, now."""
        slot = self.launch(0)
        self.tools.gpu.sync()
        return self.read(slot)

    def ahead(self, gpc_of: dict[int, int]) -> tuple[dict[int, int], dict[str, float]]:
        """Cycles by which each multiprocessor's clock is ahead of its GPC's first one; how good that is."""
        runs = [self.ticks() for _ in range(3)]
        found: list[dict[int, int]] = [{} for _ in runs]
        for gpc in set(gpc_of.values()):
            of = sorted(sm for sm in runs[0] if gpc_of[sm] == gpc)
            for offsets, run in zip(found, runs, strict=True):
                for sm in of:
                    common = sorted(set(run[sm]) & set(run[of[0]]))
                    # 32-bit clocks: differences may wrap
                    apart = [(run[sm][t] - run[of[0]][t] + (1 << 31)) % (1 << 32) - (1 << 31) for t in common]
                    offsets[sm] = int(np.median(apart)) if apart else 0
        between = [abs(found[0][sm] - found[-1][sm]) for sm in found[0]]
        one = sorted(next(iter(runs[-1].values())))
        quality = {
            "tick_ns": float(np.median(np.diff(one))), "between_calibrations": float(max(between)),
            "apart": float(max(map(abs, found[-1].values()))),
        }  # fmt: skip
        return found[-1], quality


#: microseconds of a block, and how often it is replayed while cycles are counted
BLOCK, REPLAYS = 1000.0, 4


class Cycles:
    """Counts cycles of launches."""

    def __init__(self, tools: Any) -> None:
        self.tools, self.clocks = tools, Clocks(tools)

    def __call__(self, enqueue: Any, guess: float, milliseconds: float | None = None) -> tuple[float, float]:
        """(cycles of a launch back to back, microseconds).

        Args:
            guess: microseconds of a launch.
            milliseconds: that it runs, once to warm up and once counted; else a block of a millisecond, and
                `REPLAYS` of it.
        """
        launches = max(1, int(BLOCK / max(guess, 1.0)))
        block = self.tools.block(enqueue, launches)
        replays, warm = REPLAYS, 1
        if milliseconds is not None:
            replays = warm = max(1, int(1000 * milliseconds / guess / launches))
        for _ in range(warm):
            self.tools.gpu.replay(block.graph)
        before = self.clocks.launch(0)
        for _ in range(replays):
            self.tools.gpu.replay(block.graph)
        after = self.clocks.launch(1)
        self.tools.gpu.sync()
        first, last = self.clocks.read(before), self.clocks.read(after)
        block.discard(self.tools.gpu)
        cycles, ns = [], []
        for sm, ticks in first.items():
            (t0, c0), (t1, c1) = next(reversed(ticks.items())), next(iter(last[sm].items()))
            cycles.append((c1 - c0) % (1 << 32))
            ns.append((t1 - t0) % (1 << 32))
        count = replays * launches
        return round(float(np.median(cycles)) / count, 1), round(float(np.median(ns)) / count / 1000, 3)

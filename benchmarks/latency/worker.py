"""The process that runs kernels of probes: one context, no torch; ends with the first fault.

Started by `sassafras.cuda.worker_process.WorkerProcess`, whose frames it speaks. With ``LATENCY_PRETEND=1``
there is no GPU: the distances are read back out of the cubin's control codes and compared with made-up
latencies (`pretended_latency`), so that the harness, its faults and its tables can be tried anywhere.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import time
from functools import cache
from typing import Any

import numpy as np

from sassafras.cuda.worker_loop import Answer, serve
from sassafras.sass.control import Control

from .build import NAME, clock_cycles
from .frame import COUNTER_BYTES, IDLE, WINDOW

MOST_PROBES, MOST_SHAPES = 256, 3
_COUNTERS = MOST_PROBES * COUNTER_BYTES
#: two windows of memory, found in this much; the low words of their addresses are positive normal numbers as
#: FP32 too, so that every unit hands them through
_MEMORY, _LOW = 2 * WINDOW + (64 << 20), 0x10000000


class Bench:
    """The GPU side."""

    def __init__(self) -> None:
        from sassafras.cuda.driver import Gpu, call

        self.gpu = Gpu()
        self._out = int(call(self.gpu.driver.cuMemAlloc, MOST_SHAPES * _COUNTERS))
        memory = int(call(self.gpu.driver.cuMemAlloc, _MEMORY))
        call(self.gpu.driver.cuMemsetD8, memory, 0, _MEMORY)
        self._memory = memory + (_LOW - memory) % WINDOW
        self._host = self.gpu.pinned(MOST_SHAPES * _COUNTERS // 8)

    def facts(self) -> Answer:
        """What this runs on."""
        return {
            "multiprocessors": self.gpu.multiprocessors,
            "capability": list(self.gpu.capability),
            "name": self.gpu.name,
        }

    def run(self, message: Answer, cubin: bytes) -> Answer:
        """Launch a fresh module in every shape; counters by shape and probe."""
        from sassafras.cuda.driver import call
        from sassafras.cuda.params import ParameterBlock

        gpu, limits = self.gpu, message["limits"]
        start = b"".join(struct.pack("<8I", 0, 0, 0, 0xFFFFFFFF, 0, 0, 0, limit) for limit in limits)
        host = ctypes.addressof(self._host)
        for number in range(len(message["shapes"])):
            ctypes.memmove(host + number * _COUNTERS, start, len(start))
        size = len(message["shapes"]) * _COUNTERS
        function = gpu.load(cubin, NAME)
        call(gpu.driver.cuMemcpyHtoDAsync, self._out, host, size, gpu.stream)
        blocks_of_parameters = []
        for number, (blocks, threads, loops) in enumerate(message["shapes"]):
            values = [
                ("out", self._out + number * _COUNTERS, "*"),
                ("memory", self._memory, "*"),
                ("seed", message["seed"] + number, "u32"),
                ("loops", loops, "u32"),
                ("first", message["first"], "u32"),
                ("count", message["count"], "u32"),
            ]
            blocks_of_parameters.append(block := ParameterBlock(values, function.sizes))
            gpu.launch(gpu.config((blocks, 1, 1), threads), function, block.address)
        gpu.read_back(host, self._out, size)
        gpu.sync()  # a kernel that hangs is the parent's to kill
        words = np.frombuffer(self._host, dtype="<u4").reshape(MOST_SHAPES, MOST_PROBES, 8)
        found = words[: len(message["shapes"]), : len(limits), : message.get("words", 5)].tolist()
        gpu.unload(function)
        return {"counters": found}


def pretended_latency(row: list[str]) -> int:
    """A made-up latency of a row of the table: nothing that anything real was measured to have."""
    kind, first, _, second, slot = row
    if kind != "raw":
        return 2 if kind == "war" else 3
    if slot == "G":
        return 12
    if first.startswith(("HMMA", "IMMA")):
        return 18 if second.startswith(("HMMA", "IMMA")) else 21
    return 4 + (sum(map(ord, second)) % 3)


class Pretend:
    """A stand-in for the GPU: reads distances out of the cubin; hangs, crashes and dies when told."""

    def facts(self) -> Answer:
        """Of no GPU."""
        return {"multiprocessors": 4, "capability": [9, 0], "name": "pretended"}

    def run(self, message: Answer, cubin: bytes) -> Answer:
        """Counters as a GPU with `pretended_latency` would leave them."""
        code = np.frombuffer(cubin, dtype="<u8", count=2 * message["room"], offset=message["offset"]).reshape(
            -1, 2
        )
        found = []
        for blocks, threads, loops in message["shapes"]:
            rows = []
            for n, (row, start, limit) in enumerate(
                zip(message["rows"], message["slots"], message["limits"], strict=True)
            ):
                if not message["first"] <= n < message["first"] + message["count"]:
                    rows.append([0, 0, 0, 0xFFFFFFFF, 0])
                    continue
                distance = distance_in(code, start)
                if row[3] == message.get("fault") and distance == 2:
                    os.kill(os.getpid(), signal.SIGKILL) if message["number"] % 2 else time.sleep(60)
                warps = blocks * (threads // 32) * loops
                clock = clock_cycles(distance) + 1
                counted = 32 * warps if clock <= limit else 0
                bad = counted if distance < pretended_latency(row) else 0
                rows.append([bad, 0, counted, clock, warps])
            found.append(rows)
        return {"counters": found}


def distance_in(code: np.ndarray, start: int) -> int:
    """Cycles between the first and the second instruction of the pair behind `start`, by their control
    codes."""
    idle = int(code[start, 0]), int(code[start, 1]) & (1 << 41) - 1
    at = start + IDLE
    cycles = Control.decode(int(code[at, 1])).stall
    while (int(code[at, 0]), int(code[at, 1]) & (1 << 41) - 1) == idle:
        at -= 1
        cycles += Control.decode(int(code[at, 1])).stall
    return cycles


def main() -> int:
    """Serve until the parent closes the pipe."""
    # with the first request: what is wrong with the GPU is then its answer
    bench: Any = cache(Pretend if os.environ.get("LATENCY_PRETEND") == "1" else Bench)
    return serve({
        "open": lambda message, blobs: bench().facts(),
        "run": lambda message, blobs: bench().run(message, blobs[0]),
    })  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())

"""Massive probabilistic testing on the GPU: fresh inputs every launch, every output byte compared.

Two arenas: the baseline runs on one, the candidate on the other, both start from the same fresh image made
by one kernel, and one kernel compares them whole. Hundreds of samples make one graph; nothing is sent to the
host but three counters at the end of a slice.
"""

from __future__ import annotations

import struct
import time
from typing import Any

from sassafras.core import Custom, DeviceError, Kernel, Normal, Uniform

from .arena import Layout
from .bench import Bench
from .driver import Function
from .params import ParameterBlock
from .scene import Plan

#: codes of ``Segment.dtype`` in kernels.cu
DTYPE_CODES = {
    "fp64": 0, "fp32": 1, "fp16": 2, "bf16": 3, "fp8e4nv": 4, "fp8e5": 5,
    "i64": 16, "i32": 17, "i16": 18, "i8": 19, "u8": 20, "i1": 21,
}  # fmt: skip
#: one sample in this many also holds infinities, NaN, subnormal and huge values
SPECIAL_EVERY = 16
_MASK = (1 << 64) - 1
_SEGMENT = struct.Struct("<QQIIffqq")


def segment_table(layout: Layout) -> tuple[bytes, list[str]]:
    """The ``Segment`` array of kernels.cu for every buffer with random inputs, and the names left fixed."""
    rows, fixed = [], []
    for segment in layout.segments:
        buffer = segment.buffer
        if buffer.role == "out":
            continue
        code, how = DTYPE_CODES[buffer.dtype], buffer.fill
        if isinstance(how, Custom):
            fixed.append(segment.name)
        elif isinstance(how, Normal):
            rows.append(_SEGMENT.pack(segment.offset, segment.end, 1, code, how.mean, how.std, 0, 0))
        elif isinstance(how, Uniform):
            low, high = int(how.low), max(int(how.high), int(how.low) + 1)
            rows.append(_SEGMENT.pack(segment.offset, segment.end, 2, code, how.low, how.high, low, high))
    return b"".join(rows), fixed


class Sampler:
    """Samples one candidate on a bench's headline case.

    Args:
        bench: an open bench.
        kernel: the candidate.
        seed: first sample number is ``seed << 32``, so that seeds do not overlap.

    Raises:
        DeviceError: the baseline differs from itself, so that bytes cannot be compared.
    """

    def __init__(
        self, bench: Bench, kernel: Kernel, *, seed: int = 0, samples_a_graph: int | None = None
    ) -> None:
        import torch

        self.bench, self.gpu = bench, bench.gpu
        scene = bench.headline
        if not scene.exact:
            raise DeviceError(
                "the baseline differs from itself, so samples cannot be compared byte by byte",
                where=f"case {scene.case.name}",
            )
        self.words = scene.layout.nbytes // 16
        table, self.fixed = segment_table(scene.layout)
        self.segments = len(table) // _SEGMENT.size
        self._table = torch.frombuffer(bytearray(table or bytes(_SEGMENT.size)), dtype=torch.uint8).to("cuda")
        self._other = torch.empty_like(scene.live)
        #: [0] sample counter; [2:5] totals; [6] last differing sample
        self._numbers = torch.zeros(8, dtype=torch.int64, device="cuda")
        self._numbers[0] = seed << 32
        torch.cuda.synchronize()
        self.first_sample = seed << 32
        self.function = self.gpu.load_kernel(kernel)
        self._plan = scene.plan(kernel, self.function, self._other)
        self._refill = bench.checker.load("sassafras_refill")
        self._compare = bench.checker.load("sassafras_compare_sample")
        self._bump = bench.checker.load("sassafras_bump")
        self._wide = self.gpu.config((min(8 * self.gpu.multiprocessors, -(-self.words // 256)), 1, 1), 256)
        self._single = self.gpu.config((1, 1, 1), 1)
        self._host = self.gpu.pinned(8)
        self._blocks: list[ParameterBlock] = []
        self.samples_a_graph = samples_a_graph or int(min(256, max(4, 4000 // (2 * bench.launch_us + 4))))
        self.taken = 0
        self.pair_us: float | None = None
        self.graph = self.gpu.capture(self._enqueue)

    def _enqueue(self) -> None:
        scene = self.bench.headline
        numbers = int(self._numbers.data_ptr())
        live, other = int(scene.live.data_ptr()), int(self._other.data_ptr())
        pristine = int(scene.images[0].pristine.data_ptr())
        table = int(self._table.data_ptr())
        for index in range(self.samples_a_graph):
            self._own(
                self._refill,
                ("first", live, "*"), ("second", other, "*"), ("pristine", pristine, "*"),
                ("words", self.words, "u64"),
                ("segments", table, "*"), ("count", self.segments, "u32"), ("counter", numbers, "*"),
                ("index", index, "u64"), ("special_every", SPECIAL_EVERY, "u32"),
            )  # fmt: skip
            scene.launch(self.bench.plan, self.bench.function)
            self._launch(self._plan, self.function)
            self._own(
                self._compare,
                ("a", live, "*"), ("b", other, "*"), ("words", self.words, "u64"), ("counter", numbers, "*"),
                ("index", index, "u64"), ("totals", numbers + 16, "*"), ("seen", numbers + 48, "*"),
            )  # fmt: skip
        block = ParameterBlock(
            [("counter", numbers, "*"), ("by", self.samples_a_graph, "u64")], self._bump.sizes
        )
        self._blocks.append(block)
        self.gpu.launch(self._single, self._bump, block.address)

    def _launch(self, plan: Plan, function: Function) -> None:
        self.bench.headline.launch(plan, function)

    def _own(self, function: Function, *parameters: tuple[str, int, str]) -> None:
        block = ParameterBlock(parameters, function.sizes)
        self._blocks.append(block)
        self.gpu.launch(self._wide, function, block.address)

    def slice(self, seconds: float, most: int | None = None) -> dict[str, Any]:
        """Sample for about that long, or until `most` samples in all were taken.

        Returns: ``samples`` and ``mismatches`` so far, ``first`` differing sample and ``where``, ``seconds``.
        """
        begin = time.perf_counter()
        self.gpu.replay(self.graph)
        self.taken += self.samples_a_graph
        self.gpu.sync()
        one = max(1e-6, time.perf_counter() - begin)
        ahead = int(max(1, min(64, 0.05 / one)))
        while time.perf_counter() - begin < seconds and (most is None or self.taken < most):
            for _ in range(ahead):
                self.gpu.replay(self.graph)
                self.taken += self.samples_a_graph
            self.gpu.sync()
        spent = time.perf_counter() - begin
        import ctypes

        self.gpu.read_back(ctypes.addressof(self._host), int(self._numbers.data_ptr()), 64)
        self.gpu.sync()
        mismatches = int(self._host[2])
        answer: dict[str, Any] = {"samples": self.taken, "mismatches": mismatches, "seconds": spent}
        if int(self._host[0]) != self.first_sample + self.taken:
            raise DeviceError("the sample counter on the GPU disagrees with the launches made")
        if mismatches:
            _, place = self.bench.headline.layout.where(~int(self._host[4]) & _MASK)
            answer |= {"first": (~int(self._host[3]) & _MASK) - self.first_sample, "where": place}
        return answer

    def close(self) -> None:
        """Give the graph and the module back."""
        self.gpu.discard(self.graph)
        self.gpu.unload(self.function)


def launch_pair_us(bench: Bench, kernel: Kernel) -> float:
    """GPU microseconds of one candidate launch plus one baseline launch: the bound on samples a second."""
    function = bench.gpu.load_kernel(kernel)
    plan = bench.headline.plan(kernel, function)
    graph = bench.headline.graph(plan, function, bench.launches)
    try:
        times = bench.stopwatch.blocks([bench.graph, graph], [0, 1] * 5)
        return (min(times[0::2]) + min(times[1::2])) / bench.launches
    finally:
        bench.gpu.discard(graph)
        bench.gpu.unload(function)

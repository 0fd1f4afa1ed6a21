"""Massive probabilistic testing on the GPU: fresh inputs every launch, every output byte compared.

Baseline and candidate read the same inputs and write outputs of their own; between two samples one kernel
compares the outputs of the last and writes the inputs of the next (counter-based: a sample's inputs depend on
its number alone). A sample is therefore three launches, of which two are those that would be needed anyway.
Hundreds of samples make one graph; nothing is sent to the host but a few counters at the end of a slice.

An in/out buffer of which a launch changes less than half keeps most of its contents: what a launch changed
is restored, and a seventh of the words gets new values; in one sample of 16 (special values) and in the next
all are. Contents still depend on the sample's number alone, and every byte of both arenas is compared.

Outputs are poisoned at the start of each graph, not before each sample: what a launch leaves unwritten is
then what the launch before left, made from other inputs, and differs. Inputs are verified against the
generator once a graph. Guard bands and inputs without a generator are verified once a slice: nothing rewrites
the former, and the latter only at the start of a graph.
"""

from __future__ import annotations

import ctypes
import struct
import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from sassafras.core import Custom, DeviceError, Kernel, Normal, Uniform
from sassafras.cuda.driver import Gpu, KernelFunction
from sassafras.cuda.params import Parameter, ParameterBlock

from .compare import Checker
from .guarded_buffers import BufferLayout

if TYPE_CHECKING:
    from .case_on_gpu import CaseOnGpu
    from .judge import KernelJudge

#: codes of ``Job.dtype`` in kernels.cu
DTYPE_CODES = {
    "fp64": 0,
    "fp32": 1,
    "fp16": 2,
    "bf16": 3,
    "fp8e4nv": 4,
    "fp8e5": 5,
    "i64": 16,
    "i32": 17,
    "i16": 18,
    "i8": 19,
    "u8": 20,
    "i1": 21,
}
#: one sample in this many also holds infinities, NaN, subnormal and huge values
SPECIAL_EVERY = 16
#: share of an in/out buffer's words up to which a launch changes little of it
LITTLE = 0.5
_MASK = (1 << 64) - 1
_JOB = struct.Struct("<QQQIIIIffqq")
_COMPARE, FILL, _BOTH, _VERIFY, _KEPT = 1, 2, 4, 8, 16


def job_table(layout: BufferLayout, kept: Collection[str] = ()) -> tuple[bytes, int, list[str]]:
    """The ``Job`` array of kernels.cu, the words of all jobs together, and the names of inputs left fixed.

    Args:
        kept: in/out buffers of which a launch changes little.

    Raises:
        DeviceError: more words than the kernel's 32-bit numbers reach.
    """
    rows, fixed, total = [], [], 0
    for segment in layout.segments:
        buffer, how = segment.buffer, segment.buffer.fill
        what = 0 if buffer.role == "in" else _COMPARE
        random = buffer.role != "out" and isinstance(how, Normal | Uniform)
        fill, p0, p1, i0, i1 = 0, 0.0, 0.0, 0, 1
        if buffer.role != "out" and isinstance(how, Custom):
            fixed.append(segment.name)
        if random:
            what |= FILL | (_VERIFY if buffer.role == "in" else _BOTH)
            what |= _KEPT if segment.name in kept else 0
            if isinstance(how, Normal):
                fill, p0, p1 = 1, how.mean, how.std
            elif isinstance(how, Uniform):
                fill, p0, p1 = 2, how.low, how.high
                i0, i1 = int(how.low), max(int(how.high), int(how.low) + 1)
        if not what:
            continue
        begin, end = segment.offset // 16, -(-segment.end // 16)
        tail = segment.end - 16 * (end - 1)
        rows.append(_JOB.pack(begin, end, total, what, fill, DTYPE_CODES[buffer.dtype], tail, p0, p1, i0, i1))
        total += end - begin
    if total >> 32:
        raise DeviceError("buffers of 64 GB and more cannot be sampled", hint="sample a smaller case")
    return b"".join(rows), total, fixed


class InputSteps:
    """The kernels that run between two launches: compare outputs, write or verify inputs, count samples.

    Args:
        gpu, checker: as of a `KernelJudge`.
        layout: of the arenas that steps work on.
        kept: see `job_table`.

    Attributes:
        words: 16-byte words that one step covers.
        fixed: names of inputs that are left as they are.
        numbers: int64 (8,) on the GPU: [0:2] counters, [2:6] totals, [6] the last sample that differed.
    """

    def __init__(self, gpu: Gpu, checker: Checker, layout: BufferLayout, kept: Collection[str] = ()) -> None:
        import torch

        self._gpu = gpu
        table, self.words, self.fixed = job_table(layout, kept)
        self._jobs = len(table) // _JOB.size
        self._table = torch.frombuffer(bytearray(table or bytes(_JOB.size)), dtype=torch.uint8).to("cuda")
        self.numbers = torch.zeros(8, dtype=torch.int64, device="cuda")
        torch.cuda.synchronize()
        self._step, self._bump = checker.load("sassafras_step"), checker.load("sassafras_bump")
        # five blocks fit on a multiprocessor: one wave
        blocks = max(1, min(5 * gpu.multiprocessors, -(-self.words // 256)))
        self._wide, self._single = gpu.config((blocks, 1, 1), 256), gpu.config((1, 1, 1), 1)
        # behind a launch, for which the step waits itself
        self._behind = gpu.config((blocks, 1, 1), 256, overlap=gpu.capability >= (9, 0))
        self._blocks: list[ParameterBlock] = []

    def step(
        self, first: int, second: int, index: int, what: int, *, counter: int = 0, special_every: int = 0
    ) -> None:
        """Enqueue ``sassafras_step`` (see kernels.cu) on two arenas, given by address; `counter`: 0 or 1."""
        numbers = int(self.numbers.data_ptr())
        self._launch(
            self._behind if what & _COMPARE else self._wide,
            self._step,
            ("first", first, "*"),
            ("second", second, "*"),
            ("jobs", int(self._table.data_ptr()), "*"),
            ("count", self._jobs, "u32"),
            ("words", self.words, "u64"),
            ("counter", numbers + 8 * counter, "*"),
            ("index", index, "u64"),
            ("what", what, "u32"),
            ("special_every", special_every, "u32"),
            ("totals", numbers + 16, "*"),
            ("seen", numbers + 48, "*"),
        )

    def advance(self, by: int, *, counter: int = 0) -> None:
        """Enqueue: move a counter on."""
        address = int(self.numbers.data_ptr()) + 8 * counter
        self._launch(self._single, self._bump, ("counter", address, "*"), ("by", by, "u64"))

    def _launch(self, config: Any, function: KernelFunction, *parameters: Parameter) -> None:
        block = ParameterBlock(parameters, function.sizes)
        self._blocks.append(block)  # a graph reads it at every replay
        self._gpu.launch(config, function, block.address)


class Sampler:
    """Samples one candidate on a bench's headline case.

    Args:
        bench: an open bench.
        kernel: the candidate.
        seed: first sample number is ``seed << 32``, so that seeds do not overlap.

    Raises:
        DeviceError: the baseline differs from itself, so that bytes cannot be compared, or there is nothing
            to compare or to fill.
    """

    def __init__(self, bench: KernelJudge, kernel: Kernel, *, seed: int = 0) -> None:
        import torch

        self.bench, self.gpu = bench, bench.gpu
        scene = bench.headline
        if not scene.exact:
            raise DeviceError(
                "the baseline differs from itself, so samples cannot be compared byte by byte",
                where=f"case {scene.case.name}",
            )
        self.kept = little_changed(scene)
        self._steps = InputSteps(self.gpu, bench.checker, scene.layout, self.kept)
        self.fixed = self._steps.fixed
        if not self._steps.words:
            raise DeviceError("no buffer is random or an output", where=f"case {scene.case.name}")
        self._other = torch.empty_like(scene.live)
        self._steps.numbers[0] = seed << 32
        torch.cuda.synchronize()
        self.first_sample = seed << 32
        self.function = self.gpu.load_kernel(kernel)
        inputs = {s.name for s in scene.layout.segments if s.buffer.role == "in"}
        self._plan = scene.plan(kernel, self.function, self._other, shared=inputs)
        self._host = self.gpu.pinned(8)
        self.samples_a_graph = int(min(256, max(4, 4000 // (2 * bench.launch_us + 4))))
        self.taken = 0
        self.pair_us: float | None = None
        self.graph = self.gpu.capture(self.enqueue)

    def enqueue(self) -> None:
        """Enqueue what a graph holds: `samples_a_graph` samples."""
        scene = self.bench.headline
        live, other = int(scene.live.data_ptr()), int(self._other.data_ptr())
        pristine = int(scene.images[0].pristine.data_ptr())
        # what a graph starts from; guard bands are only judged, and inputs are shared
        for segment in scene.layout.segments:
            for arena in (live,) if segment.buffer.role == "in" else (live, other):
                at = segment.offset
                self.gpu.copy(arena + at, pristine + at, segment.end - at)
        self._steps.step(live, other, 0, FILL, special_every=SPECIAL_EVERY)
        for index in range(self.samples_a_graph):
            scene.launch(self.bench.plan, self.bench.function)
            scene.launch(self._plan, self.function)
            last = index + 1 == self.samples_a_graph
            what = _COMPARE | (_VERIFY if last else FILL)
            self._steps.step(live, other, index, what, special_every=SPECIAL_EVERY)
        self._steps.advance(self.samples_a_graph)

    def _unharmed(self) -> list[str]:
        """Where a guard band of either arena changed since the slice began, or an input without a generator
        since the last graph did."""
        scene, checker = self.bench.headline, self.bench.checker
        pristine = int(scene.images[0].pristine.data_ptr())
        at = 0
        for segment in (*scene.layout.segments, None):
            if segment is not None and segment.buffer.role == "in" and segment.name in self.fixed:
                continue  # within what is compared up to the next one
            end = scene.layout.nbytes if segment is None else segment.offset
            if end > at:
                for arena in (int(scene.live.data_ptr()), int(self._other.data_ptr())):
                    checker.compare(arena + at, pristine + at, end - at, "while sampling", scene.layout, at)
            if segment is not None:
                at = -(-segment.end // 16) * 16
        return [words for _, words in checker.failures()]

    def slice(self, seconds: float, most: int | None = None) -> dict[str, Any]:
        """Sample for about that long, or until `most` samples in all were taken.

        Returns: ``samples`` and ``mismatches`` so far, ``first`` differing sample and ``where``, ``seconds``.
        """
        scene = self.bench.headline
        pristine, nbytes = int(scene.images[0].pristine.data_ptr()), scene.layout.nbytes
        for arena in (int(scene.live.data_ptr()), int(self._other.data_ptr())):
            self.gpu.copy(arena, pristine, nbytes)
        self.gpu.sync()
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
        self.gpu.read_back(ctypes.addressof(self._host), int(self._steps.numbers.data_ptr()), 64)
        self.gpu.sync()
        mismatches = int(self._host[2])
        answer: dict[str, Any] = {"samples": self.taken, "mismatches": mismatches, "seconds": spent}
        if modified := int(self._host[5]):
            answer |= {"spoilt": f"inputs were modified ({modified} words of 16 bytes)"}
        if harmed := self._unharmed():
            answer |= {"spoilt": harmed[0]}
        if int(self._host[0]) != self.first_sample + self.taken:
            raise DeviceError("the sample counter on the GPU disagrees with the launches made")
        if mismatches:
            _, place = scene.layout.where(~int(self._host[4]) & _MASK)
            answer |= {"first": (~int(self._host[3]) & _MASK) - self.first_sample, "where": place}
        return answer

    def close(self) -> None:
        """Give the graph and the module back."""
        self.gpu.discard(self.graph)
        self.gpu.unload(self.function)


def little_changed(scene: CaseOnGpu) -> dict[str, float]:
    """The in/out buffers of which a baseline launch changes less than `LITTLE` of the words: which share."""
    import torch

    image, little = scene.images[0], dict[str, float]()
    for segment in scene.layout.segments:
        if segment.buffer.role == "inout":
            begin, end = segment.offset, segment.offset + segment.buffer.nbytes // 16 * 16
            before, after = (arena[begin:end].view(torch.int64) for arena in (image.pristine, image.expected))
            changed = float((before != after).view(-1, 2).any(1).float().mean()) if end > begin else 1.0
            little |= {segment.name: changed} if changed < LITTLE else {}
    return little


def launch_pair_us(bench: KernelJudge, kernel: Kernel) -> tuple[float, float]:
    """GPU microseconds of a candidate launch and of a baseline launch: their sum bounds samples a second."""
    function = bench.gpu.load_kernel(kernel)
    plan = bench.headline.plan(kernel, function)
    graph = bench.headline.graph(plan, function, bench.launches)
    try:
        times = bench.stopwatch.blocks([bench.graph, graph], [0, 1] * 5)
        return min(times[1::2]) / bench.launches, min(times[0::2]) / bench.launches
    finally:
        bench.gpu.discard(graph)
        bench.gpu.unload(function)

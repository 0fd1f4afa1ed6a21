"""How functions are timed: wall time on the CPU, CUDA graphs on the GPU."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sassafras.core import DeviceError
from sassafras.core.failed_capture import captured
from sassafras.cuda.driver import bindings
from sassafras.cuda.driver import call as checked

Function = Callable[..., Any]
#: the clock in nanoseconds, taken before a function could patch it
now = time.perf_counter_ns
#: bytes of a page of GPU memory; pages that a piece of padding has, at least and below
PAD_UNIT, PAD_UNITS = 2 << 20, (5, 21)


@dataclass(frozen=True, slots=True)
class Call:
    """A function and the arguments that it is called with."""

    function: Function
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def __call__(self) -> Any:
        """One call; returns what the function returns."""
        return self.function(*self.args, **self.kwargs)

    def repeat(self, calls: int) -> None:
        """That many calls, one after another, with nothing between them."""
        function, args, kwargs = self.function, self.args, self.kwargs
        for _ in range(calls):
            function(*args, **kwargs)


class Timer:
    """How functions are timed somewhere. `Cpu` and `GpuTimer` implement it."""

    how = ""

    def pad(self, rng: np.random.Generator) -> Any:
        """Take some memory, so that what is prepared next lies elsewhere; hold what is returned meanwhile."""
        return None

    def prepare(self, call: Call, calls: int) -> Any:
        """A block of that many calls, ready to be timed again and again."""
        raise NotImplementedError

    def time(self, blocks: Sequence[Any], order: Sequence[int]) -> list[float]:
        """Microseconds of each block, in that order (indices into `blocks`)."""
        raise NotImplementedError

    def cold(self, blocks: Sequence[Any], order: Sequence[int]) -> list[float] | None:
        """The same with the L2 evicted before each; None where there is no such thing."""
        return None

    def synchronise(self) -> None:
        """Wait until everything that was asked for is done."""

    def discard(self, block: Any) -> None:
        """Give a block back."""


class Cpu(Timer):
    """Wall time in this thread. The garbage collector is paused around timed blocks."""

    how = "wall time on the CPU"

    def prepare(self, call: Call, calls: int) -> Any:
        def block() -> None:
            call.repeat(calls)

        block()
        return block

    def time(self, blocks: Sequence[Any], order: Sequence[int]) -> list[float]:
        times = []
        collecting = gc.isenabled()
        gc.collect()
        gc.disable()
        try:
            blocks[order[0]]()
            for which in order:
                begin = now()
                blocks[which]()
                times.append((now() - begin) / 1e3)
        finally:
            if collecting:
                gc.enable()
        return times


class GpuTimer(Timer):
    """GPU time of CUDA graphs, by events around each replay.

    Warm blocks run twice and the second run is timed: each function allocates results of its own, so what
    lies in the L2 when a block begins would otherwise depend on whose block came before. That is not all:
    *where* those results lie seems to decide how well they fit the L2, while the graph lives; hence `pad`.

    Raises:
        DeviceError: torch cannot use a GPU.
    """

    how = "GPU time in CUDA graphs, one process"

    def __init__(self) -> None:
        import torch

        if not torch.cuda.is_available():
            raise DeviceError("torch cannot use a GPU here", hint='device="cpu" times functions on the CPU')
        self._torch = torch
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        l2 = int(getattr(properties, "L2_cache_size", 64 << 20))
        self._eviction = torch.zeros(5 * l2 // 2 // 4, dtype=torch.float32, device="cuda")
        self._sum = torch.zeros((), dtype=torch.float32, device="cuda")

    def pad(self, rng: np.random.Generator) -> Any:
        """2 to 5 allocations of 10 to 40 MiB, of random size: the capture's memory comes after them.

        Sizes from 10 MiB are asked of the driver one by one, once torch's cache is empty. What would take
        more than a 32nd of the free memory is left out; the draws stay the same.
        """
        torch = self._torch
        sizes = [int(size) * PAD_UNIT for size in rng.integers(*PAD_UNITS, size=int(rng.integers(2, 6)))]
        torch.cuda.empty_cache()
        free = int(torch.cuda.mem_get_info()[0])
        return [torch.empty(size, dtype=torch.uint8, device="cuda") for size in sizes if size <= free // 32]

    def prepare(self, call: Call, calls: int) -> Any:
        """Capture the calls. Raises DeviceError when nothing was captured (work on another stream)."""
        torch = self._torch
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            call.repeat(3)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        try:
            graph = torch.cuda.CUDAGraph(keep_graph=True)
            kept = True
        except TypeError:  # torch before 2.8 does not hand the captured graph out
            graph, kept = torch.cuda.CUDAGraph(), False
        try:
            with captured(graph):
                call.repeat(calls)
        except RuntimeError as error:
            raise DeviceError(
                f"the function cannot be captured in a CUDA graph: {error}",
                where=getattr(call.function, "__name__", None),
                hint="it must not synchronise, copy to the host, or use streams of its own",
            ) from error
        nodes = graph_nodes(int(graph.raw_cuda_graph())) if kept else calls
        if nodes < calls:
            raise DeviceError(
                f"{calls} calls put {nodes} operations on the stream: the work happens elsewhere",
                where=getattr(call.function, "__name__", None),
                hint="it runs on another stream or thread, on the CPU, or not at all",
            )
        if kept:
            graph.instantiate()
        return graph

    def time(self, blocks: Sequence[Any], order: Sequence[int]) -> list[float]:
        return self._timed(blocks, order, None)

    def cold(self, blocks: Sequence[Any], order: Sequence[int]) -> list[float] | None:
        def evict() -> None:
            self._torch.sum(self._eviction, dim=0, out=self._sum)

        return self._timed(blocks, order, evict)

    def _timed(
        self, blocks: Sequence[Any], order: Sequence[int], before: Callable[[], None] | None
    ) -> list[float]:
        event = self._torch.cuda.Event
        pairs = [(event(enable_timing=True), event(enable_timing=True)) for _ in order]
        for which, (begin, end) in zip(order, pairs, strict=True):
            if before is not None:
                before()
            else:
                blocks[which].replay()
            begin.record()
            blocks[which].replay()
            end.record()
        self.synchronise()
        return [1e3 * float(begin.elapsed_time(end)) for begin, end in pairs]

    def synchronise(self) -> None:
        self._torch.cuda.synchronize()

    def discard(self, block: Any) -> None:
        block.reset()


def graph_nodes(graph: int) -> int:
    """Nodes of a captured CUDA graph, by its handle."""
    driver = bindings()
    found = checked(driver.cuGraphGetNodes, driver.CUgraph(graph), 0)
    return int(found[-1] if isinstance(found, tuple) else found)

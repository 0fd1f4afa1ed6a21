"""A GPU with all contestants: our kernels, cuBLAS and cuBLASLt, torch, and sassafras.matmul."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sassafras.cuda.cublas import RECOMMENDED_WORKSPACE, WORKSPACES, Cublas, CublasLt, LtAlgorithm, LtProblem
from sassafras.cuda.driver import Gpu, KernelFunction, call
from sassafras.cuda.timing import Stopwatch

from .. import matmul as room
from ..build import schedules
from ..build.arguments import packed
from ..build.cubins import cubin
from ..configs.registry import Config, Instance
from ..problem.launch import SHARED_LIMIT, Launch
from ..problem.shape import LAYOUTS, Shape
from ..select.selector import Selector
from ..select.table import TableRow, TunedTable
from .operands import Operands
from .timing import Enqueue, TimedBlock


class Contestants:
    """One GPU, one stream that everything (torch too) runs on, and what is timed on it.

    Args:
        cache: folder of our cubins; missing ones are compiled.

    Raises:
        DeviceError, ToolMissing: no GPU, or a library is missing.
    """

    modelled = False

    def __init__(self, cache: Path | None = None) -> None:
        import torch

        if cache is not None:  # sassafras.matmul looks there, too
            os.environ["SASSAFRAS_GEMM_CACHE"] = str(cache)
        self.gpu = Gpu()
        self.watch = Stopwatch(self.gpu)
        torch.cuda.set_device(0)
        stream = int(self.gpu.stream)
        self._torch_stream = torch.cuda.ExternalStream(stream)
        torch.cuda.set_stream(self._torch_stream)
        # the reference's FP64 product and this one make torch load cuBLAS, which the bindings then find
        warm = torch.ones(64, 64, dtype=torch.float16, device="cuda")
        torch.matmul(warm, warm, out=torch.empty_like(warm))
        self._workspace = torch.empty(max(WORKSPACES), dtype=torch.uint8, device="cuda")
        at = int(self._workspace.data_ptr())
        self.cublas = Cublas(stream, at, RECOMMENDED_WORKSPACE)
        self.strict = Cublas(stream, at, RECOMMENDED_WORKSPACE, reduced_precision=False)
        self.lt = CublasLt(stream, at, max(WORKSPACES))
        self._cache = cache
        self._functions: dict[Instance, KernelFunction] = {}
        self._scratches: list[Any] = []
        self.l2_bytes = int(self.gpu.l2_bytes)
        self._words = torch.ones(2 * self.l2_bytes // 4 + 1, dtype=torch.int32, device="cuda")
        self._pool = torch.cuda.MemPool()
        self.gpu.sync()

    def operands(
        self, shape: Shape, seed: int, layouts: Sequence[str] = LAYOUTS, dtype: str = "fp16"
    ) -> Operands:
        """Guarded buffers with an FP64 reference."""
        return Operands(shape, seed, layouts, dtype)

    def empty_l2(self) -> None:
        """Enqueue a read of twice the L2."""
        self._words.amax()

    def block(self, *block: Any) -> TimedBlock:
        """A captured block, arguments as `TimedBlock`'s; what torch allocates meanwhile stays the graph's."""
        import torch

        with torch.cuda.use_mem_pool(self._pool):
            return TimedBlock(self.gpu, *block)

    def function(self, instance: Instance) -> KernelFunction:
        """The loaded kernel. Raises CudaError, CompileError."""
        if instance not in self._functions:
            code = schedules.scheduled(cubin(instance, self._cache), instance.name, self.gpu.name).cubin
            self._functions[instance] = self.gpu.load(code, instance.name)
        return self._functions[instance]

    def ours(self, config: Config, operands: Any, code: KernelFunction | None = None) -> Enqueue:
        """Bind one of our configurations to buffers. Raises SassafrasError when it cannot run.

        Args:
            code: of its first kernel, instead of `function`'s.
        """
        launch = config.launch(operands.shape)
        a, b, c = operands.addresses(config.layout)
        first, second = (b, a) if config.swap_ab else (a, b)
        addresses = {"a": first, "b": second, "c": c, **self._scratch(launch)}
        enqueue = self._bound(config.instance, launch, addresses, code)
        if launch.then is None:
            return enqueue
        behind = self._bound(launch.then.instance, launch.then.launch, addresses)

        def both() -> None:
            enqueue()
            behind()

        return both

    def _bound(
        self,
        instance: Instance,
        launch: Launch,
        addresses: dict[str, int],
        code: KernelFunction | None = None,
    ) -> Enqueue:
        """One launch."""
        function = code or self.function(instance)
        driver = self.gpu.driver
        which = driver.CUfunction_attribute
        if launch.shared_bytes > 48 * 1024:
            # no cache preference here: the small kernels want as much L1 as is left
            limit = which.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            call(driver.cuFuncSetAttribute, function.handle, limit, SHARED_LIMIT)
        if instance.all_shared:
            carveout = which.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
            call(driver.cuFuncSetAttribute, function.handle, carveout, 100)
        sizes, name = function.sizes, instance.name
        block = packed(instance.parameters, launch, addresses, driver, sizes=sizes, where=name)
        how = self.gpu.config(
            launch.grid, launch.threads, launch.shared_bytes, launch.cluster, overlap=launch.overlap
        )
        gpu = self.gpu

        def enqueue() -> None:
            gpu.launch(how, function, block.address)

        return enqueue

    def _scratch(self, launch: Launch) -> dict[str, int]:
        """Address of the workspace, shared by all launches (they run one after the other)."""
        import torch

        held, count = self._scratches, launch.workspace_bytes
        if count and (not held or held[-1].numel() < count):
            # the smaller ones stay alive: captured graphs may hold their addresses
            held.append(torch.zeros(count, dtype=torch.uint8, device="cuda"))
        return {"workspace": int(held[-1].data_ptr()) if held else 0}

    def gemm_ex(self, layout: str, operands: Any, *, strict: bool = False) -> Enqueue:
        """cublasGemmEx on buffers."""
        library = self.strict if strict else self.cublas
        a, b, c = operands.addresses(layout)
        return lambda: library.enqueue(operands.shape, layout, a, b, c, operands.dtype)

    @staticmethod
    def torch_matmul(layout: str, operands: Any) -> Enqueue:
        """torch.matmul with ``out=``, as a user of either layout calls it."""
        import torch

        (a, b), c = operands.factors(layout), operands.c
        return lambda: torch.matmul(a, b, out=c)

    def lt_call(self, problem: LtProblem, algorithm: LtAlgorithm, operands: Any) -> Enqueue:
        """A chosen cuBLASLt algorithm on buffers."""
        return self.lt.bind(problem, algorithm, *operands.addresses(algorithm.layout))  # type: ignore[no-any-return]

    def portfolio(self, layout: str, operands: Any) -> Enqueue:
        """sassafras.matmul on buffers, as a user calls it; what its first call builds is waited for."""
        matmul, settle = room.api.matmul, room.api.settle
        (a, b), c = operands.factors(layout), operands.c
        matmul(a, b, c)
        self.gpu.sync()
        settle()
        return lambda: matmul(a, b, c)

    def tell_portfolio(self, rows: Sequence[TableRow]) -> None:
        """Let dispatch know what was tuned; nothing: it works from the table that is shipped."""
        if room.api._engine is None:
            room.api._set_up()
        engine = room.api._engine
        if engine is None:
            return
        engine.settle()
        engine.forget()
        if rows:
            header = {"gpu": engine.gpu(0).name, "cublaslt": self.lt.version}
            engine.gpu(0).chooser = Selector(TunedTable(header, rows), lt_version=self.lt.version)

    def served(self) -> dict[str, Any]:
        """layout -> which member served the latest problems of the portfolio, and with what."""
        engine = room.api._engine
        return {p.layout: choice.to_json() for p, choice in engine.served.items()} if engine else {}

    def now(self) -> float:
        """Seconds."""
        return time.perf_counter()

    def wait_until(self, moment: float) -> None:
        """Idle until then: asleep while there is time, then awake."""
        while (left := moment - time.perf_counter()) > 0:
            if left > 2e-3:
                time.sleep(left - 1e-3)

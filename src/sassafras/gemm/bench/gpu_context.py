"""What a benchmark process holds on its GPU: stream, libraries, workspace, and our loaded kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sassafras.cuda.cublas import RECOMMENDED_WORKSPACE, WORKSPACES, Cublas, CublasLt
from sassafras.cuda.driver import Gpu, KernelFunction, call
from sassafras.cuda.timing import Stopwatch

from ..build.arguments import packed
from ..build.cubins import cubin
from ..configs.registry import Config, Instance
from ..problem.launch import SHARED_LIMIT, Launch
from ..problem.shape import Shape
from .operands import Operands
from .timing import Enqueue


class GpuContext:
    """One GPU, one stream that everything (torch too) runs on.

    Args:
        cache: folder of our cubins; missing ones are compiled.

    Raises:
        DeviceError, ToolMissing: no GPU, or a library is missing.
    """

    def __init__(self, cache: Path | None = None) -> None:
        import torch

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
        self._opted_in: set[Instance] = set()
        self._scratches: dict[str, list[Any]] = {}
        self.gpu.sync()

    def function(self, instance: Instance) -> KernelFunction:
        """The loaded kernel. Raises CudaError, CompileError."""
        if instance not in self._functions:
            self._functions[instance] = self.gpu.load(cubin(instance, self._cache), instance.name)
        return self._functions[instance]

    def ours(self, config: Config, operands: Operands) -> Enqueue:
        """Bind one of our configurations to buffers. Raises SassafrasError when it cannot run."""
        launch = config.launch(operands.shape)
        a, b, c = operands.addresses(config.layout)
        first, second = (b, a) if config.swapped else (a, b)
        addresses = {"a": first, "b": second, "c": c, **self._scratch(launch)}
        enqueue = self._bound(config.instance, launch, addresses)
        if launch.then is None:
            return enqueue
        behind = self._bound(launch.then.instance, launch.then.launch, addresses)

        def both() -> None:
            enqueue()
            behind()

        return both

    def _bound(self, instance: Instance, launch: Launch, addresses: dict[str, int]) -> Enqueue:
        """One launch."""
        function = self.function(instance)
        if instance not in self._opted_in:
            which = self.gpu.driver.CUfunction_attribute
            if launch.shared_bytes > 48 * 1024:
                # no cache preference here: the lean kernels want as much L1 as is left
                limit = which.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                call(self.gpu.driver.cuFuncSetAttribute, function.handle, limit, SHARED_LIMIT)
                self._opted_in.add(instance)
            if getattr(instance, "all_shared", False):
                carveout = which.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
                call(self.gpu.driver.cuFuncSetAttribute, function.handle, carveout, 100)
                self._opted_in.add(instance)
        block = packed(
            instance.parameters,
            launch,
            addresses,
            self.gpu.driver,
            sizes=function.sizes,
            where=instance.name,
        )
        how = self.gpu.config(
            launch.grid, launch.threads, launch.shared_bytes, launch.cluster, overlap=launch.overlap
        )
        gpu = self.gpu

        def enqueue() -> None:
            gpu.launch(how, function, block.address)

        return enqueue

    def _scratch(self, launch: Launch) -> dict[str, int]:
        """Addresses of workspace and counters, shared by all launches (they run one after the other)."""
        import torch

        for name, count, dtype in (
            ("workspace", launch.workspace_bytes, torch.uint8),
            ("counters", launch.counters, torch.int32),
        ):
            held = self._scratches.setdefault(name, [])
            if count and (not held or held[-1].numel() < count):
                # the smaller ones stay alive: captured graphs may hold their addresses
                held.append(torch.zeros(count, dtype=dtype, device="cuda"))
        return {name: int(held[-1].data_ptr()) if held else 0 for name, held in self._scratches.items()}

    def gemm_ex(self, layout: str, operands: Operands, *, strict: bool = False) -> Enqueue:
        """cublasGemmEx on buffers."""
        library = self.strict if strict else self.cublas
        shape: Shape = operands.shape
        a, b, c = operands.addresses(layout)
        return lambda: library.enqueue(shape, layout, a, b, c)

    @staticmethod
    def torch_matmul(layout: str, operands: Operands) -> Enqueue:
        """torch.matmul with ``out=``, as a user of either layout calls it."""
        import torch

        (a, b), c = operands.factors(layout), operands.c
        return lambda: torch.matmul(a, b, out=c)

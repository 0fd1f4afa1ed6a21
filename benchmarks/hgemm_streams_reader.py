"""Who reads the matrix in `hgemm_streams.py`: the kernel on a GPU (or on a modelled clock), and others."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hgemm_streams_plan as plan
import numpy as np
from hgemm_streams_plan import Variant

#: n x k
SHAPES = ((16384, 16384), (12288, 16384), (16384, 8192))
#: rows of the other operand for the HGEMMs beside
ROWS = 64


@dataclass(frozen=True)
class Kernel:
    """What `compile.build` takes for an instance."""

    name: str = "stream_matrix"

    @property
    def source(self) -> str:
        """CUDA C++."""
        text, hints = (
            (Path(__file__).parent / name).read_text()
            for name in ("hgemm_streams.cu", "hgemm_streams_hints.cuh")
        )
        return text.replace('#include "hgemm_streams_hints.cuh"', hints)  # the others are the library's


@dataclass
class Contestant:
    """Somebody who reads the matrix, and the microseconds it took in each round."""

    name: str
    enqueue: Callable[[], None]
    variant: Variant | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    warm: list[float] = field(default_factory=list)
    cold: list[float] = field(default_factory=list)


class Reader:
    """Launches variants on a GPU. `stage` is a `sassafras.gemm.stage.Stage`."""

    def __init__(self, stage: Any, cache: Path | None) -> None:
        import torch

        from sassafras.core import DeviceError
        from sassafras.gemm.compile import cubin

        self.stage, self.gpu = stage, stage.gpu
        self.function = self.gpu.load(cubin(Kernel(), cache), "stream_matrix", plan.CTA_BYTES)  # type: ignore[arg-type]
        sizes = (128, 128, 8, ctypes.sizeof(plan.Pattern))
        if self.function.sizes not in (None, sizes):
            raise DeviceError(f"the kernel takes {self.function.sizes} bytes, not {sizes}")
        n, k = max(n for n, _ in SHAPES), max(k for _, k in SHAPES)
        generator = torch.Generator("cuda").manual_seed(1)
        self.matrix = torch.randn(n * k, dtype=torch.float16, device="cuda", generator=generator)
        self.small = torch.randn(128 * k, dtype=torch.float16, device="cuda", generator=generator)
        self.host = [self.matrix.cpu().numpy().view(np.uint16), self.small.cpu().numpy().view(np.uint16)]

    def encode(self, described: plan.Map, address: int, promotion: int) -> bytes:
        """The 128 bytes of a tensor map. Raises CudaError when the driver refuses it."""
        from sassafras.device.cuda.driver import call

        d, rank = self.gpu.driver, len(described.dims)
        size = f"L2_{promotion}B" if promotion else "NONE"
        made = call(
            d.cuTensorMapEncodeTiled, d.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT16, rank, address,
            [d.cuuint64_t(extent) for extent in described.dims],
            [d.cuuint64_t(stride) for stride in described.strides],
            [d.cuuint32_t(extent) for extent in described.box], [d.cuuint32_t(1)] * rank,
            d.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            getattr(d.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{described.swizzle}B"),
            getattr(d.CUtensorMapL2promotion, f"CU_TENSOR_MAP_L2_PROMOTION_{size}"),
            d.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )  # fmt: skip
        return ctypes.string_at(int(made.getPtr()), 128)

    def bind(self, variant: Variant, n: int, k: int) -> tuple[Callable[[], None], Any, plan.Plan]:
        """(enqueue, tensor of checksums (CTAs, threads), plan)."""
        import torch

        laid = plan.lay_out(variant, n, k)
        sums = torch.zeros(laid.grid, plan.READERS, dtype=torch.int32, device="cuda")
        pattern = plan.Pattern(**laid.pattern)
        words = (
            self.encode(laid.matrix, self.matrix.data_ptr(), variant.promotion),
            self.encode(laid.small, self.small.data_ptr(), 256),
            int(sums.data_ptr()).to_bytes(8, "little"),
            bytes(pattern),
        )
        storage = ctypes.create_string_buffer(128 * (len(words) + 1))
        base = -(-ctypes.addressof(storage) // 128) * 128
        pointers = (ctypes.c_void_p * len(words))(*(base + 128 * i for i in range(len(words))))
        for i, word in enumerate(words):
            ctypes.memmove(base + 128 * i, word, len(word))
        cluster = (variant.cluster, 1, 1)
        where = self.gpu.config(
            (laid.grid, 1, 1), plan.THREADS, laid.shared_bytes, cluster, overlap=variant.overlap
        )
        held = (storage, pointers)

        def enqueue() -> None:
            self.gpu.launch(where, self.function, ctypes.addressof(held[1]))

        return enqueue, sums, laid

    def run(self, variant: Variant, n: int, k: int, only: Sequence[int] | None = None) -> str:
        """Launch once, compare checksums (of these CTAs, or all); what is wrong, ``""`` when nothing is."""
        enqueue, sums, laid = self.bind(variant, n, k)
        enqueue()
        if not self.gpu.wait(8.0):
            raise TimeoutError(f"{variant.name} of {n} x {k} hangs")
        found = sums.cpu().numpy().view(np.uint32).sum(axis=1, dtype=np.uint64) & 0xFFFFFFFF
        for cta in range(laid.grid) if only is None else only:
            wanted = plan.expected(laid, self.host[0], self.host[1], cta)
            if int(found[cta]) != wanted:
                return f"CTA {cta} of {laid.grid}: {int(found[cta]):#x} instead of {wanted:#x}"
        return ""

    def contestant(self, variant: Variant, n: int, k: int) -> Contestant:
        """The variant, to be timed."""
        enqueue, sums, laid = self.bind(variant, n, k)
        facts = {"stages": laid.pattern["stages"], "stage_bytes": laid.stage_bytes, "ctas": laid.grid}
        return Contestant(variant.name, enqueue, variant, {**facts, "sums": sums})

    def forget(self) -> None:
        """Lines that were to be kept longest are like all others again."""
        from sassafras.device.cuda.driver import call

        self.gpu.sync()
        call(self.gpu.driver.cuCtxResetPersistingL2Cache)

    def clusters(self) -> dict[str, Any]:
        """cuOccupancyMaxActiveClusters with 200 KB of shared memory a CTA, by CTAs of a cluster."""
        from sassafras.device.cuda.driver import CudaError, call

        d, found = self.gpu.driver, dict[str, Any]()
        wide = d.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
        for size in (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16):
            try:
                if size == 10:
                    call(d.cuFuncSetAttribute, self.function.handle, wide, 1)
                where = self.gpu.config((size * 132, 1, 1), plan.THREADS, 200 * 1024, (size, 1, 1))
                if size == 1:  # said all the same, so that the driver counts
                    attribute = d.CUlaunchAttribute()
                    attribute.id = d.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
                    dim = attribute.value.clusterDim
                    dim.x, dim.y, dim.z = 1, 1, 1
                    where.attrs, where.numAttrs = [attribute], 1
                count = int(call(d.cuOccupancyMaxActiveClusters, self.function.handle, where))
                found[str(size)] = {"clusters": count, "ctas": count * size}
            except CudaError as error:
                found[str(size)] = {"refused": str(error)}
        return found

    def beside(self, n: int, k: int) -> list[Contestant]:
        """A reduction of the same bytes; cuBLASLt's best and ours as recorded, of either layout."""
        import torch

        words, most = (
            self.matrix[: n * k].view(torch.int32),
            torch.empty((), dtype=torch.int32, device="cuda"),
        )
        return [
            Contestant("torch.amax", lambda: torch.amax(words, 0, out=most)),
            *gemms(self.stage, self.matrix, self.small, n, k),
        ]


class DryReader:
    """The same on a modelled clock: a made-up time for every variant, and nothing to check."""

    def __init__(self, stage: Any) -> None:
        self.stage, self.gpu = stage, stage.gpu

    def run(self, variant: Variant, n: int, k: int, only: Sequence[int] | None = None) -> str:
        """As if it were right."""
        plan.lay_out(variant, n, k)
        return ""

    def contestant(self, variant: Variant, n: int, k: int) -> Contestant:
        """The slower the less is under way."""
        laid = plan.lay_out(variant, n, k)
        rate = 4.4e6 * min(1, 0.6 + variant.flight / 400) * (0.98 if variant.layout == "tn" else 1)
        us = 2 * n * k / rate
        return Contestant(variant.name, lambda: self.gpu.launch(us), variant, {"ctas": laid.grid})

    def forget(self) -> None:
        """Nothing is kept."""

    def clusters(self) -> dict[str, Any]:
        """Nobody to ask."""
        return {}

    def beside(self, n: int, k: int) -> list[Contestant]:
        """One of them."""
        return [Contestant("torch.amax", lambda: self.gpu.launch(2 * n * k / 4e6))]


def recorded(n: int, k: int) -> list[Any]:
    """Our best configuration of either layout in the shipped dataset, if the shape is in it."""
    from sassafras.gemm import families
    from sassafras.gemm.dataset import shipped
    from sassafras.gemm.shapes import Shape

    best: dict[str, Any] = {}
    entries = shipped().entries
    if (shape := Shape(ROWS, n, k)) in entries:
        for name, _ in entries[shape].ranked():
            config = families.parse(name)
            best.setdefault(config.layout, config)
    return [best[layout] for layout in ("nn", "tn") if layout in best]


def gemms(stage: Any, matrix: Any, small: Any, n: int, k: int) -> list[Contestant]:
    """HGEMMs with ROWS rows of A, the matrix being B as either layout reads it."""
    import torch

    from sassafras.gemm.cublas import CublasError
    from sassafras.gemm.select import Screen
    from sassafras.gemm.shapes import Shape
    from sassafras.gemm.stage import OperandSet

    shape, screen, found = Shape(ROWS, n, k), Screen(stage), []
    c = torch.empty(ROWS, n, dtype=torch.float16, device="cuda")
    weights = matrix[: n * k]
    operands = OperandSet(shape, small[: ROWS * k], weights, weights, c)
    for layout in ("nn", "tn"):
        problem, usable, tried = stage.lt.problem(shape, layout), [], []
        for algorithm in stage.lt.candidates(problem):
            enqueue = stage.lt.bind(problem, algorithm, *operands.addresses(layout))
            try:
                enqueue()
                stage.gpu.sync()
            except CublasError:
                continue
            usable.append((len(usable), enqueue))
            tried.append(algorithm)
        if not usable:
            continue
        best = screen.final(screen.rough(usable, stage.watch.one(usable[0][1]))[:4], 0.02, 500.0)[0][1]
        facts = {"algorithm": str(tried[best])}
        found.append(Contestant(f"cuBLASLt {layout}", usable[best][1], None, facts))
    for config in recorded(n, k):
        found.append(Contestant(f"ours {config.name}", stage.ours(config, operands)))
    return found

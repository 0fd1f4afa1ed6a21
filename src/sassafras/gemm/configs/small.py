"""The small kernel (`kernels/sm90_gemm_small.cuh`): instances, configurations, what is legal, their cost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from ..problem.launch import GRID_LIMIT, MULTIPROCESSORS, SHARED_LIMIT, ceil_div
from ..problem.shape import Shape
from . import cost
from .base import Choices, Configuration
from .source import KernelInstance, Parameters, all_of

#: k elements of one step
STEP = 32

#: names and types of the kernel's parameters, in order
PARAMETERS = (
    *all_of("*fp16", "a", "b", "c"),
    *all_of("i32", "m", "n", "k", "lda", "ldb", "ldc", "log2_warps_m", "log2_warps_n", "steps_per_slice"),
)


@dataclass(frozen=True, slots=True, order=True)
class SmallInstance(KernelInstance):
    """One compiled kernel: the template's parameters.

    Attributes:
        layout: ``tn`` (B is n x k) or ``nn`` (B is k x n).
        mma_m: 16-row tiles a warp.
        mma_n: 8-column tiles a warp.
        k_steps: 32-wide k steps loaded at once.
        divisible: only for extents that are multiples of everything: nothing is clamped or checked.
        epilogue: batches, and more than the product (`epilogue`).
        swap_ab: A and B change roles (tn).
        dtype: ``fp16`` or ``bf16``.
    """

    HEADER: ClassVar[str] = "sm90_gemm_small.cuh"
    TEMPLATE: ClassVar[str] = "Lean"
    PARAMETERS: ClassVar[Parameters] = PARAMETERS
    READ_ONLY: ClassVar[bool] = True

    layout: Literal["tn", "nn"]
    mma_m: int
    mma_n: int
    k_steps: int
    divisible: bool = False
    epilogue: bool = False
    swap_ab: bool = False
    dtype: str = "fp16"

    @property
    def name(self) -> str:
        """Entry name, for example ``lean_tn_m1n2s2``; ``x`` behind it: divisible, ``e``: epilogue."""
        ending = "x" * self.divisible + "e" * self.epilogue
        return f"lean_{self._kind}_m{self.mma_m}n{self.mma_n}s{self.k_steps}{ending}"

    @property
    def max_threads(self) -> int:
        """``__launch_bounds__``: the largest of 1024, 512 and 256 for which ptxas spills nothing.

        Found by compiling; a test checks that no instance touches local memory.
        """
        tile = (self.mma_m, self.mma_n, self.k_steps)
        if tile in _MANY_THREADS and not self.divisible:
            return 1024
        return 256 if tile in (_FEW_THREADS_NN if self.layout == "nn" else _FEW_THREADS_TN) else 512

    @property
    def registers(self) -> int:
        """Registers a lane may use."""
        return min(255, 65536 // self.max_threads)

    @property
    def bounds(self) -> str:
        """See `max_threads`."""
        return str(self.max_threads)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The template's."""
        layout = f"sassafras::Layout::{self.layout.upper()}{'_SWAPPED' * self.swap_ab}"
        return self.mma_m, self.mma_n, self.k_steps, layout, self.divisible, *self._last_arguments


_MANY_THREADS = frozenset({(1, 1, 1), (1, 1, 2), (1, 2, 1), (1, 2, 2)})
_FEW_THREADS_TN = frozenset({(1, 8, 1), (2, 4, 1), (2, 4, 2), (2, 8, 1), (4, 4, 1)})
_FEW_THREADS_NN = frozenset({(2, 8, 1), (4, 4, 1)})

#: all that are compiled: mma_m, mma_n, k_steps, for any extents or divisible ones
INSTANCES: tuple[SmallInstance, ...] = (
    SmallInstance("tn", 1, 1, 2),
    SmallInstance("tn", 1, 1, 4),
    SmallInstance("tn", 1, 2, 2),
    SmallInstance("tn", 1, 1, 2, divisible=True),
    SmallInstance("tn", 1, 2, 2, divisible=True),
    SmallInstance("nn", 1, 2, 1),
    SmallInstance("nn", 1, 2, 2, divisible=True),
    SmallInstance("tn", 1, 1, 4, swap_ab=True),
    SmallInstance("tn", 1, 2, 2, swap_ab=True),
)
#: the same for BF16
OTHER_INSTANCES = tuple(replace(instance, dtype="bf16") for instance in INSTANCES)
#: those with an epilogue (`epilogue`), compiled when asked for
EPILOGUE_INSTANCES: tuple[SmallInstance, ...] = (
    SmallInstance("tn", 1, 2, 4, epilogue=True),
    SmallInstance("nn", 1, 2, 4, epilogue=True),
    SmallInstance("tn", 1, 2, 4, epilogue=True, dtype="bf16"),
    SmallInstance("nn", 1, 2, 4, epilogue=True, dtype="bf16"),
)


@dataclass(frozen=True, slots=True, order=True)
class SmallConfig(Configuration):
    """An instance and what is chosen at launch.

    Attributes:
        instance: the compiled kernel.
        warps_m, warps_n: warp tiles of a CTA, powers of two.
        warps_k: warps that split k within a CTA.
        cluster_split_k: CTAs that split k (distributed shared memory), 1 to 8.
    """

    FAMILY: ClassVar[str] = "small"
    LAUNCH: ClassVar[dict[str, str]] = {
        "warps_m": "w",
        "warps_n": "x",
        "warps_k": "x",
        "cluster_split_k": "/c",
    }
    CHOICES: ClassVar[Choices] = tuple(
        {"warps_m": m, "warps_n": n, "warps_k": k, "cluster_split_k": cluster}
        for m, n in ((1, 1), (2, 1), (1, 2), (2, 2), (4, 2), (2, 4))
        for k in (1, 2, 4, 8, 16, 32)
        for cluster in (1, 2, 4, 8)
    )

    instance: SmallInstance
    warps_m: int = 1
    warps_n: int = 1
    warps_k: int = 1
    cluster_split_k: int = 1

    @property
    def threads(self) -> int:
        """Threads a CTA."""
        return 32 * self.warps_m * self.warps_n * self.warps_k

    @property
    def ranges(self) -> int:
        """Into how many ranges k is split in all."""
        return self.warps_k * self.cluster_split_k

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of a CTA's tile (of the swapped problem, if swapped)."""
        return 16 * self.instance.mma_m * self.warps_m, 8 * self.instance.mma_n * self.warps_n

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory a CTA: every slice's FP32 partial tile; 0 without split."""
        if self.ranges == 1:
            return 0
        rows, columns = self.tile
        return 4 * rows * columns * self.warps_k

    def why_illegal(self, shape: Shape) -> str | None:
        """Why this configuration cannot or should not run this shape; None when it may."""
        for what, value in (("warps_m", self.warps_m), ("warps_n", self.warps_n)):
            if value < 1 or value & (value - 1):
                return f"{what} {value} is not a power of two"
        if self.warps_k < 1 or not 1 <= self.cluster_split_k <= 8:
            return f"warps_k {self.warps_k}, cluster {self.cluster_split_k}: at least 1, at most 8 CTAs"
        if max(shape.m, shape.n, shape.k) >= 1 << 31:
            return f"{shape}: extents have 32 bits"
        if shape.k % 8:
            return f"k {shape.k} is not a multiple of 8: rows would not be 16-byte aligned"
        if not self.swap_ab and shape.n % 8:
            return f"n {shape.n} is not a multiple of 8: rows of C (and of B in nn) would not be aligned"
        if self.threads > self.instance.max_threads:
            return f"{self.threads} threads, {self.instance.name} is built for {self.instance.max_threads}"
        if self.shared_bytes > SHARED_LIMIT:
            return f"{self.shared_bytes} bytes of shared memory, {SHARED_LIMIT} are there"
        tiles_m, tiles_n = self.tiles(shape)
        if max(tiles_m, tiles_n) > GRID_LIMIT:
            return f"{tiles_m} x {tiles_n} tiles, a grid takes {GRID_LIMIT} along each"
        steps = ceil_div(shape.k, STEP)
        if self.ranges > steps:
            return f"{self.ranges} slices of {steps} k steps: some would be empty"
        if self.instance.divisible:
            rows, columns = self.tile
            whole = STEP * self.instance.k_steps * self.ranges
            if shape.m % rows or shape.n % columns or shape.k % whole:
                return f"not divisible: m, n, k have to be multiples of {rows}, {columns}, {whole}"
        if max(self.tile) * max(shape.k, shape.n) >= 1 << 31:
            return "offsets within a tile pass 2^31 elements"
        return None

    def dominated(self, shape: Shape) -> str | None:
        """Why a legal configuration is surely worse than a smaller one; None when it may be good."""
        seen, (rows, columns) = self.seen(shape), self.tile
        if self.warps_m > 1 and rows // 2 >= seen.m:
            return f"{rows} rows a CTA for {seen.m}"
        if self.warps_n > 1 and columns // 2 >= seen.n:
            return f"{columns} columns a CTA for {seen.n}"
        per_slice = ceil_div(ceil_div(shape.k, STEP), self.ranges)
        if self.instance.k_steps > per_slice:
            return f"loads {self.instance.k_steps} k steps at once, a slice has {per_slice}"
        return None

    def _scalars(self, shape: Shape) -> dict[str, int]:
        return {
            **self._extents(shape),
            "log2_warps_m": self.warps_m.bit_length() - 1,
            "log2_warps_n": self.warps_n.bit_length() - 1,
            "steps_per_slice": ceil_div(ceil_div(shape.k, STEP), self.ranges),
        }

    def estimate_us(self, shape: Shape) -> float:
        """Microseconds, roughly; a factor is fitted."""
        instance = self.instance
        tiles_m, tiles_n = self.tiles(shape)
        ctas = tiles_m * tiles_n * self.cluster_split_k
        warps = self.threads // 32
        by_registers = 65536 // (self.threads * max(32, instance.registers))
        resident = min(32, cost.residents(self.threads, self.shared_bytes), max(1, by_registers))
        per_multiprocessor = ceil_div(ctas, MULTIPROCESSORS)
        waves = ceil_div(per_multiprocessor, resident)
        steps = ceil_div(ceil_div(shape.k, STEP), self.ranges)
        groups = ceil_div(steps, instance.k_steps)
        # each group waits for a round trip, and two are in flight
        latency = waves * cost.ROUND_TRIP * (1 + (groups - 1) / 2)
        rows, columns = self.tile
        k_of_cta = steps * STEP * self.warps_k
        from_l2 = per_multiprocessor * 2 * k_of_cta * (rows + columns) / cost.L2_BYTES
        per_warp = 2 * STEP * (16 * instance.mma_m + 8 * instance.mma_n)
        warp_steps = per_multiprocessor * warps * steps
        from_l1 = warp_steps * per_warp / cost.L1_BYTES
        multiply = warp_steps * 2 * instance.mma_m * instance.mma_n * cost.MMA / 4
        if self.layout == "nn":  # byte permutations share the issue slots
            multiply += warp_steps * 4 * instance.mma_n * 2 / 4
        total = cost.START + max(latency, from_l2, from_l1, multiply) + 0.3 * min(latency, from_l1)
        if self.ranges > 1:
            total += waves * (cost.CTA_SUM + 20 * self.warps_k)
        if self.cluster_split_k > 1:
            total += waves * (cost.CLUSTER_SUM + 30 * self.cluster_split_k)
        return _SLOWER * cost.microseconds(total) + 2 * shape.m * shape.n / cost.PLAIN_STORES


#: what was measured over what the estimate's first principles say
_SLOWER = 1.4

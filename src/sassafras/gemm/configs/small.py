"""The small kernel (`kernels/sm90_gemm_small.cuh`): instances, configurations, what is legal, their cost."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from sassafras.core import SassafrasError

from ..problem.launch import GRID_LIMIT, MULTIPROCESSORS, SHARED_LIMIT, Launch, ceil_div
from ..problem.shape import Shape
from . import cost
from .base import PLAIN, Configuration, Mode, named
from .source import EPILOGUE_PARAMETERS, Parameters, all_of, plain_entry

Layout = Literal["tn", "nn", "tn_swapped"]

#: k elements of one step
STEP = 32

#: names and types of the kernel's parameters, in order
PARAMETERS = (
    *all_of("*fp16", "a", "b", "c"),
    *all_of("i32", "m", "n", "k", "lda", "ldb", "ldc", "log2_warps_m", "log2_warps_n", "steps_per_slice"),
)


@dataclass(frozen=True, slots=True, order=True)
class SmallInstance:
    """One compiled kernel: the template's parameters.

    Attributes:
        layout: ``tn`` (B is n x k), ``nn`` (B is k x n), ``tn_swapped`` (as tn, roles of A and B changed).
        mt: 16-row tiles a warp.
        nt: 8-column tiles a warp.
        steps: 32-wide k steps loaded at once.
        exact: only for extents that are multiples of everything: nothing is clamped or checked.
        epilogue: batches, and more than the product (`epilogue`).
    """

    layout: Layout
    mt: int
    nt: int
    steps: int
    exact: bool = False
    epilogue: bool = False

    @property
    def name(self) -> str:
        """Entry name, for example ``lean_tn_m1n2s2``; ``x`` behind it: exact, ``e``: with an epilogue."""
        ending = "x" * self.exact + "e" * self.epilogue
        return f"lean_{self.layout}_m{self.mt}n{self.nt}s{self.steps}{ending}"

    @classmethod
    def parse(cls, name: str) -> SmallInstance:
        """The instance of an entry name. Raises SassafrasError."""
        return named((*INSTANCES, *EPILOGUE_INSTANCES), name, "small instance")

    @property
    def parameters(self) -> Parameters:
        """Names and types of the kernel's parameters."""
        return PARAMETERS + EPILOGUE_PARAMETERS * self.epilogue

    @property
    def max_threads(self) -> int:
        """``__launch_bounds__``: the largest of 1024, 512 and 256 for which ptxas spills nothing.

        Found by compiling; a test checks that no instance touches local memory.
        """
        tile = (self.mt, self.nt, self.steps)
        if tile in _MANY_THREADS and not self.exact:
            return 1024
        return 256 if tile in (_FEW_THREADS_NN if self.layout == "nn" else _FEW_THREADS_TN) else 512

    @property
    def registers(self) -> int:
        """Registers a lane may use."""
        return min(255, 65536 // self.max_threads)

    @property
    def source(self) -> str:
        """CUDA C++ of the entry."""
        kernel = f"sassafras::Lean<{self.mt}, {self.nt}, {self.steps}, "
        kernel += f"sassafras::Layout::{self.layout.upper()}, {'true' if self.exact else 'false'}"
        return plain_entry(
            self.name, "sm90_gemm_small.cuh", kernel, self.parameters, self.max_threads, self.epilogue
        )


_MANY_THREADS = frozenset({(1, 1, 1), (1, 1, 2), (1, 2, 1), (1, 2, 2)})
_FEW_THREADS_TN = frozenset({(1, 8, 1), (2, 4, 1), (2, 4, 2), (2, 8, 1), (4, 4, 1)})
_FEW_THREADS_NN = frozenset({(2, 8, 1), (4, 4, 1)})

#: all that are compiled: mt, nt, steps, for any extents or exact
INSTANCES: tuple[SmallInstance, ...] = (
    SmallInstance("tn", 1, 1, 2),
    SmallInstance("tn", 1, 1, 4),
    SmallInstance("tn", 1, 2, 2),
    SmallInstance("tn", 1, 1, 2, exact=True),
    SmallInstance("tn", 1, 2, 2, exact=True),
    SmallInstance("nn", 1, 2, 1),
    SmallInstance("nn", 1, 2, 2, exact=True),
    SmallInstance("tn_swapped", 1, 1, 4),
    SmallInstance("tn_swapped", 1, 2, 2),
)
#: those with an epilogue (`epilogue`), compiled when asked for
EPILOGUE_INSTANCES: tuple[SmallInstance, ...] = (
    SmallInstance("tn", 1, 2, 4, epilogue=True),
    SmallInstance("nn", 1, 2, 4, epilogue=True),
)


@dataclass(frozen=True, slots=True, order=True)
class SmallConfig(Configuration):
    """An instance and what is chosen at launch.

    Attributes:
        instance: the compiled kernel.
        warps_m, warps_n: warp tiles of a CTA, powers of two.
        warps_k: warps that split k within a CTA.
        cluster: CTAs that split k (distributed shared memory), 1 to 8.
    """

    FAMILY: ClassVar[str] = "small"

    instance: SmallInstance
    warps_m: int = 1
    warps_n: int = 1
    warps_k: int = 1
    cluster: int = 1
    mode: Mode = field(default=PLAIN, kw_only=True)

    @property
    def stem(self) -> str:
        """For example ``lean_tn_m1n2s2/w1x1x8/c2``: warps along m, n, k, and the cluster."""
        return f"{self.instance.name}/w{self.warps_m}x{self.warps_n}x{self.warps_k}/c{self.cluster}"

    @classmethod
    def _parse(cls, stem: str) -> SmallConfig:
        try:
            entry, warps, cluster = stem.split("/")
            m, n, k = (int(part) for part in warps.removeprefix("w").split("x"))
            return cls(SmallInstance.parse(entry), m, n, k, int(cluster.removeprefix("c")))
        except ValueError as error:
            raise SassafrasError("not a small configuration", where=stem) from error

    @property
    def layout(self) -> str:
        """``nn`` or ``tn``: how B has to lie in memory."""
        return "nn" if self.instance.layout == "nn" else "tn"

    @property
    def swapped(self) -> bool:
        """A and B change roles."""
        return self.instance.layout == "tn_swapped"

    @property
    def threads(self) -> int:
        """Threads a CTA."""
        return 32 * self.warps_m * self.warps_n * self.warps_k

    @property
    def slices(self) -> int:
        """Into how many parts k is split."""
        return self.warps_k * self.cluster

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of a CTA's tile (of the swapped problem, if swapped)."""
        return 16 * self.instance.mt * self.warps_m, 8 * self.instance.nt * self.warps_n

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory a CTA: every slice's FP32 partial tile; 0 without split."""
        if self.slices == 1:
            return 0
        rows, columns = self.tile
        return 4 * rows * columns * self.warps_k

    def why_illegal(self, shape: Shape) -> str | None:
        """Why this configuration cannot or should not run this shape; None when it may."""
        for what, value in (("warps_m", self.warps_m), ("warps_n", self.warps_n)):
            if value < 1 or value & (value - 1):
                return f"{what} {value} is not a power of two"
        if self.warps_k < 1 or not 1 <= self.cluster <= 8:
            return (
                f"warps_k {self.warps_k} and cluster {self.cluster} must be positive, the cluster at most 8"
            )
        if max(shape.m, shape.n, shape.k) >= 1 << 31:
            return f"{shape}: extents have 32 bits"
        if shape.k % 8:
            return f"k {shape.k} is not a multiple of 8: rows would not be 16-byte aligned"
        if not self.swapped and shape.n % 8:
            return f"n {shape.n} is not a multiple of 8: rows of C (and of B in nn) would not be aligned"
        if self.threads > self.instance.max_threads:
            return f"{self.threads} threads, {self.instance.name} is built for {self.instance.max_threads}"
        if self.shared_bytes > SHARED_LIMIT:
            return f"{self.shared_bytes} bytes of shared memory, {SHARED_LIMIT} are there"
        tiles_m, tiles_n = self.tiles(shape)
        if max(tiles_m, tiles_n) > GRID_LIMIT:
            return f"{tiles_m} x {tiles_n} tiles, a grid takes {GRID_LIMIT} along each"
        steps = ceil_div(shape.k, STEP)
        if self.slices > steps:
            return f"{self.slices} slices of {steps} k steps: some would be empty"
        if self.instance.exact:
            rows, columns = self.tile
            whole = STEP * self.instance.steps * self.slices
            if shape.m % rows or shape.n % columns or shape.k % whole:
                return f"not exact: m, n, k have to be multiples of {rows}, {columns}, {whole}"
        if self._largest_offset(shape) >= 1 << 31:
            return "offsets within a tile pass 2^31 elements"
        return None

    def dominated(self, shape: Shape) -> str | None:
        """Why a legal configuration is surely worse than a smaller one; None when it may be good."""
        seen, (rows, columns) = self.seen(shape), self.tile
        if self.warps_m > 1 and rows // 2 >= seen.m:
            return f"{rows} rows a CTA for {seen.m}"
        if self.warps_n > 1 and columns // 2 >= seen.n:
            return f"{columns} columns a CTA for {seen.n}"
        per_slice = ceil_div(ceil_div(shape.k, STEP), self.slices)
        if self.instance.steps > per_slice:
            return f"loads {self.instance.steps} k steps at once, a slice has {per_slice}"
        return None

    def _launch(self, shape: Shape) -> Launch:
        seen = self.seen(shape)
        tiles_m, tiles_n = self.tiles(shape)
        steps = ceil_div(shape.k, STEP)
        scalars = {
            "m": seen.m,
            "n": seen.n,
            "k": seen.k,
            "lda": shape.k,
            "ldb": shape.n if self.layout == "nn" else shape.k,
            "ldc": shape.n,
            "log2_warps_m": self.warps_m.bit_length() - 1,
            "log2_warps_n": self.warps_n.bit_length() - 1,
            "steps_per_slice": ceil_div(steps, self.slices),
        }
        return Launch(
            (self.cluster, tiles_n, tiles_m), self.threads, self.shared_bytes, (self.cluster, 1, 1), scalars
        )

    def _largest_offset(self, shape: Shape) -> int:
        rows, columns = self.tile
        return max(rows, columns) * max(shape.k, shape.n)

    def estimate_us(self, shape: Shape) -> float:
        """Microseconds, roughly; a factor is fitted."""
        instance = self.instance
        tiles_m, tiles_n = self.tiles(shape)
        ctas = tiles_m * tiles_n * self.cluster
        warps = self.threads // 32
        by_registers = 65536 // (self.threads * max(32, instance.registers))
        resident = min(32, cost.residents(self.threads, self.shared_bytes), max(1, by_registers))
        per_multiprocessor = ceil_div(ctas, MULTIPROCESSORS)
        waves = ceil_div(per_multiprocessor, resident)
        steps = ceil_div(ceil_div(shape.k, STEP), self.slices)
        groups = ceil_div(steps, instance.steps)
        # each group waits for a round trip, and two are in flight
        latency = waves * cost.ROUND_TRIP * (1 + (groups - 1) / 2)
        rows, columns = self.tile
        k_of_cta = steps * STEP * self.warps_k
        from_l2 = per_multiprocessor * 2 * k_of_cta * (rows + columns) / cost.L2_BYTES
        per_warp = 2 * STEP * (16 * instance.mt + 8 * instance.nt)
        warp_steps = per_multiprocessor * warps * steps
        from_l1 = warp_steps * per_warp / cost.L1_BYTES
        multiply = warp_steps * 2 * instance.mt * instance.nt * cost.MMA / 4
        if self.layout == "nn":  # byte permutations share the issue slots
            multiply += warp_steps * 4 * instance.nt * 2 / 4
        total = cost.START + max(latency, from_l2, from_l1, multiply) + 0.3 * min(latency, from_l1)
        if self.slices > 1:
            total += waves * (cost.CTA_SUM + 20 * self.warps_k)
        if self.cluster > 1:
            total += waves * (cost.CLUSTER_SUM + 30 * self.cluster)
        return _SLOWER * cost.microseconds(total) + 2 * shape.m * shape.n / cost.PLAIN_STORES


#: what was measured over what the estimate's first principles say
_SLOWER = 1.4


def configurations(instances: tuple[SmallInstance, ...] = INSTANCES) -> Iterator[SmallConfig]:
    """Every configuration, in a fixed order, legal or not."""
    warps = ((1, 1), (2, 1), (1, 2), (2, 2), (4, 2), (2, 4))
    for instance, (m, n), k, cluster in itertools.product(
        instances, warps, (1, 2, 4, 8, 16, 32), (1, 2, 4, 8)
    ):
        yield SmallConfig(instance, m, n, k, cluster)

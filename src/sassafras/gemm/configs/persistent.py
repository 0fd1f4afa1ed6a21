"""The persistent kernel (`kernels/sm90_gemm_persistent.cuh`): instances, configurations, legality, cost.

Warp-specialised, on TMA + WGMMA, for medium and large problems.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from ..problem.launch import AT_ONCE, MULTIPROCESSORS, SHARED_LIMIT, TensorMap, ceil_div
from ..problem.shape import Shape
from . import cost, tma_wgmma
from .base import Choices, Configuration
from .source import KernelInstance, Parameters, all_of
from .tma_wgmma import TILE_K

#: names and types of the kernel's parameters, in order
PARAMETERS = (
    *all_of("tensormap", "map_a", "map_b", "map_c"),
    *all_of("i32", "tiles_m", "tiles_n", "k_tiles", "group"),
    *all_of("i32", "band_by", "band_shift", "wide_by", "wide_shift", "rest_by", "rest_shift"),
    *all_of("i32", "last_row", "last_column", "stage_bytes", "late", "store_policy"),
)
#: registers that a thread needs beside its accumulators (seen in what ptxas allots)
OVERHEAD_REGISTERS = 40


@dataclass(frozen=True, slots=True, order=True)
class PersistentInstance(KernelInstance):
    """One compiled kernel: the template's parameters.

    Attributes:
        layout: ``tn``, ``nn``, ``tt`` or ``nt``.
        tile_m, tile_n: the CTA's tile (of the transposed problem when swapped).
        math_warpgroups: multiplying warpgroups, 1 to 3.
        ping_pong: they take tiles by turns instead of sharing them.
        stages: k tiles in shared memory.
        cluster_m, cluster_n: CTAs of a cluster along m and n; 1, 2, 4 or 8 in all.
        swapped: computes the transpose of C: for small m, or, with `ping_pong`, a tall tile for any.
        store_stages: store buffers of each warp.
        dtype: ``fp16`` or ``bf16``.
        epilogue: batches, and more than the product (`epilogue`).
        stagger: k tiles by which the first of two cooperative warpgroups is ahead at the end of a tile.
    """

    HEADER: ClassVar[str] = "sm90_gemm_persistent.cuh"
    TEMPLATE: ClassVar[str] = "Persistent"
    PARAMETERS: ClassVar[Parameters] = PARAMETERS

    layout: str
    tile_m: int
    tile_n: int
    math_warpgroups: int
    ping_pong: bool
    stages: int
    cluster_m: int = 1
    cluster_n: int = 1
    swap_ab: bool = False
    store_stages: int = 2
    dtype: str = "fp16"
    epilogue: bool = False
    stagger: int = 0

    @classmethod
    def deepest(cls, *tile: Any, most: int = 8, **more: Any) -> Self:
        """The instance with as many stages as shared memory holds, `most` at most; `tile`: fields before."""
        made = (cls(*(*tile, stages), **more) for stages in range(most, 1, -1))
        return next(one for one in made if one.shared_bytes <= SHARED_LIMIT or one.stages == 2)

    @property
    def name(self) -> str:
        """Entry name, for example ``ws_tn_128x160_pp2s5b2c2x1``; ``pp`` for ping-pong.

        At its end: ``e``: epilogue; ``l3``: stagger.
        """
        mode = "pp" if self.ping_pong else "co"
        return (
            f"ws_{self._kind}_{self.tile_m}x{self.tile_n}_{mode}{self.math_warpgroups}s{self.stages}"
            f"b{self.store_stages}c{self.cluster_m}x{self.cluster_n}{'e' * self.epilogue}"
            + (f"l{self.stagger}" if self.stagger else "")
        )

    @property
    def cluster(self) -> int:
        """CTAs of a cluster."""
        return self.cluster_m * self.cluster_n

    @property
    def sharers(self) -> int:
        """Warpgroups that share a tile."""
        return 1 if self.ping_pong else self.math_warpgroups

    @property
    def columns(self) -> int:
        """Columns of C a tile (rows, when swapped)."""
        return self.tile_n

    @property
    def together(self) -> bool:
        """Whether the warps of a warpgroup fill a store buffer together: tall tiles."""
        return self.swap_ab and self.ping_pong

    @property
    def threads(self) -> int:
        """Threads a CTA."""
        return 128 * (self.math_warpgroups + 1)

    @property
    def accumulators(self) -> int:
        """FP32 accumulators of a multiplying thread."""
        return self.tile_m // self.sharers // 64 * self.tile_n // 2

    @property
    def registers(self) -> int:
        """Registers of a multiplying thread (``setmaxnreg``; with one warpgroup what a launch allows)."""
        return {1: 255, 2: 232, 3: 160}.get(self.math_warpgroups, 0)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory a CTA, as the kernel lays it out."""
        stages = self.stages * tma_wgmma.stage_bytes(self.tile_m, self.tile_n)
        buffers = (
            self.math_warpgroups
            * 4
            * self.store_stages
            * tma_wgmma.stored(self.columns, self.swap_ab, self.together)[2]
        )
        return 1024 + stages + buffers + 16 * self.stages + 8 * self.math_warpgroups

    @property
    def resident(self) -> int:
        """CTAs that one multiprocessor holds (of a cluster: one)."""
        if self.cluster > 1:
            return 1
        allotted = min(255, 65536 // self.threads) if self.math_warpgroups > 1 else self.accumulators + 72
        by_registers = 65536 // (self.threads * ceil_div(allotted, 8) * 8)
        return max(1, min(by_registers, (228 * 1024) // (self.shared_bytes + 1024), 2048 // self.threads))

    def why_illegal(self) -> str | None:
        """Why it cannot be compiled or run at all; None when it can."""
        if not 1 <= self.math_warpgroups <= 3 or (self.ping_pong and self.math_warpgroups != 2):
            return f"{self.math_warpgroups} multiplying warpgroups: 1 to 3, and 2 for ping-pong"
        if self.tile_m % (64 * self.sharers):
            return f"{self.tile_m} rows for {self.sharers} warpgroups of 64 or 128 rows"
        if self.cluster not in (1, 2, 4, 8):
            return f"a cluster of {self.cluster_m} x {self.cluster_n}: 1, 2, 4 or 8 CTAs"
        if self.swap_ab and not self.together and self.tile_m != 64 * self.sharers:
            return "swapped tiles have 64 rows a warpgroup, but for ping-pong ones"
        if self.together and self.tile_n < 64:
            return f"tall tiles of {self.tile_n} rows: they are stored 64 at once"
        if self.stagger and (self.ping_pong or self.math_warpgroups != 2 or self.stagger >= self.stages):
            return "the first of two cooperative warpgroups is ahead, by fewer k tiles than there are stages"
        if self.accumulators + OVERHEAD_REGISTERS > self.registers:
            return f"{self.accumulators} accumulators a thread, which may use {self.registers} registers"
        mn_a, mn_b = tma_wgmma.majors(self.layout, self.swap_ab)
        if why := tma_wgmma.bad_tile(self.tile_m, self.tile_n, mn_a, mn_b, self.cluster_n, self.cluster_m):
            return why
        if self.stages < 2 or self.store_stages < 1:
            return "at least two stages and one store buffer"
        if self.shared_bytes > SHARED_LIMIT:
            return f"{self.shared_bytes} bytes of shared memory, {SHARED_LIMIT} are there"
        return None

    @property
    def bounds(self) -> str:
        """``setmaxnreg`` needs a cap at entry: one CTA a multiprocessor."""
        return f"{self.threads}, 1" if self.math_warpgroups > 1 else str(self.threads)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The template's."""
        flags = (*tma_wgmma.majors(self.layout, self.swap_ab), self.dtype == "bf16", self.swap_ab)
        tile = self.tile_m, self.tile_n, self.stages, self.math_warpgroups, self.ping_pong
        more = self.store_stages, self.stagger, self.epilogue
        return *tile, self.cluster_m, self.cluster_n, *flags, *more


def band_dividers(tiles_m: int, tiles_n: int, group: int) -> dict[str, int]:
    """What the kernel's `Work::place` divides by, as `tma_wgmma.divider` makes it."""
    wide = abs(group)
    across, along = (tiles_n, tiles_m) if group < 0 else (tiles_m, tiles_n)
    # there are fewer than 2^31 tiles: a larger band is all of them
    divisors = {"band": min(wide * along, 1 << 31), "wide": wide, "rest": across % wide or wide}
    return {
        f"{name}_{part}": number
        for name, divisor in divisors.items()
        for part, number in zip(("by", "shift"), tma_wgmma.divider(divisor), strict=True)
    }


@dataclass(frozen=True, slots=True, order=True)
class PersistentConfig(Configuration):
    """An instance and what is chosen at launch.

    Attributes:
        instance: the compiled kernel.
        group: rows of a band of tiles visited together, down its columns (in cluster tiles); negative:
            columns of a band, visited along its rows.
    """

    FAMILY: ClassVar[str] = "persistent"
    LAUNCH: ClassVar[dict[str, str]] = {"group": "g"}
    CHOICES: ClassVar[Choices] = tuple({"group": group} for group in (1, 2, 4, 8, 16, -2, -4, -8))
    HAS_LATE: ClassVar[bool] = True

    instance: PersistentInstance
    group: int = 8

    @property
    def ranges(self) -> int:
        """Into how many ranges k is split: it is not."""
        return 1

    @property
    def cluster(self) -> int:
        """CTAs of a cluster."""
        return self.instance.cluster

    def cuts(self, shape: Shape) -> tuple[int, ...] | None:
        """Where k is cut: nowhere."""
        return ()

    def tiles(self, shape: Shape) -> tuple[int, int]:
        """The cluster's tiles along the kernel's m and n."""
        i, seen = self.instance, self.seen(shape)
        return ceil_div(seen.m, i.tile_m * i.cluster_m), ceil_div(seen.n, i.columns * i.cluster_n)

    def clusters(self) -> int:
        """Clusters that run at once."""
        i = self.instance
        return AT_ONCE[i.cluster - 1] * i.resident // i.cluster

    def why_illegal(self, shape: Shape) -> str | None:
        """Why this configuration cannot or should not run this shape; None when it may."""
        if why := self.instance.why_illegal() or tma_wgmma.misaligned(shape, self.layout):
            return why
        if not 1 <= abs(self.group) < 1 << 15:
            return f"bands of {abs(self.group)}: 1 to 32767"
        tiles_m, tiles_n = self.tiles(shape)
        if tiles_m * tiles_n * tma_wgmma.k_tiles(shape) >= 1 << 31:
            return "more than 2^31 k tiles in all"
        return next(filter(None, (found.why_illegal() for found in self._maps(shape).values())), None)

    def dominated(self, shape: Shape) -> str | None:
        """Why a legal configuration is surely worse than another; None when it may be good."""
        seen, rows, columns = self.seen(shape), self.instance.tile_m, self.instance.columns
        if rows > 64 and rows // 2 >= seen.m:
            return f"{rows} rows a CTA for {seen.m}"
        if self.swap_ab and not self.instance.together and seen.n > 2 * columns:
            return f"transposed tiles of {columns} for {seen.n} rows of C: they are for few"
        if columns > 16 and columns // 2 >= seen.n:
            return f"{columns} columns a CTA for {seen.n}"
        tiles_m, tiles_n = self.tiles(shape)
        if (self.instance.cluster_m > 1 and seen.m <= rows) or (
            self.instance.cluster_n > 1 and seen.n <= columns
        ):
            return "half of every cluster would have nothing to do"
        if self.group > 1 and self.group >= 2 * tiles_m:
            return f"bands of {self.group} for {tiles_m} rows of tiles"
        if self.group < -1 and -self.group >= 2 * tiles_n:
            return f"bands of {-self.group} for {tiles_n} columns of tiles"
        if self.group < 0 and tiles_m * tiles_n <= self.clusters():
            return f"{tiles_m * tiles_n} tiles are at work at once: their order is of no matter"
        if self.group < 0 and min(tiles_m, tiles_n) < 3:
            return f"{tiles_m} x {tiles_n} tiles: bands of rows visit them as well"
        return None

    def _boxes(self, shape: Shape) -> tuple[int, int]:
        """Rows of a tile of A, of B, that a CTA loads; of parts, whose number is compiled in, all."""
        i, seen = self.instance, self.seen(shape)
        mn_a, mn_b = tma_wgmma.majors(i.layout, i.swap_ab)
        return (
            i.tile_m // i.cluster_n if i.cluster_n > 1 else tma_wgmma.box_rows(seen.m, i.tile_m, mn_a),
            i.columns // i.cluster_m if i.cluster_m > 1 else tma_wgmma.box_rows(seen.n, i.columns, mn_b),
        )

    def _maps(self, shape: Shape) -> dict[str, TensorMap]:
        i = self.instance
        height, width, _ = tma_wgmma.stored(i.columns, i.swap_ab, i.together)
        c = TensorMap("c", i.dtype, (shape.n, shape.m), (2 * shape.n,), (width, height), 2 * width)
        return tma_wgmma.operand_maps(i, self.seen(shape), shape.k, self._boxes(shape)) | {"map_c": c}

    def _grid(self, shape: Shape) -> tuple[int, int, int]:
        return min(math.prod(self.tiles(shape)), self.clusters()) * self.cluster, 1, 1

    def _scalars(self, shape: Shape) -> dict[str, int]:
        tiles_m, tiles_n = self.tiles(shape)
        i, seen, (rows_a, rows_b) = self.instance, self.seen(shape), self._boxes(shape)
        return {
            "tiles_m": tiles_m,
            "tiles_n": tiles_n,
            "k_tiles": tma_wgmma.k_tiles(shape),
            "group": self.group,
            **band_dividers(tiles_m, tiles_n, self.group),
            "last_row": tma_wgmma.last(seen.m, i.tile_m),
            "last_column": tma_wgmma.last(seen.n, i.columns),
            "stage_bytes": tma_wgmma.stage_bytes(rows_a * i.cluster_n, rows_b * i.cluster_m),
            "late": 0,
            "store_policy": tma_wgmma.STORE_POLICY,
        }

    def _fetched_cycles(self, shape: Shape) -> float:
        """Cycles in which the memory brings a k tile of all rows and columns that are at work at once."""
        instance, (tiles_m, tiles_n) = self.instance, self.tiles(shape)
        clusters = min(self.clusters(), tiles_m * tiles_n)
        if self.group > 0:
            high = min(self.group, tiles_m)
            wide = min(tiles_n, ceil_div(clusters, high))
            high = max(high, ceil_div(clusters, wide))
        else:
            wide = min(-self.group, tiles_n)
            high = min(tiles_m, ceil_div(clusters, wide))
            wide = max(wide, ceil_div(clusters, high))
        rows, columns = self.tile
        extent = high * rows * instance.cluster_m + wide * columns * instance.cluster_n
        return 2 * TILE_K * extent / MULTIPROCESSORS / _MEMORY

    def _gap(self) -> float:
        """Cycles a tile in which the tensor cores have no products.

        Stores drain behind the next tile; what stops the tensor cores is the way to shared memory.
        """
        i, (rows, columns) = self.instance, self.tile
        return 0.0 if i.ping_pong else 300 + rows * columns / i.sharers / 128

    def _moved(self, shape: Shape) -> int:
        """Bytes of all operands."""
        return shape.nbytes

    def estimate_us(self, shape: Shape) -> float:
        """Microseconds, roughly."""
        instance, (rows, columns) = self.instance, self.tile
        tiles_m, tiles_n = self.tiles(shape)
        share = instance.resident
        # a k tile in the steady state: tensor cores, operands from shared memory, copies, latency over stages
        loaded = 2 * TILE_K * (rows / instance.cluster_n + columns / instance.cluster_m)
        step = max(
            share * cost.multiply_cycles(rows, columns),
            share * cost.read_cycles(rows, columns),
            share * loaded / cost.L2_BYTES,
            _COPY / instance.stages,
        )
        step += _ORDER * self._fetched_cycles(shape)
        store = share * 2 * rows * instance.columns / _STORE
        whole = max(tma_wgmma.k_tiles(shape) * step + self._gap(), store)
        whole *= ceil_div(tiles_m * tiles_n, self.clusters())
        memory = self._moved(shape) / MULTIPROCESSORS / _MEMORY
        return cost.microseconds(_LAUNCH + 600 + _COPY + min(store, 2000) + max(whole, memory))


#: Of the estimate: cycles from the launch to the first tensor copy (a node of a graph alone takes 1300), and
#: of a tensor copy from issue to arrival; bytes a cycle and multiprocessor that stores of C reach, and of the
#: memory with all multiprocessors loading
_LAUNCH, _COPY, _STORE, _MEMORY = 2200, 1000, 24, 17
#: what of a k tile's time in memory shows up (bands of 1 took 3 % more than bands of 16)
_ORDER = 0.04


_Tiles = tuple[tuple[int, int, int, bool, dict[str, Any]], ...]
_SWAPPED: dict[str, Any] = {"swap_ab": True}
#: rows, columns, multiplying warpgroups, ping-pong, options: what wins somewhere. With a stagger the first
#: warpgroup stores while the second multiplies. Tall tiles are for few columns, and swapped ones
#: for where waves of the others leave some multiprocessors idle
_BOTH: _Tiles = (
    (128, 256, 2, False, {"stagger": 3}),
    (192, 128, 3, False, {}),
    (128, 128, 2, True, {}),
    (128, 128, 2, True, {"most": 5, "store_stages": 4}),
    (128, 192, 2, True, {"cluster_n": 2, "most": 4, "store_stages": 3}),
    (128, 168, 2, True, _SWAPPED),
    (128, 176, 2, True, {"swap_ab": True, "cluster_m": 2}),
)
_TN: _Tiles = (
    (64, 128, 2, True, {}),
    (64, 192, 2, True, {}),
    (128, 128, 2, True, {"most": 4, "store_stages": 4}),
    (128, 160, 2, True, {"cluster_m": 2}),
    (128, 168, 2, True, {}),
    (128, 192, 2, True, {"cluster_m": 2, "most": 4, "store_stages": 3}),
    (192, 128, 2, True, {"most": 4, "store_stages": 3}),
    # layers of which other tiles leave multiprocessors idle in the last wave
    (192, 144, 3, False, {}),
)
_NN: _Tiles = (
    (128, 128, 2, True, {"cluster_m": 2, "most": 5, "store_stages": 4}),
    (128, 192, 2, True, {"most": 4, "store_stages": 3}),
    (192, 128, 2, True, {"cluster_n": 2, "most": 4, "store_stages": 3}),
)
_BACKWARD: _Tiles = ((128, 256, 2, False, {"cluster_m": 2}), (128, 128, 2, True, {}))
#: for weights' gradients (nt) as well
_GRADIENT: _Tiles = (
    (128, 256, 2, False, {}),
    (128, 128, 2, True, {"cluster_m": 2}),
    (128, 192, 2, True, {"cluster_n": 2, "most": 4, "store_stages": 3}),
)
_FUSED: _Tiles = (
    (128, 256, 2, False, {"cluster_m": 2}),
    (128, 128, 2, True, {"cluster_m": 2}),
    (64, 192, 2, True, {}),
)


def _instances(tiles: _Tiles, *layouts: str, **more: Any) -> tuple[PersistentInstance, ...]:
    return tuple(
        PersistentInstance.deepest(layout, *tile, **options, **more)
        for layout in layouts
        for *tile, options in tiles
    )


#: compiled for the benchmark's task (FP16, nn and tn)
INSTANCES = (*_instances(_BOTH, "tn", "nn"), *_instances(_TN, "tn"), *_instances(_NN, "nn"))
_GRADIENTS = (*_instances(_BACKWARD, "tt", "nt"), *_instances(_GRADIENT, "nt"))
#: compiled for other callers: BF16, and the layouts of training's backward pass
OTHER_INSTANCES = (
    *(replace(instance, dtype="bf16") for instance in (*INSTANCES, *_GRADIENTS)),
    *_GRADIENTS,
)
#: those with an epilogue (`epilogue`)
EPILOGUE_INSTANCES = tuple(
    found
    for found in (
        *_instances(_FUSED, "tn", "nn", epilogue=True),
        *_instances(_FUSED[1:2], "tn", "nn", epilogue=True, dtype="bf16"),
    )
    if found.why_illegal() is None
)

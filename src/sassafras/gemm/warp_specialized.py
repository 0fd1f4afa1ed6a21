"""The warp-specialised family (`kernels/sm90_hgemm_warp_specialized.cuh`): what is compiled, what is legal.

Persistent TMA + WGMMA kernels for medium and large problems; with split-K and stream-K for few tiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from sassafras.core import SassafrasError

from . import hopper
from .configuration import PLAIN, Configuration, Mode
from .entry import EPILOGUE_PARAMETERS, entry
from .hopper import truth
from .launch import MULTIPROCESSORS, SHARED_LIMIT, Launch, TensorMap, ceil_div
from .shapes import Shape

#: names and types of the kernel's parameters, in order
PARAMETERS = (
    ("map_a", "tensormap"), ("map_b", "tensormap"), ("map_c", "tensormap"), ("workspace", "*f32"),
    ("counters", "*u32"), ("tiles_m", "i32"), ("tiles_n", "i32"), ("k_tiles", "i32"), ("group", "i32"),
    ("split_tiles", "i32"), ("split_units", "i32"), ("unit_length", "i32"), ("longer_units", "i32"),
    ("last_row", "i32"), ("last_column", "i32"), ("stage_bytes", "i32"), ("late", "i32"),
)  # fmt: skip
#: largest workspace (bytes): partial sums should stay in the L2
WORKSPACE_LIMIT = 64 << 20
#: accumulators of a ping-pong thread above which kernels come without splits
WIDEST_SPLIT = 176
#: k tiles below which a range of split-K or stream-K is not worth its sum
LEAST_K_TILES = 2


@dataclass(frozen=True, slots=True, order=True)
class WarpSpecializedInstance:
    """One compiled kernel: the template's parameters.

    Attributes:
        layout: ``tn``, ``nn``, ``tt`` or ``nt``.
        rows, columns: the CTA's tile (of the transposed problem when swapped).
        consumers: multiplying warpgroups, 1 to 3.
        ping_pong: they take tiles by turns instead of sharing them.
        stages: k tiles in shared memory.
        cluster_m, cluster_n: CTAs of a cluster along m and n; at most two in all.
        swapped: computes the transpose of C, for small m.
        buffers: store buffers of each warp.
        dtype: ``fp16`` or ``bf16``.
        epilogue: batches, and more than the product (`epilogue`).
        lead: k tiles by which the first of two cooperative warpgroups is ahead at the end of a tile.
    """

    layout: str
    rows: int
    columns: int
    consumers: int
    ping_pong: bool
    stages: int
    cluster_m: int = 1
    cluster_n: int = 1
    swapped: bool = False
    buffers: int = 2
    dtype: str = "fp16"
    epilogue: bool = False
    lead: int = 0

    @property
    def name(self) -> str:
        """Entry name, for example ``ws_tn_128x256_co2s4b2c2x1``; ``pp`` for ping-pong.

        At its end: ``e``: epilogue; ``l3``: lead.
        """
        mode = "pp" if self.ping_pong else "co"
        kind = ("_swapped" if self.swapped else "") + ("_bf16" if self.dtype == "bf16" else "")
        return (
            f"ws_{self.layout}{kind}_{self.rows}x{self.columns}_{mode}{self.consumers}s{self.stages}"
            f"b{self.buffers}c{self.cluster_m}x{self.cluster_n}{'e' * self.epilogue}"
            + (f"l{self.lead}" if self.lead else "")
        )

    @classmethod
    def parse(cls, name: str) -> WarpSpecializedInstance:
        """The instance of an entry name. Raises SassafrasError."""
        for instance in (*INSTANCES, *OTHER_INSTANCES, *EPILOGUE_INSTANCES, *CANDIDATES):
            if instance.name == name:
                return instance
        raise SassafrasError("no warp-specialised instance has this name", where=name)

    @property
    def cluster(self) -> int:
        """CTAs of a cluster."""
        return self.cluster_m * self.cluster_n

    @property
    def sharers(self) -> int:
        """Warpgroups that share a tile."""
        return 1 if self.ping_pong else self.consumers

    @property
    def threads(self) -> int:
        """Threads a CTA."""
        return 128 * (self.consumers + 1)

    @property
    def accumulators(self) -> int:
        """FP32 accumulators of a multiplying thread."""
        return self.rows // self.sharers // 64 * self.columns // 2

    @property
    def splits(self) -> bool:
        """Whether it can split k: the widest tiles leave no registers for that."""
        return not (self.ping_pong and self.accumulators > WIDEST_SPLIT)

    @property
    def registers(self) -> int:
        """Registers of a multiplying thread (``setmaxnreg``; with one warpgroup what a launch allows)."""
        return {1: 255, 2: 232, 3: 160}.get(self.consumers, 0)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory a CTA, as the kernel lays it out."""
        stages = self.stages * hopper.stage_bytes(self.rows, self.columns)
        buffers = self.consumers * 4 * self.buffers * hopper.staging(self.columns, self.swapped)[2]
        return 1024 + stages + buffers + 16 * self.stages + 12 * self.consumers

    @property
    def resident(self) -> int:
        """CTAs that one multiprocessor holds (of a cluster: one)."""
        if self.cluster > 1:
            return 1
        allotted = min(255, 65536 // self.threads) if self.consumers > 1 else self.accumulators + 72
        by_registers = 65536 // (self.threads * ceil_div(allotted, 8) * 8)
        return max(1, min(by_registers, (228 * 1024) // (self.shared_bytes + 1024), 2048 // self.threads))

    @property
    def parameters(self) -> tuple[tuple[str, str], ...]:
        """Names and types of the kernel's parameters."""
        return PARAMETERS + EPILOGUE_PARAMETERS * self.epilogue

    def reject(self) -> str | None:
        """Why it cannot be compiled or run at all; None when it can."""
        if not 1 <= self.consumers <= 3 or (self.ping_pong and self.consumers != 2):
            return f"{self.consumers} multiplying warpgroups: 1 to 3, and 2 for ping-pong"
        if self.rows % (64 * self.sharers):
            return f"{self.rows} rows for {self.sharers} warpgroups of 64 or 128 rows"
        if self.cluster > 2:
            return f"a cluster of {self.cluster}: at most 2"
        if self.swapped and self.rows != 64 * self.sharers:
            return "swapped tiles have 64 rows a warpgroup"
        if self.lead and (self.ping_pong or self.consumers != 2 or self.lead >= self.stages):
            return "the first of two cooperative warpgroups leads, by fewer k tiles than there are stages"
        overhead = hopper.OVERHEAD_REGISTERS if self.splits else hopper.WHOLE_TILES_REGISTERS
        if self.accumulators + overhead > self.registers:
            return f"{self.accumulators} accumulators a thread, which may use {self.registers} registers"
        mn_a, mn_b = hopper.majors(self.layout, self.swapped)
        if why := hopper.bad_tile(self.rows, self.columns, mn_a, mn_b, self.cluster_n, self.cluster_m):
            return why
        if self.stages < 2 or self.buffers < 1:
            return "at least two stages and one store buffer"
        if self.shared_bytes > SHARED_LIMIT:
            return f"{self.shared_bytes} bytes of shared memory, {SHARED_LIMIT} are there"
        return None

    @property
    def template(self) -> str:
        """The kernel's type in C++."""
        mn_a, mn_b = hopper.majors(self.layout, self.swapped)
        numbers = (
            self.rows, self.columns, self.stages, self.consumers, truth(self.ping_pong), self.cluster_m,
            self.cluster_n, truth(mn_a), truth(mn_b), truth(self.dtype == "bf16"), truth(self.swapped),
            self.buffers,
        )  # fmt: skip
        more = ", true" * self.epilogue if self.splits else f", {truth(self.epilogue)}, false"
        if self.lead:
            more = f", {truth(self.epilogue)}, {truth(self.splits)}, {self.lead}"
        return f"WarpSpecialized<{', '.join(map(str, numbers))}{more}>"

    @property
    def source(self) -> str:
        """CUDA C++ of the entry."""
        # setmaxnreg needs a cap at entry: one CTA a multiprocessor
        blocks = 1 if self.consumers > 1 else 0
        header = "sm90_hgemm_warp_specialized.cuh"
        return entry(
            self.name, header, self.template, self.parameters, self.threads, blocks, epilogue=self.epilogue
        )


def deepest(
    layout: str, rows: int, columns: int, consumers: int, ping_pong: bool, *, most: int = 8, **more: Any
) -> WarpSpecializedInstance:
    """The instance with as many stages as shared memory holds, `most` at most."""
    found = WarpSpecializedInstance(layout, rows, columns, consumers, ping_pong, most, **more)
    while found.shared_bytes > SHARED_LIMIT and found.stages > 2:
        found = WarpSpecializedInstance(layout, rows, columns, consumers, ping_pong, found.stages - 1, **more)
    return found


#: rows, columns, consumers, ping-pong, options
_TILES: tuple[tuple[int, int, int, bool, dict[str, Any]], ...] = (
    (128, 256, 2, False, {"cluster_m": 2}),
    (128, 256, 2, False, {}),
    (128, 192, 2, False, {"cluster_m": 2}),
    (128, 192, 2, False, {}),
    # the first warpgroup stores while the second multiplies
    (128, 256, 2, False, {"cluster_m": 2, "lead": 3}),
    (128, 256, 2, False, {"lead": 3}),
    (128, 192, 2, False, {"lead": 3}),
    (192, 128, 3, False, {}),
    (128, 160, 2, True, {"cluster_m": 2}),
    (128, 160, 2, True, {}),
    (128, 128, 2, True, {"cluster_m": 2}),
    (128, 128, 2, True, {}),
    (128, 128, 2, False, {}),
    (64, 256, 2, True, {}),
    (64, 192, 2, True, {}),
    (64, 128, 2, True, {}),
    # store-bound: short k, whole rows of warps' pieces in flight
    (128, 128, 2, True, {"most": 4, "buffers": 4}),
    # between waves, or less traffic a product; C leaves 16 columns at a time, so more store buffers
    (128, 112, 2, True, {"cluster_m": 2, "buffers": 4}),
    (128, 144, 2, True, {"cluster_m": 2, "buffers": 4}),
    (128, 176, 2, True, {"cluster_m": 2, "buffers": 4}),
    (128, 192, 2, True, {"cluster_m": 2, "most": 4, "buffers": 3}),
    (128, 192, 2, True, {"cluster_n": 2, "most": 4, "buffers": 3}),
)
_SWAPPED = ((64, 16, 1, False), (128, 32, 2, False))
#: of 129 to 160 rows of C, or twice that, and wide weights
_SWAPPED_WIDE = ((128, 160, 2, False),)


def _instances(layouts: tuple[str, ...], dtype: str, tiles: Any) -> Iterator[WarpSpecializedInstance]:
    for layout in layouts:
        for rows, columns, consumers, ping_pong, options in tiles:
            found = deepest(layout, rows, columns, consumers, ping_pong, dtype=dtype, **options)
            if found.reject() is None:
                yield found


#: compiled for the benchmark's task (FP16, nn and tn)
INSTANCES: tuple[WarpSpecializedInstance, ...] = (
    *_instances(("tn", "nn"), "fp16", _TILES),
    *(deepest(layout, *tile, swapped=True) for layout in ("tn", "nn") for tile in _SWAPPED),
    *(deepest(layout, *t, swapped=True, buffers=1) for layout in ("tn", "nn") for t in _SWAPPED_WIDE),
)
_GENERAL = tuple(tile for tile in _TILES if tile in (_TILES[0], (128, 128, 2, True, {})))
#: for weights' gradients (nt) as well: those that lead most often where torch is beaten in nn
_GRADIENT = tuple(
    tile
    for tile in _TILES
    if tile
    in (
        (128, 256, 2, False, {}),
        (128, 128, 2, True, {"cluster_m": 2}),
        (128, 192, 2, True, {"cluster_n": 2, "most": 4, "buffers": 3}),
    )
)
#: compiled for other callers: BF16, and the layouts of training's backward pass
OTHER_INSTANCES: tuple[WarpSpecializedInstance, ...] = (
    *_instances(("tn", "nn", "tt", "nt"), "bf16", _GENERAL),
    *_instances(("tt", "nt"), "fp16", _GENERAL),
    *_instances(("nt",), "fp16", _GRADIENT),
    *_instances(("nt",), "bf16", _GRADIENT),
    *(deepest(layout, *_SWAPPED[1], swapped=True, dtype="bf16") for layout in ("tn", "nn")),
)
#: those with an epilogue (`epilogue`)
_FUSED_PLAIN: tuple[tuple[int, int, int, bool, dict[str, Any]], ...] = (
    _TILES[0],
    (128, 128, 2, True, {"cluster_m": 2}),
    (64, 192, 2, True, {}),
)
_FUSED = tuple(tile for tile in _TILES if tile in _FUSED_PLAIN)
EPILOGUE_INSTANCES: tuple[WarpSpecializedInstance, ...] = tuple(
    replace(instance, epilogue=True)
    for instance in (
        *_instances(("tn", "nn"), "fp16", _FUSED), *_instances(("tn", "nn"), "bf16", _FUSED[1:2]),
    )
)  # fmt: skip


#: what no GPU has timed yet (`families.CANDIDATES`): nothing
CANDIDATES: tuple[WarpSpecializedInstance, ...] = ()


@dataclass(frozen=True, slots=True, order=True)
class WarpSpecializedConfig(Configuration):
    """An instance and what is chosen at launch.

    Attributes:
        instance: the compiled kernel.
        group: rows of a band of tiles visited together, down its columns (in cluster tiles); negative:
            columns of a band, visited along its rows; 0: tiles lie on a Hilbert curve.
        split: 1: whole tiles; 2 and more: k is split so often; 0: stream-K.
        mode: how launches follow each other.
    """

    HAS_LATE: ClassVar[bool] = True

    instance: WarpSpecializedInstance
    group: int = 8
    split: int = 1
    mode: Mode = field(default=PLAIN, kw_only=True)

    @property
    def stem(self) -> str:
        """For example ``ws_tn_128x256_co2s4b2c2x1/g8/k1``; ``sk`` for stream-K.

        Order: ``g8`` is bands of 8 rows, ``v8`` of 8 columns, ``h`` a Hilbert curve.
        """
        return f"{self.instance.name}/{self.order}/" + (f"k{self.split}" if self.split else "sk")

    @property
    def order(self) -> str:
        """The part of the name that says in which order tiles are visited."""
        return f"g{self.group}" if self.group > 0 else f"v{-self.group}" if self.group else "h"

    @classmethod
    def _parse(cls, stem: str) -> WarpSpecializedConfig:
        try:
            entry, order, split = stem.split("/")
            number = 0 if split == "sk" else int(split.removeprefix("k"))
            group = 0 if order == "h" else int(order[1:]) * {"g": 1, "v": -1}[order[:1]]
            found = cls(WarpSpecializedInstance.parse(entry), group, number)
            if found.stem != stem:
                raise ValueError(stem)
            return found
        except (ValueError, KeyError) as error:
            raise SassafrasError("not a warp-specialised configuration", where=stem) from error

    @property
    def slices(self) -> int:
        """Into how many parts k is split; 0 for stream-K."""
        return self.split

    @property
    def cluster(self) -> int:
        """CTAs of a cluster."""
        return self.instance.cluster

    def tiles(self, shape: Shape) -> tuple[int, int]:
        """The cluster's tiles along the kernel's m and n."""
        i, seen = self.instance, self.seen(shape)
        return ceil_div(seen.m, i.rows * i.cluster_m), ceil_div(seen.n, i.columns * i.cluster_n)

    def clusters(self) -> int:
        """Clusters that run at once."""
        return MULTIPROCESSORS * self.instance.resident // self.instance.cluster

    def work(self, shape: Shape) -> tuple[int, int]:
        """(tiles whose k is cut into ranges, number of ranges); (0, 0) without split."""
        tiles_m, tiles_n = self.tiles(shape)
        tiles = tiles_m * tiles_n
        if self.split == 1:
            return 0, 0
        if self.split > 1:
            return tiles, tiles * self.split
        clusters = self.clusters()
        # beyond whole waves: what is left over and one wave, so that every range is one to two tiles long
        whole = max(0, tiles // clusters - 1) * clusters
        return tiles - whole, clusters

    def reject(self, shape: Shape) -> str | None:
        """Why this configuration cannot or should not run this shape; None when it may."""
        if why := self.instance.reject() or hopper.misaligned(shape, self.layout):
            return why
        if self.split < 0:
            return f"split {self.split} must be positive"
        if self.split != 1 and not self.instance.splits:
            return f"{self.instance.accumulators} accumulators a thread: this kernel does not split k"
        if abs(self.group) >= 1 << 15:
            return f"bands of {abs(self.group)}: at most 32767"
        tiles_m, tiles_n = self.tiles(shape)
        k_tiles = hopper.k_tiles(shape)
        if tiles_m * tiles_n * k_tiles >= 1 << 31:
            return "more than 2^31 k tiles in all"
        for described in self._maps(shape).values():
            if why := described.reject():
                return why
        if self.split == 1:
            return None
        split_tiles, units = self.work(shape)
        if self.split == 0 and tiles_m * tiles_n % self.clusters() == 0:
            return f"{tiles_m * tiles_n} tiles fill whole waves of {self.clusters()}: nothing to balance"
        if split_tiles * k_tiles < LEAST_K_TILES * units:
            return f"{units} ranges of {split_tiles * k_tiles} k tiles: at least {LEAST_K_TILES} each"
        if (needed := self._workspace(units)) > WORKSPACE_LIMIT:
            return f"{needed} bytes of partial sums, at most {WORKSPACE_LIMIT}"
        return None

    def wasteful(self, shape: Shape) -> str | None:
        """Why a legal configuration is surely worse than another; None when it may be good."""
        seen, (rows, columns) = self.seen(shape), self.tile
        if rows > 64 and rows // 2 >= seen.m:
            return f"{rows} rows a CTA for {seen.m}"
        if self.swapped and seen.n > 2 * columns:
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
        if self.group <= 0 and tiles_m * tiles_n <= self.clusters():
            return f"{tiles_m * tiles_n} tiles are at work at once: their order is of no matter"
        if self.group <= 0 and min(tiles_m, tiles_n) < 3:
            return f"{tiles_m} x {tiles_n} tiles: bands of rows visit them as well"
        if self.split > 1 and tiles_m * tiles_n * self.split > 2 * self.clusters():
            return f"{tiles_m * tiles_n} tiles: no need to split k by {self.split}"
        return None

    def _workspace(self, units: int) -> int:
        rows, columns = self.tile
        return 2 * units * self.cluster * rows * columns * 4

    def _boxes(self, shape: Shape) -> tuple[int, int]:
        """Rows of a tile of A, of B, that a CTA loads; of parts, whose number is compiled in, all."""
        i, seen = self.instance, self.seen(shape)
        mn_a, mn_b = hopper.majors(i.layout, i.swapped)
        return (
            i.rows // 2 if i.cluster_n > 1 else hopper.box_rows(seen.m, i.rows, 1, mn_a),
            i.columns // 2 if i.cluster_m > 1 else hopper.box_rows(seen.n, i.columns, 1, mn_b),
        )

    def _maps(self, shape: Shape) -> dict[str, TensorMap]:
        i, seen, (rows_a, rows_b) = self.instance, self.seen(shape), self._boxes(shape)
        mn_a, mn_b = hopper.majors(i.layout, i.swapped)
        c_rows, c_columns, _ = hopper.staging(i.columns, i.swapped)
        return {
            "map_a": hopper.operand_map("a", seen.m, shape.k, rows_a, mn_a, i.dtype),
            "map_b": hopper.operand_map("b", seen.n, shape.k, rows_b, mn_b, i.dtype),
            "map_c": TensorMap(
                "c", i.dtype, (shape.n, shape.m), (2 * shape.n,), (c_columns, c_rows), 2 * c_columns
            ),
        }

    def _launch(self, shape: Shape) -> Launch:
        tiles_m, tiles_n = self.tiles(shape)
        k_tiles = hopper.k_tiles(shape)
        split_tiles, units = self.work(shape)
        length, longer = divmod(split_tiles * k_tiles, units) if units else (1, 0)
        # k of each tile is cut at the same places: then it does not matter which of two tiles stores a sum
        alike = not units or (not longer and k_tiles % length == 0 and split_tiles == tiles_m * tiles_n)
        i, seen, (rows_a, rows_b) = self.instance, self.seen(shape), self._boxes(shape)
        scalars = {
            "tiles_m": tiles_m, "tiles_n": tiles_n, "k_tiles": k_tiles, "group": self.group,
            "split_tiles": split_tiles, "split_units": units, "unit_length": length, "longer_units": longer,
            "last_row": hopper.last(seen.m, i.rows) if alike else hopper.APART,
            "last_column": hopper.last(seen.n, i.columns) if alike else hopper.APART,
            "stage_bytes": hopper.stage_bytes(rows_a * i.cluster_n, rows_b * i.cluster_m), "late": 0,
        }  # fmt: skip
        jobs = units + tiles_m * tiles_n - split_tiles
        grid = min(jobs, self.clusters()) * self.cluster
        return Launch(
            (grid, 1, 1), self.threads, self.shared_bytes, (self.cluster, 1, 1), scalars, self._maps(shape),
            self._workspace(units), split_tiles * self.cluster * self.instance.sharers,
        )  # fmt: skip


def configurations(
    instances: tuple[WarpSpecializedInstance, ...] = INSTANCES,
) -> Iterator[WarpSpecializedConfig]:
    """Every configuration, in a fixed order, legal or not."""
    for instance in instances:
        for group in (1, 4, 8, 16, -8, 0):
            yield WarpSpecializedConfig(instance, group, 1)
        if not instance.splits:
            continue
        for split in (0, 2, 3, 4, 8, 16):
            yield WarpSpecializedConfig(instance, 8, split)
        yield WarpSpecializedConfig(instance, 0, 0)

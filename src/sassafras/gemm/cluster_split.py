"""The cluster-split family (`kernels/sm90_hgemm_cluster_split.cuh`): instances, configurations, legality.

One tile a CTA on TMA + WGMMA; k may be split over a cluster. For problems of few tiles.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sassafras.core import SassafrasError

from . import hopper
from .hopper import truth
from .launch import GRID_LIMIT, SHARED_LIMIT, Launch, TensorMap, ceil_div
from .shapes import Shape


@dataclass(frozen=True, slots=True, order=True)
class ClusterSplitInstance:
    """One compiled kernel: the template's parameters.

    Attributes:
        layout: ``tn``, ``nn``, ``tt`` or ``nt``.
        rows, columns: the CTA's tile (of the transposed problem when swapped); 64 rows a warpgroup.
        stages: k tiles in shared memory.
        swapped: computes the transpose of C, for small m.
        dtype: ``fp16`` or ``bf16``.
    """

    layout: str
    rows: int
    columns: int
    stages: int
    swapped: bool = False
    dtype: str = "fp16"

    @property
    def name(self) -> str:
        """Entry name, for example ``cs_tn_64x128_s6``."""
        kind = ("_swapped" if self.swapped else "") + ("_bf16" if self.dtype == "bf16" else "")
        return f"cs_{self.layout}{kind}_{self.rows}x{self.columns}_s{self.stages}"

    @classmethod
    def parse(cls, name: str) -> ClusterSplitInstance:
        """The instance of an entry name. Raises SassafrasError."""
        for instance in (*INSTANCES, *OTHER_INSTANCES):
            if instance.name == name:
                return instance
        raise SassafrasError("no cluster-split instance has this name", where=name)

    @property
    def consumers(self) -> int:
        """Multiplying warpgroups."""
        return self.rows // 64

    @property
    def threads(self) -> int:
        """Threads a CTA."""
        return 128 * self.consumers + 32

    @property
    def registers(self) -> int:
        """Registers a thread, roughly: accumulators, addresses."""
        return self.columns // 2 + 40

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory a CTA, as the kernel lays it out."""
        stages = self.stages * hopper.stage_bytes(self.rows, self.columns)
        return (
            1024
            + stages
            + self.consumers * 4 * hopper.staging(self.columns, self.swapped)[2]
            + 16 * self.stages
        )

    @property
    def parameters(self) -> tuple[tuple[str, str], ...]:
        """Names and types of the kernel's parameters."""
        return (
            ("map_a", "tensormap"), ("map_b", "tensormap"), ("c", f"*{self.dtype}"), ("m", "i32"),
            ("n", "i32"), ("ldc", "i32"), ("k_tiles", "i32"), ("tiles_per_slice", "i32"),
        )  # fmt: skip

    def reject(self) -> str | None:
        """Why it cannot be compiled or run at all; None when it can."""
        if self.rows not in (64, 128):
            return f"{self.rows} rows: 64 or 128"
        if why := hopper.bad_tile(self.rows, self.columns, *hopper.majors(self.layout, self.swapped)):
            return why
        rows, columns = (self.columns, self.rows) if self.swapped else (self.rows, self.columns)
        partial = 4 * rows * (columns + (4 if self.swapped else 8))
        if partial > self.shared_bytes - 1024 - 16 * self.stages:
            return f"partial sums take {partial} bytes, more than the stages"
        if self.stages < 2:
            return "at least two stages"
        if self.shared_bytes > SHARED_LIMIT:
            return f"{self.shared_bytes} bytes of shared memory, {SHARED_LIMIT} are there"
        return None

    @property
    def template(self) -> str:
        """The kernel's type in C++."""
        mn_a, mn_b = hopper.majors(self.layout, self.swapped)
        numbers = (
            self.rows, self.columns, self.stages, self.consumers, truth(mn_a), truth(mn_b),
            truth(self.dtype == "bf16"), truth(self.swapped),
        )  # fmt: skip
        return f"ClusterSplit<{', '.join(map(str, numbers))}>"

    @property
    def source(self) -> str:
        """CUDA C++ of the entry."""
        header = "sm90_hgemm_cluster_split.cuh"
        return hopper.entry(self.name, header, self.template, self.parameters, self.threads)


_TILES = ((64, 32, 8), (64, 64, 6), (64, 128, 6), (64, 256, 5), (128, 64, 6), (128, 128, 6), (128, 256, 4))
_SWAPPED = ((64, 16, 8), (64, 32, 8), (64, 64, 6), (128, 32, 6))


def _instances(layouts: tuple[str, ...], dtype: str, tiles: Any) -> Iterator[ClusterSplitInstance]:
    for layout in layouts:
        for rows, columns, stages, swapped in tiles:
            found = ClusterSplitInstance(layout, rows, columns, stages, swapped, dtype)
            if found.reject() is None:
                yield found


_ALL = (*((*tile, False) for tile in _TILES), *((*tile, True) for tile in _SWAPPED))
#: compiled for the benchmark's task (FP16, nn and tn)
INSTANCES: tuple[ClusterSplitInstance, ...] = tuple(_instances(("tn", "nn"), "fp16", _ALL))
_GENERAL = tuple(_ALL[i] for i in (1, 5, 8))
#: compiled for other callers: BF16, and the layouts of training's backward pass
OTHER_INSTANCES: tuple[ClusterSplitInstance, ...] = (
    *_instances(("tn", "nn", "tt", "nt"), "bf16", _GENERAL),
    *_instances(("tt", "nt"), "fp16", _GENERAL),
)


@dataclass(frozen=True, slots=True, order=True)
class ClusterSplitConfig:
    """An instance and the cluster that splits k, 1 to 8 CTAs."""

    instance: ClusterSplitInstance
    cluster: int = 1

    @property
    def name(self) -> str:
        """For example ``cs_tn_64x128_s6/c2``."""
        return f"{self.instance.name}/c{self.cluster}"

    @classmethod
    def parse(cls, name: str) -> ClusterSplitConfig:
        """The configuration of a `name`. Raises SassafrasError."""
        try:
            entry, cluster = name.split("/")
            return cls(ClusterSplitInstance.parse(entry), int(cluster.removeprefix("c")))
        except ValueError as error:
            raise SassafrasError("not a cluster-split configuration", where=name) from error

    @property
    def layout(self) -> str:
        """How A and B have to lie in memory."""
        return self.instance.layout

    @property
    def dtype(self) -> str:
        """``fp16`` or ``bf16``."""
        return self.instance.dtype

    @property
    def swapped(self) -> bool:
        """A and B change roles."""
        return self.instance.swapped

    @property
    def threads(self) -> int:
        """Threads a CTA."""
        return self.instance.threads

    @property
    def slices(self) -> int:
        """Into how many parts k is split."""
        return self.cluster

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of a CTA's tile (of the swapped problem, if swapped)."""
        return self.instance.rows, self.instance.columns

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory a CTA."""
        return self.instance.shared_bytes

    def seen(self, shape: Shape) -> Shape:
        """The problem as the kernel sees it: m and n exchanged when swapped."""
        return Shape(shape.n, shape.m, shape.k) if self.swapped else shape

    def tiles(self, shape: Shape) -> tuple[int, int]:
        """Tiles along the kernel's m and n."""
        seen = self.seen(shape)
        return ceil_div(seen.m, self.instance.rows), ceil_div(seen.n, self.instance.columns)

    def reject(self, shape: Shape) -> str | None:
        """Why this configuration cannot or should not run this shape; None when it may."""
        if why := self.instance.reject() or hopper.misaligned(shape, self.layout):
            return why
        if not 1 <= self.cluster <= 8:
            return f"cluster {self.cluster}, 1 to 8 are possible"
        if max(self.tiles(shape)) > GRID_LIMIT:
            return f"{max(self.tiles(shape))} tiles, a grid takes {GRID_LIMIT} along each extent"
        tiles = hopper.k_tiles(shape)
        if ceil_div(tiles, ceil_div(tiles, self.cluster)) != self.cluster:
            return f"{self.cluster} slices of {tiles} k tiles: some would be empty"
        for described in self._maps(shape).values():
            if why := described.reject():
                return why
        return None

    def wasteful(self, shape: Shape) -> str | None:
        """Why a legal configuration is surely worse than a smaller one; None when it may be good."""
        seen, (rows, columns) = self.seen(shape), self.tile
        if rows > 64 and rows // 2 >= seen.m:
            return f"{rows} rows a CTA for {seen.m}"
        if self.swapped and seen.n > 2 * columns:
            return f"transposed tiles of {columns} for {seen.n} rows of C: they are for few"
        if columns > 16 and columns // 2 >= seen.n:
            return f"{columns} columns a CTA for {seen.n}"
        tiles_m, tiles_n = self.tiles(shape)
        if tiles_m * tiles_n * self.cluster > 8 * 132:
            return f"{tiles_m * tiles_n * self.cluster} CTAs that do not outlive their tile"
        return None

    def _maps(self, shape: Shape) -> dict[str, TensorMap]:
        i, seen = self.instance, self.seen(shape)
        mn_a, mn_b = hopper.majors(i.layout, i.swapped)
        return {
            "map_a": hopper.operand_map("a", seen.m, shape.k, i.rows, mn_a, i.dtype),
            "map_b": hopper.operand_map("b", seen.n, shape.k, i.columns, mn_b, i.dtype),
        }

    def launch(self, shape: Shape) -> Launch:
        """How to launch it. Raises SassafrasError when it cannot run (`reject`)."""
        if why := self.reject(shape):
            raise SassafrasError(why, where=f"{self.name} for {shape}")
        tiles_m, tiles_n = self.tiles(shape)
        seen, k_tiles = self.seen(shape), hopper.k_tiles(shape)
        scalars = {
            "m": seen.m, "n": seen.n, "ldc": shape.n, "k_tiles": k_tiles,
            "tiles_per_slice": ceil_div(k_tiles, self.cluster),
        }  # fmt: skip
        return Launch(
            (self.cluster, tiles_n, tiles_m), self.threads, self.shared_bytes, (self.cluster, 1, 1), scalars,
            self._maps(shape),
        )  # fmt: skip

    def facts(self) -> dict[str, Any]:
        """JSON-able description."""
        rows, columns = self.tile
        return {
            "config": self.name, "layout": self.layout, "tile": f"{rows}x{columns}", "slices": self.slices,
        }  # fmt: skip


def configurations(instances: tuple[ClusterSplitInstance, ...] = INSTANCES) -> Iterator[ClusterSplitConfig]:
    """Every configuration, in a fixed order, legal or not."""
    for instance, cluster in itertools.product(instances, (1, 2, 3, 4, 6, 8)):
        yield ClusterSplitConfig(instance, cluster)

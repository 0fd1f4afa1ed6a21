"""The warp-specialised family (`kernels/sm90_gemm_persistent.cuh`): configurations, what is legal.

Persistent TMA + WGMMA kernels for medium and large problems; with split-K and stream-K for few tiles. The
compiled kernels: `warp_specialized_instances`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from sassafras.core import SassafrasError

from ..problem.launch import AT_ONCE, Launch, TensorMap, ceil_div
from ..problem.shape import Shape
from . import tma_wgmma
from .base import PLAIN, Configuration, Mode
from .persistent_instances import INSTANCES, PersistentInstance

#: largest workspace (bytes): partial sums should stay in the L2
WORKSPACE_LIMIT = 64 << 20
#: k tiles below which a range of split-K or stream-K is not worth its sum
LEAST_K_TILES = 2


def band_dividers(tiles_m: int, tiles_n: int, group: int) -> dict[str, int]:
    """What the kernel's `Work::place` divides by, as `hopper.divider` makes it; 1 for a Hilbert curve."""
    wide = abs(group) or 1
    across, along = (tiles_n, tiles_m) if group < 0 else (tiles_m, tiles_n)
    # there are fewer than 2^31 tiles: a larger band is all of them
    divisors = {"band": min(wide * along, 1 << 31), "wide": wide, "rest": across % wide or wide}
    return {
        f"{name}_{part}": number
        for name, divisor in divisors.items()
        for part, number in zip(("by", "shift"), tma_wgmma.divider(divisor if group else 1), strict=True)
    }


@dataclass(frozen=True, slots=True, order=True)
class PersistentConfig(Configuration):
    """An instance and what is chosen at launch.

    Attributes:
        instance: the compiled kernel.
        group: rows of a band of tiles visited together, down its columns (in cluster tiles); negative:
            columns of a band, visited along its rows; 0: tiles lie on a Hilbert curve.
        split: 1: whole tiles; 2 and more: k is split so often; 0: stream-K.
        mode: how launches follow each other.
    """

    HAS_LATE: ClassVar[bool] = True

    instance: PersistentInstance
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
    def _parse(cls, stem: str) -> PersistentConfig:
        try:
            entry, order, split = stem.split("/")
            number = 0 if split == "sk" else int(split.removeprefix("k"))
            group = 0 if order == "h" else int(order[1:]) * {"g": 1, "v": -1}[order[:1]]
            found = cls(PersistentInstance.parse(entry), group, number)
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
        i = self.instance
        return AT_ONCE[i.cluster - 1] * i.resident // i.cluster

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

    def why_illegal(self, shape: Shape) -> str | None:
        """Why this configuration cannot or should not run this shape; None when it may."""
        if why := self.instance.why_illegal() or tma_wgmma.misaligned(shape, self.layout):
            return why
        if self.split < 0:
            return f"split {self.split} must be positive"
        if self.split != 1 and not self.instance.splits:
            return f"{self.instance.accumulators} accumulators a thread: this kernel does not split k"
        if abs(self.group) >= 1 << 15:
            return f"bands of {abs(self.group)}: at most 32767"
        tiles_m, tiles_n = self.tiles(shape)
        k_tiles = tma_wgmma.k_tiles(shape)
        if tiles_m * tiles_n * k_tiles >= 1 << 31:
            return "more than 2^31 k tiles in all"
        for described in self._maps(shape).values():
            if why := described.why_illegal():
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

    def dominated(self, shape: Shape) -> str | None:
        """Why a legal configuration is surely worse than another; None when it may be good."""
        seen, (rows, columns) = self.seen(shape), self.tile
        if rows > 64 and rows // 2 >= seen.m:
            return f"{rows} rows a CTA for {seen.m}"
        if self.swapped and not self.instance.together and seen.n > 2 * columns:
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
        mn_a, mn_b = tma_wgmma.majors(i.layout, i.swapped)
        return (
            i.rows // i.cluster_n if i.cluster_n > 1 else tma_wgmma.box_rows(seen.m, i.rows, 1, mn_a),
            i.columns // i.cluster_m if i.cluster_m > 1 else tma_wgmma.box_rows(seen.n, i.columns, 1, mn_b),
        )

    def _maps(self, shape: Shape) -> dict[str, TensorMap]:
        i, seen, (rows_a, rows_b) = self.instance, self.seen(shape), self._boxes(shape)
        mn_a, mn_b = tma_wgmma.majors(i.layout, i.swapped)
        c_rows, c_columns, _ = tma_wgmma.stored(i.columns, i.swapped, i.together)
        return {
            "map_a": tma_wgmma.operand_map("a", seen.m, shape.k, rows_a, mn_a, i.dtype),
            "map_b": tma_wgmma.operand_map("b", seen.n, shape.k, rows_b, mn_b, i.dtype),
            "map_c": TensorMap(
                "c", i.dtype, (shape.n, shape.m), (2 * shape.n,), (c_columns, c_rows), 2 * c_columns
            ),
        }

    def _launch(self, shape: Shape) -> Launch:
        tiles_m, tiles_n = self.tiles(shape)
        k_tiles = tma_wgmma.k_tiles(shape)
        split_tiles, units = self.work(shape)
        length, longer = divmod(split_tiles * k_tiles, units) if units else (1, 0)
        # k of each tile is cut at the same places: then it does not matter which of two tiles stores a sum
        alike = not units or (not longer and k_tiles % length == 0 and split_tiles == tiles_m * tiles_n)
        i, seen, (rows_a, rows_b) = self.instance, self.seen(shape), self._boxes(shape)
        scalars = {
            "tiles_m": tiles_m,
            "tiles_n": tiles_n,
            "k_tiles": k_tiles,
            "group": self.group,
            **band_dividers(tiles_m, tiles_n, self.group),
            "split_tiles": split_tiles,
            "split_units": units,
            "unit_length": length,
            "longer_units": longer,
            "last_row": tma_wgmma.last(seen.m, i.rows) if alike else tma_wgmma.APART,
            "last_column": tma_wgmma.last(seen.n, i.columns) if alike else tma_wgmma.APART,
            "stage_bytes": tma_wgmma.stage_bytes(rows_a * i.cluster_n, rows_b * i.cluster_m),
            "late": 0,
            "store_policy": tma_wgmma.STORE_POLICY,
        }
        jobs = units + tiles_m * tiles_n - split_tiles
        grid = min(jobs, self.clusters()) * self.cluster
        return Launch(
            (grid, 1, 1),
            self.threads,
            self.shared_bytes,
            (self.cluster, 1, 1),
            scalars,
            self._maps(shape),
            self._workspace(units),
            split_tiles * self.cluster * self.instance.sharers,
        )


def configurations(
    instances: tuple[PersistentInstance, ...] = INSTANCES,
) -> Iterator[PersistentConfig]:
    """Every configuration, in a fixed order, legal or not."""
    for instance in instances:
        for group in (1, 2, 4, 8, 16, -2, -4, -8, 0):
            yield PersistentConfig(instance, group, 1)
        if not instance.splits:
            continue
        for split in (0, 2, 3, 4, 8, 16):
            yield PersistentConfig(instance, 8, split)
        yield PersistentConfig(instance, 0, 0)

"""The warp-specialised family (`kernels/sm90_gemm_persistent.cuh`): what is compiled.

What a launch chooses beside: `warp_specialized`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from ..problem.launch import SHARED_LIMIT, ceil_div
from . import tma_wgmma
from .base import named
from .source import EPILOGUE_PARAMETERS, entry
from .tma_wgmma import truth

#: names and types of the kernel's parameters, in order
PARAMETERS = (
    ("map_a", "tensormap"), ("map_b", "tensormap"), ("map_c", "tensormap"), ("workspace", "*f32"),
    ("counters", "*u32"), ("tiles_m", "i32"), ("tiles_n", "i32"), ("k_tiles", "i32"), ("group", "i32"),
    ("band_by", "i32"), ("band_shift", "i32"), ("wide_by", "i32"), ("wide_shift", "i32"), ("rest_by", "i32"),
    ("rest_shift", "i32"), ("split_tiles", "i32"), ("split_units", "i32"), ("unit_length", "i32"),
    ("longer_units", "i32"), ("last_row", "i32"), ("last_column", "i32"), ("stage_bytes", "i32"),
    ("late", "i32"), ("store_policy", "i32"),
)  # fmt: skip
#: accumulators of a ping-pong thread above which kernels come without splits
WIDEST_SPLIT = 176


@dataclass(frozen=True, slots=True, order=True)
class PersistentInstance:
    """One compiled kernel: the template's parameters.

    Attributes:
        layout: ``tn``, ``nn``, ``tt`` or ``nt``.
        rows, columns: the CTA's tile (of the transposed problem when swapped).
        consumers: multiplying warpgroups, 1 to 3.
        ping_pong: they take tiles by turns instead of sharing them.
        stages: k tiles in shared memory.
        cluster_m, cluster_n: CTAs of a cluster along m and n; 1, 2, 4 or 8 in all.
        swapped: computes the transpose of C: for small m, or, with `ping_pong`, a tall tile for any.
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
    def parse(cls, name: str) -> PersistentInstance:
        """The instance of an entry name. Raises SassafrasError."""
        return named(
            (*INSTANCES, *OTHER_INSTANCES, *EPILOGUE_INSTANCES, *CANDIDATES),
            name,
            "warp-specialised instance",
        )

    @property
    def cluster(self) -> int:
        """CTAs of a cluster."""
        return self.cluster_m * self.cluster_n

    @property
    def sharers(self) -> int:
        """Warpgroups that share a tile."""
        return 1 if self.ping_pong else self.consumers

    @property
    def together(self) -> bool:
        """Whether the warps of a warpgroup fill a store buffer together: tall tiles."""
        return self.swapped and self.ping_pong

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
        stages = self.stages * tma_wgmma.stage_bytes(self.rows, self.columns)
        buffers = (
            self.consumers * 4 * self.buffers * tma_wgmma.stored(self.columns, self.swapped, self.together)[2]
        )
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

    def why_illegal(self) -> str | None:
        """Why it cannot be compiled or run at all; None when it can."""
        if not 1 <= self.consumers <= 3 or (self.ping_pong and self.consumers != 2):
            return f"{self.consumers} multiplying warpgroups: 1 to 3, and 2 for ping-pong"
        if self.rows % (64 * self.sharers):
            return f"{self.rows} rows for {self.sharers} warpgroups of 64 or 128 rows"
        if self.cluster not in (1, 2, 4, 8):
            return f"a cluster of {self.cluster_m} x {self.cluster_n}: 1, 2, 4 or 8 CTAs"
        if self.swapped and not self.together and self.rows != 64 * self.sharers:
            return "swapped tiles have 64 rows a warpgroup, but for ping-pong ones"
        if self.together and self.columns < 64:
            return f"tall tiles of {self.columns} rows: they are stored 64 at once"
        if self.lead and (self.ping_pong or self.consumers != 2 or self.lead >= self.stages):
            return "the first of two cooperative warpgroups leads, by fewer k tiles than there are stages"
        overhead = tma_wgmma.OVERHEAD_REGISTERS if self.splits else tma_wgmma.WHOLE_TILES_REGISTERS
        if self.accumulators + overhead > self.registers:
            return f"{self.accumulators} accumulators a thread, which may use {self.registers} registers"
        mn_a, mn_b = tma_wgmma.majors(self.layout, self.swapped)
        if why := tma_wgmma.bad_tile(self.rows, self.columns, mn_a, mn_b, self.cluster_n, self.cluster_m):
            return why
        if self.stages < 2 or self.buffers < 1:
            return "at least two stages and one store buffer"
        if self.shared_bytes > SHARED_LIMIT:
            return f"{self.shared_bytes} bytes of shared memory, {SHARED_LIMIT} are there"
        return None

    @property
    def template(self) -> str:
        """The kernel's type in C++."""
        mn_a, mn_b = tma_wgmma.majors(self.layout, self.swapped)
        numbers = (
            self.rows,
            self.columns,
            self.stages,
            self.consumers,
            truth(self.ping_pong),
            self.cluster_m,
            self.cluster_n,
            truth(mn_a),
            truth(mn_b),
            truth(self.dtype == "bf16"),
            truth(self.swapped),
            self.buffers,
        )
        more = ", true" * self.epilogue if self.splits else f", {truth(self.epilogue)}, false"
        if self.lead:
            more = f", {truth(self.epilogue)}, {truth(self.splits)}, {self.lead}"
        return f"WarpSpecialized<{', '.join(map(str, numbers))}{more}>"

    @property
    def source(self) -> str:
        """CUDA C++ of the entry."""
        # setmaxnreg needs a cap at entry: one CTA a multiprocessor
        blocks = 1 if self.consumers > 1 else 0
        header = "sm90_gemm_persistent.cuh"
        return entry(
            self.name, header, self.template, self.parameters, self.threads, blocks, epilogue=self.epilogue
        )


def deepest(
    layout: str, rows: int, columns: int, consumers: int, ping_pong: bool, *, most: int = 8, **more: Any
) -> PersistentInstance:
    """The instance with as many stages as shared memory holds, `most` at most."""
    found = PersistentInstance(layout, rows, columns, consumers, ping_pong, most, **more)
    while found.shared_bytes > SHARED_LIMIT and found.stages > 2:
        found = PersistentInstance(layout, rows, columns, consumers, ping_pong, found.stages - 1, **more)
    return found


#: rows, columns, consumers, ping-pong, options
_TILES: tuple[tuple[int, int, int, bool, dict[str, Any]], ...] = (
    (128, 256, 2, False, {"cluster_m": 2}),
    # the first warpgroup stores while the second multiplies
    (128, 256, 2, False, {"cluster_m": 2, "lead": 3}),
    (128, 256, 2, False, {"lead": 3}),
    (128, 192, 2, False, {"lead": 3}),
    (192, 128, 3, False, {}),
    (128, 160, 2, True, {"cluster_m": 2}),
    (128, 128, 2, True, {"cluster_m": 2}),
    (128, 128, 2, True, {}),
    (128, 128, 2, False, {}),
    (64, 192, 2, True, {}),
    (64, 128, 2, True, {}),
    # between waves, or less traffic a product
    (128, 168, 2, True, {}),
    (128, 144, 2, True, {"cluster_m": 2, "most": 5, "buffers": 3}),
    (128, 144, 2, True, {"cluster_m": 2, "buffers": 1}),
    (128, 176, 2, True, {"cluster_m": 2}),
    (128, 176, 2, True, {}),
    (128, 192, 2, True, {"cluster_m": 2, "most": 4, "buffers": 3}),
    (128, 192, 2, True, {"cluster_n": 2, "most": 4, "buffers": 3}),
    (128, 192, 2, True, {"most": 4, "buffers": 3}),
    # a stage more for store buffers less, and the other way round
    (128, 192, 2, True, {"buffers": 1}),
    (128, 128, 2, True, {"most": 5, "buffers": 4}),
    # tall ones, for few columns
    (192, 128, 2, True, {"cluster_n": 2, "buffers": 1}),
    (192, 128, 2, True, {"most": 4, "buffers": 3}),
    (192, 128, 2, True, {"cluster_n": 2, "most": 4, "buffers": 3}),
)
#: of one layout alone, as the other's wins next to nothing with them. Store-bound: short k, whole rows of
#: warps' pieces in flight
_TILES_TN: tuple[tuple[int, int, int, bool, dict[str, Any]], ...] = (
    (128, 128, 2, True, {"most": 4, "buffers": 4}),
    (192, 128, 2, True, {"buffers": 1}),
)
_TILES_NN: tuple[tuple[int, int, int, bool, dict[str, Any]], ...] = (
    (64, 256, 2, True, {}),
    (128, 192, 2, True, {"cluster_n": 2, "buffers": 1}),
    (128, 128, 2, True, {"cluster_m": 2, "most": 5, "buffers": 4}),
)
#: tall ones, as transposes of wide ones: with 128 x 128 or 192 x 128 waves leave some multiprocessors idle
_TALL: tuple[tuple[int, int, int, bool, dict[str, Any]], ...] = (
    (128, 112, 2, True, {"cluster_m": 2}),
    (128, 152, 2, True, {"buffers": 3}),
    (128, 168, 2, True, {}),
    (128, 176, 2, True, {"cluster_m": 2}),
)
_TALL_TN: tuple[tuple[int, int, int, bool, dict[str, Any]], ...] = ((128, 160, 2, True, {"cluster_m": 2}),)
_FEW_ROWS = (64, 16, 1, False)
#: of 129 to 160 rows of C, or twice that, and wide weights
_SWAPPED_WIDE = ((128, 160, 2, False),)


def _instances(layouts: tuple[str, ...], dtype: str, tiles: Any, **more: Any) -> Iterator[PersistentInstance]:
    for layout in layouts:
        for rows, columns, consumers, ping_pong, options in tiles:
            found = deepest(layout, rows, columns, consumers, ping_pong, dtype=dtype, **options, **more)
            if found.why_illegal() is None:
                yield found


#: compiled for the benchmark's task (FP16, nn and tn)
INSTANCES: tuple[PersistentInstance, ...] = (
    *_instances(("tn", "nn"), "fp16", _TILES),
    *_instances(("tn",), "fp16", _TILES_TN),
    *_instances(("nn",), "fp16", _TILES_NN),
    *_instances(("tn", "nn"), "fp16", _TALL, swapped=True),
    *_instances(("tn",), "fp16", _TALL_TN, swapped=True),
    deepest("nn", *_FEW_ROWS, swapped=True),
    *(deepest(layout, *t, swapped=True, buffers=1) for layout in ("tn", "nn") for t in _SWAPPED_WIDE),
)
_GENERAL: tuple[tuple[int, int, int, bool, dict[str, Any]], ...] = (_TILES[0], (128, 128, 2, True, {}))
#: for weights' gradients (nt) as well: those that lead most often where torch is beaten in nn
_GRADIENT: tuple[tuple[int, int, int, bool, dict[str, Any]], ...] = (
    (128, 256, 2, False, {}),
    (128, 128, 2, True, {"cluster_m": 2}),
    (128, 192, 2, True, {"cluster_n": 2, "most": 4, "buffers": 3}),
)
#: compiled for other callers: BF16, and the layouts of training's backward pass
OTHER_INSTANCES: tuple[PersistentInstance, ...] = (
    *_instances(("tn", "nn", "tt", "nt"), "bf16", _GENERAL),
    *_instances(("tt", "nt"), "fp16", _GENERAL),
    *_instances(("nt",), "fp16", _GRADIENT),
    *_instances(("nt",), "bf16", _GRADIENT),
    *(deepest(layout, 128, 32, 2, False, swapped=True, dtype="bf16") for layout in ("tn", "nn")),
)
#: those with an epilogue (`epilogue`)
_FUSED_PLAIN: tuple[tuple[int, int, int, bool, dict[str, Any]], ...] = (
    _TILES[0],
    (128, 128, 2, True, {"cluster_m": 2}),
    (64, 192, 2, True, {}),
)
_FUSED = tuple(tile for tile in _TILES if tile in _FUSED_PLAIN)
EPILOGUE_INSTANCES: tuple[PersistentInstance, ...] = tuple(
    replace(instance, epilogue=True)
    for instance in (
        *_instances(("tn", "nn"), "fp16", _FUSED),
        *_instances(("tn", "nn"), "bf16", _FUSED[1:2]),
    )
)


#: what no GPU has timed yet (`families.CANDIDATES`): nothing
CANDIDATES: tuple[PersistentInstance, ...] = ()

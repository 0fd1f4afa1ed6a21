"""The cluster-split family (`kernels/sm90_gemm_split_k.cuh`): what is compiled, and why.

What a launch chooses beside: `cluster_split`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from ..problem.launch import SHARED_LIMIT, ceil_div
from ..problem.shape import Shape
from . import tma_wgmma
from .base import named
from .source import EPILOGUE_PARAMETERS, entry
from .tma_wgmma import truth


@dataclass(frozen=True, slots=True, order=True)
class SplitKInstance:
    """One compiled kernel: the template's parameters.

    Attributes:
        layout: ``tn``, ``nn``, ``tt`` or ``nt``.
        rows, columns: the CTA's tile (of the transposed problem when swapped); 64 rows a warpgroup.
        stages: k tiles in shared memory.
        swapped: computes the transpose of C, for small m.
        dtype: ``fp16`` or ``bf16``.
        shared: CTAs of a cluster may share operands.
        epilogue: batches, and more than the product (`epilogue`).
        blocks: 1 or 2: the quick start (`kernels/sm90_hgemm_quick_split.cuh`), with so many blocks of 64 k in
            a stage; 0: without it.
        lead: stages by which the first of two warpgroups is ahead at the end; with the quick start.
    """

    #: parts leave their sums to a second launch (`second_launch.LeavingInstance`)
    leaves: ClassVar[bool] = False

    layout: str
    rows: int
    columns: int
    stages: int
    swapped: bool = False
    dtype: str = "fp16"
    shared: bool = False
    epilogue: bool = False
    blocks: int = 0
    lead: int = 0

    @property
    def name(self) -> str:
        """Entry name, for example ``cs_tn_64x128_s8``.

        At its end: ``m``: operands may be shared; ``e``: epilogue; ``q1``, ``q2``: quick start, blocks;
        ``l3``: lead.
        """
        kind = ("_swapped" if self.swapped else "") + ("_bf16" if self.dtype == "bf16" else "")
        ending = "m" * self.shared + "e" * self.epilogue + (f"q{self.blocks}" if self.blocks else "")
        ending += f"l{self.lead}" if self.lead else ""
        return f"cs_{self.layout}{kind}_{self.rows}x{self.columns}_s{self.stages}{ending}"

    @classmethod
    def parse(cls, name: str) -> SplitKInstance:
        """The instance of an entry name. Raises SassafrasError."""
        return named(
            (*INSTANCES, *OTHER_INSTANCES, *EPILOGUE_INSTANCES, *CANDIDATES), name, "cluster-split instance"
        )

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
    def ring(self) -> int:
        """Blocks of 64 k that the stages hold."""
        return self.stages * max(1, self.blocks)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory a CTA, as the kernel lays it out."""
        stages = self.ring * tma_wgmma.stage_bytes(self.rows, self.columns)
        return (
            1024
            + stages
            + self.consumers * 4 * tma_wgmma.staging(self.columns, self.swapped)[2]
            + 16 * (self.ring + 1)
        )

    def k_tiles(self, shape: Shape) -> int:
        """Stages' worth of k."""
        return ceil_div(shape.k, tma_wgmma.TILE_K * max(1, self.blocks))

    def exchange(self, slices: int) -> str | None:
        """Why so many slices cannot exchange their partial sums; None when they can."""
        received = self.received_bytes(slices)
        if self.sums_apart:
            if (needed := self.shared_bytes_of(slices)) > SHARED_LIMIT:
                return f"with partial sums of {slices} slices {needed} bytes of shared memory"
            return None
        stages = self.ring * tma_wgmma.stage_bytes(self.rows, self.columns)
        if slices > 1 and received > stages:
            return f"partial sums of {slices} slices take {received} bytes, more than the stages"
        return None

    @property
    def sums_apart(self) -> bool:
        """Slices exchange their partial sums beside the stages, not in their place."""
        return self.blocks > 0 and not self.shared

    def received_bytes(self, slices: int) -> int:
        """Partial sums that a CTA receives."""
        return slices * ceil_div(self.columns // 16, slices) * 64 * self.rows if slices > 1 else 0

    def shared_bytes_of(self, slices: int) -> int:
        """Dynamic shared memory of a CTA where so many split k (`with_sums` of the quick kernel)."""
        if slices == 1 or not self.sums_apart:
            return self.shared_bytes
        return ceil_div(self.shared_bytes, 128) * 128 + self.received_bytes(slices)

    @property
    def parameters(self) -> tuple[tuple[str, str], ...]:
        """Names and types of the kernel's parameters."""
        plain = (
            ("map_a", "tensormap"),
            ("map_b", "tensormap"),
            ("c", f"*{self.dtype}"),
            ("workspace", "*f32"),
            ("counters", "*u32"),
            ("m", "i32"),
            ("n", "i32"),
            ("ldc", "i32"),
            ("k_tiles", "i32"),
            ("tiles_per_slice", "i32"),
            ("parts", "i32"),
            ("log2_slices", "i32"),
            ("late", "i32"),
            ("share_m", "i32"),
            ("share_n", "i32"),
            ("rows_a", "i32"),
            ("rows_b", "i32"),
            ("all_a", "i32"),
            ("all_b", "i32"),
            ("last_row", "i32"),
            ("last_column", "i32"),
            ("stage_bytes", "i32"),
            ("band", "i32"),
        )
        return plain + EPILOGUE_PARAMETERS * self.epilogue

    def why_illegal(self) -> str | None:
        """Why it cannot be compiled or run at all; None when it can."""
        if self.epilogue and self.shared:
            return "CTAs share operands, and clusters with an epilogue stay within a matrix of the batch"
        if self.rows not in (64, 128):
            return f"{self.rows} rows: 64 or 128"
        if why := tma_wgmma.bad_tile(self.rows, self.columns, *tma_wgmma.majors(self.layout, self.swapped)):
            return why
        if not 2 <= self.stages <= 32:
            return "at least two stages, and at most 32"
        if self.blocks not in (0, 1, 2) or (self.blocks and self.epilogue):
            return f"{self.blocks} blocks of k a stage: 1 or 2, and not with an epilogue"
        if self.lead and not (self.blocks and self.consumers == 2 and self.lead < self.stages):
            return "the first of two warpgroups leads, with the quick start, by fewer stages than there are"
        if not self.sums_apart and (why := self.exchange(2)):
            return why
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
            truth(mn_a),
            truth(mn_b),
            truth(self.dtype == "bf16"),
            truth(self.swapped),
            truth(self.shared),
        )
        if self.blocks:
            lead = f", {self.lead}" if self.lead else ""
            return f"QuickSplit<{', '.join(map(str, numbers))}, {self.blocks}{lead}>"
        return f"ClusterSplit<{', '.join(map(str, numbers))}{', true' * self.epilogue}>"

    @property
    def source(self) -> str:
        """CUDA C++ of the entry."""
        header = f"sm90_hgemm_{'quick' if self.blocks else 'cluster'}_split.cuh"
        return entry(self.name, header, self.template, self.parameters, self.threads, epilogue=self.epilogue)


#: rows, columns, stages, swapped: what won somewhere on the grid, or was close. Most have as
#: many stages as 200 KB hold, for one CTA a multiprocessor and long k; those with few are for two and more.
#: 64 x 64 with twelve stages and swapped 64 x 32 with sixteen are here for their BF16 twins' sake: times of
#: theirs are what callers with BF16 are served by
_BOTH = (
    (64, 64, 12, False),
    (64, 64, 6, False),
    (64, 128, 8, False),
    (64, 192, 6, False),
    (64, 256, 5, False),
    (128, 64, 8, False),
    (128, 128, 6, False),
    (64, 16, 16, True),
    (64, 32, 16, True),
    (64, 32, 8, True),
    (64, 48, 14, True),
    (128, 16, 10, True),
    (128, 32, 9, True),
)
#: widths that cannot hold rows of B
_TN = ((64, 32, 8, False), (64, 96, 10, False))
_NN = ((128, 192, 5, False),)
#: of those whose CTAs may share operands
_SHARED = ((64, 160, 7, False),)
#: with the quick start: blocks of 64 k in a stage, and tiles; fewer stages where slices want room for sums
#: beside them. Two blocks were slower but for narrow tiles (docs/experiments/hgemm-launch.md)
_QUICK = (
    (
        1,
        (
            (64, 64, 6, False),
            (64, 64, 10, False),
            (64, 128, 7, False),
            (128, 64, 7, False),
            (128, 128, 6, False),
            (64, 32, 8, True),
            (64, 64, 10, True),
        ),
    ),
    (2, ((64, 64, 5, False),)),
)
#: those of 96 transposed columns are for weights of 12288 rows: 128 tiles
_QUICK_96 = ((1, ((64, 96, 8, True), (128, 96, 6, True))),)
#: 129 to 160 rows of C, 257 to 320, and the weights of a layer: 8 to 13 % faster (2026-11-22)
_QUICK_160 = ((1, ((64, 160, 7, True), (128, 160, 5, True))),)
_QUICK_TN = (
    (1, ((64, 32, 8, False), (64, 80, 9, False), (64, 96, 8, False), (128, 96, 6, False))),
    (2, ((64, 32, 4, False), (64, 32, 7, False))),
)
_QUICK_NN = ((1, ((128, 64, 7, True),)), (2, ((64, 32, 4, True),)))
_QUICK_SHARED = ((1, ((64, 64, 12, False),)),)
_QUICK_SHARED_NN = ((1, ((64, 128, 8, False), (128, 128, 6, False))),)
#: layouts, rows, columns, stages, shared, lead: the first warpgroup stores while the second multiplies
_LEADING = (
    (("tn", "nn"), 128, 256, 4, False, 3),
    (("tn", "nn"), 128, 128, 6, False, 4),
    (("tn",), 128, 128, 6, True, 4),
    (("tn",), 128, 192, 5, False, 3),
)


def _instances(
    layouts: tuple[str, ...],
    tiles: Iterable[tuple[int, int, int, bool]],
    dtype: str = "fp16",
    shared: bool = False,
    blocks: int = 0,
) -> Iterator[SplitKInstance]:
    for layout in layouts:
        for rows, columns, stages, swapped in tiles:
            found = SplitKInstance(layout, rows, columns, stages, swapped, dtype, shared, blocks=blocks)
            if found.why_illegal() is None:
                yield found


#: compiled for the benchmark's task (FP16, nn and tn)
INSTANCES: tuple[SplitKInstance, ...] = (
    *_instances(("tn", "nn"), _BOTH),
    *_instances(("tn",), _TN),
    *_instances(("tn",), _SHARED, shared=True),
    *_instances(("nn",), _NN),
    *(
        instance
        for layouts, kinds, shared in (
            (("tn", "nn"), _QUICK, False),
            (("tn",), _QUICK_TN, False),
            (("nn",), _QUICK_NN, False),
            (("tn", "nn"), _QUICK_96, False),
            (("tn", "nn"), _QUICK_160, False),
            (("tn", "nn"), _QUICK_SHARED, True),
            (("nn",), _QUICK_SHARED_NN, True),
        )
        for blocks, tiles in kinds
        for instance in _instances(layouts, tiles, shared=shared, blocks=blocks)
    ),
    *(
        SplitKInstance(layout, rows, columns, stages, shared=shared, blocks=1, lead=lead)
        for layouts, rows, columns, stages, shared, lead in _LEADING
        for layout in layouts
    ),
)
_GENERAL = ((64, 64, 12, False), (128, 128, 6, False), (64, 32, 16, True))
#: compiled for other callers: BF16, and the layouts of training's backward pass
OTHER_INSTANCES: tuple[SplitKInstance, ...] = (
    *_instances(("tn", "nn", "tt", "nt"), _GENERAL, "bf16"),
    *_instances(("tt", "nt"), _GENERAL),
)

#: what no GPU has timed yet (`families.CANDIDATES`): nothing
CANDIDATES: tuple[SplitKInstance, ...] = ()

#: those with an epilogue (`epilogue`)
_FUSED = ((64, 64, 6, False), (64, 32, 8, True), (64, 128, 8, False), (128, 128, 6, False))
EPILOGUE_INSTANCES: tuple[SplitKInstance, ...] = tuple(
    replace(instance, epilogue=True)
    for instance in (
        *_instances(("tn", "nn"), _FUSED),
        *_instances(("tn", "nn"), ((64, 64, 6, False),), "bf16"),
    )
)

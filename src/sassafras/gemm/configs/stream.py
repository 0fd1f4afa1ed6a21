"""The streaming kernel (`kernels/sm90_gemm_stream.cuh`): few rows of A, a B that comes from memory once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ..problem.launch import GRID_LIMIT, MULTIPROCESSORS, Launch, ceil_div
from ..problem.shape import Shape
from . import cost
from .base import PLAIN, Configuration, Mode
from .source import KernelInstance, Parameters, all_of

#: elements of k that a warp takes in turn
LINE = 64


@dataclass(frozen=True, slots=True, order=True)
class StreamInstance(KernelInstance):
    """One compiled kernel: the template's parameters.

    Attributes:
        layout: ``tn`` (B is n x k).
        rows: of A, at most: 8 or 16.
        tiles: 8-row tiles of B a CTA.
        depth: 32-wide steps of k that a warp has in flight, even.
        warps: of a CTA; they split k.
        dtype: ``fp16`` or ``bf16``.
        epilogue: batches, and more than the product (`epilogue`).
    """

    HEADER: ClassVar[str] = "sm90_gemm_stream.cuh"
    TEMPLATE: ClassVar[str] = "Stream"
    PARAMETERS: ClassVar[Parameters] = (
        *all_of("*fp16", "a", "b", "c"),
        *all_of("i32", "m", "n", "k", "lda", "ldb", "ldc"),
    )
    READ_ONLY: ClassVar[bool] = True

    layout: str
    rows: int
    tiles: int
    depth: int
    warps: int
    dtype: str = "fp16"
    epilogue: bool = False

    @property
    def name(self) -> str:
        """Entry name, for example ``stream_tn_r8t5d4w12``; ``e`` behind it: epilogue."""
        choices = f"r{self.rows}t{self.tiles}d{self.depth}w{self.warps}"
        return f"stream_{self._kind}_{choices}" + "e" * self.epilogue

    @property
    def threads(self) -> int:
        """Threads a CTA."""
        return 32 * self.warps

    @property
    def registers(self) -> int:
        """Registers a thread, roughly: the ring, the sums, addresses."""
        return 4 * self.depth * (self.tiles + self.rows // 8) + 4 * self.tiles + 40

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory a CTA: the warps' FP32 sums."""
        return 4 * self.warps * self.rows * 8 * self.tiles

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The template's."""
        told = (self.rows, self.tiles, self.depth, self.warps)
        if self.epilogue:
            return *told, self.dtype == "bf16", True
        return *told, *(True,) * (self.dtype == "bf16")


#: tiles, depth, warps: from 4 to 10 KB in flight a warp, from 64 to 150 KB a multiprocessor
_SHAPES = ((1, 8, 4), (1, 8, 8), (1, 16, 4), (2, 8, 4), (2, 8, 8), (4, 4, 8), (5, 4, 12), (7, 2, 12))


def _instances(dtype: str, epilogue: bool = False) -> tuple[StreamInstance, ...]:
    return tuple(StreamInstance("tn", r, *s, dtype, epilogue) for r in (8, 16) for s in _SHAPES)


#: all that are compiled
INSTANCES: tuple[StreamInstance, ...] = _instances("fp16")
#: for BF16
OTHER_INSTANCES: tuple[StreamInstance, ...] = _instances("bf16")
#: those with an epilogue (`epilogue`), compiled when asked for
EPILOGUE_INSTANCES: tuple[StreamInstance, ...] = tuple(
    StreamInstance("tn", rows, 2, 8, 8, dtype, True) for dtype in ("fp16", "bf16") for rows in (8, 16)
)


@dataclass(frozen=True, slots=True, order=True)
class StreamConfig(Configuration):
    """An instance; nothing is chosen at launch but the mode.

    Attributes:
        instance: the compiled kernel.
        mode: how launches follow each other.
    """

    FAMILY: ClassVar[str] = "stream"

    instance: StreamInstance
    mode: Mode = field(default=PLAIN, kw_only=True)

    @property
    def launch_name(self) -> str:
        """``all``: there is one launch."""
        return "all"

    @property
    def cluster(self) -> int:
        """CTAs of a cluster."""
        return 1

    @property
    def ranges(self) -> int:
        """Into how many ranges k is split in all."""
        return self.instance.warps

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of a CTA's tile."""
        return self.instance.rows, 8 * self.instance.tiles

    def why_illegal(self, shape: Shape) -> str | None:
        """Why this configuration cannot run this shape; None when it may."""
        if shape.m > self.instance.rows:
            return f"{shape.m} rows, {self.instance.name} is built for {self.instance.rows}"
        if shape.k % 8 or shape.n % 8:
            return f"{shape}: k and n are no multiples of 8, rows would not be 16-byte aligned"
        if max(shape.n, shape.k) + 64 * LINE * self.instance.warps >= 1 << 31:
            return f"{shape}: extents have 32 bits"
        if self.tiles(shape)[1] > GRID_LIMIT:
            return f"{self.tiles(shape)[1]} tiles, a grid takes {GRID_LIMIT}"
        return None

    def dominated(self, shape: Shape) -> str | None:
        """Why a legal configuration is surely worse than another; None when it may be good."""
        if self.instance.rows == 16 and shape.m <= 8:
            return f"16 rows a CTA for {shape.m}"
        if 8 * self.instance.tiles >= shape.n + 8:
            return f"{8 * self.instance.tiles} columns a CTA for {shape.n}"
        if ceil_div(shape.k, LINE) < self.instance.warps:
            return f"{self.instance.warps} warps for {ceil_div(shape.k, LINE)} lines of k"
        return None

    def _launch(self, shape: Shape) -> Launch:
        scalars = {
            "m": shape.m,
            "n": shape.n,
            "k": shape.k,
            "lda": shape.k,
            "ldb": shape.k,
            "ldc": shape.n,
        }
        grid = (1, self.tiles(shape)[1], 1)
        return Launch(grid, self.threads, self.shared_bytes, (1, 1, 1), scalars)

    def estimate_us(self, shape: Shape) -> float:
        """Microseconds, roughly: round trips of what is in flight, or the memory."""
        instance = self.instance
        by_registers = 65536 // (self.threads * instance.registers)
        resident = max(1, min(cost.residents(self.threads, self.shared_bytes), by_registers))
        ctas = self.tiles(shape)[1]
        waves = ceil_div(ctas, resident * MULTIPROCESSORS)
        steps = ceil_div(ceil_div(shape.k, LINE), instance.warps) * 2
        round_trips = waves * cost.ROUND_TRIP * (1 + steps / instance.depth)
        busy = min(ctas, resident * MULTIPROCESSORS) * self.threads / 32 / MULTIPROCESSORS
        flight = busy * instance.depth * instance.tiles * 512  # bytes a multiprocessor
        memory = cost.memory_cycles(shape, min(_MEMORY, flight / cost.ROUND_TRIP / 2))
        sums = waves * (cost.CTA_SUM + 20 * instance.warps)
        return cost.microseconds(cost.START + max(round_trips, memory) + sums)


#: bytes a cycle and multiprocessor from memory
_MEMORY = 16


def configurations(instances: tuple[StreamInstance, ...] = INSTANCES) -> Iterator[StreamConfig]:
    """Every configuration, in a fixed order, legal or not."""
    for instance in instances:
        yield StreamConfig(instance)

"""The stream kernel (`kernels/sm90_gemm_stream.cuh`): up to 8 rows of A; as fast as memory delivers B."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from ..problem.launch import MULTIPROCESSORS, SHARED_LIMIT, ceil_div
from ..problem.shape import Shape
from . import cost
from .base import Configuration, Mode
from .source import EPILOGUE_PARAMETERS, KernelInstance, Parameters, all_of

#: rows of B a CTA, rows of A at most
ROWS, COLUMNS = 16, 8
#: elements of B from which the kernel is chosen off the tables: smaller ones may be in the L2, and win less
LEAST_ELEMENTS = 1 << 24
#: the same where B may be read before the launch ahead has ended, and a norm or a residual's sum is saved
LEAST_CONSTANT = 1 << 21


@dataclass(frozen=True, slots=True, order=True)
class StreamInstance(KernelInstance):
    """One compiled kernel: the template's parameters.

    Attributes:
        warps: of a CTA.
        stages: of a warp's ring.
        k_chunk: k elements of a stage, a multiple of 64.
        dtype: ``fp16`` or ``bf16``.
        epilogue: more than the product (`epilogue`), of one matrix.
        norm: A is RMS-normalised first; with an epilogue.
    """

    HEADER: ClassVar[str] = "sm90_gemm_stream.cuh"
    TEMPLATE: ClassVar[str] = "Stream"
    layout: ClassVar[str] = "tn"

    warps: int
    stages: int
    k_chunk: int
    dtype: str = "fp16"
    epilogue: bool = False
    norm: bool = False

    @property
    def name(self) -> str:
        """For example ``st_tn_w4s2k256``."""
        return (
            f"st_{self._kind}_w{self.warps}s{self.stages}k{self.k_chunk}"
            + "e" * self.epilogue
            + "n" * self.norm
        )

    @property
    def threads(self) -> int:
        """Threads a CTA."""
        return 32 * self.warps

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory a CTA: each stage's rows and its barrier, sums, squares and factors."""
        rings = self.warps * self.stages * ((ROWS + COLUMNS) * (2 * self.k_chunk + 64) + 8)
        sums = 4 * self.warps * COLUMNS * (ROWS + 1)
        return rings + sums + 4 * (self.warps + 1) * COLUMNS * self.norm

    @property
    def parameters(self) -> Parameters:
        """Names and types of the kernel's parameters."""
        own = (*all_of(f"*{self.dtype}", "a", "b", "c"), *all_of("i32", *_EXTENTS, "early"))
        norm = ("norm", f"*{self.dtype}"), ("eps", "f32")
        return (*own, *norm * self.norm, *EPILOGUE_PARAMETERS * self.epilogue)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The template's."""
        more = (True,) * (self.epilogue + self.norm)
        return self.warps, self.stages, self.k_chunk, self.dtype == "bf16", *more


@dataclass(frozen=True, slots=True, order=True)
class StreamConfig(Configuration):
    """An instance; the grid follows from n."""

    FAMILY: ClassVar[str] = "stream"
    LAUNCH: ClassVar[dict[str, str]] = {"cluster": "c"}
    ANY_LINES: ClassVar[str] = "c"

    instance: StreamInstance

    @property
    def cluster(self) -> int:
        """CTAs do not work together."""
        return 1

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of C a CTA."""
        return COLUMNS, ROWS

    def why_illegal(self, shape: Shape) -> str | None:
        """Why this configuration cannot run this shape; None when it may."""
        if shape.m > (most := COLUMNS - self.instance.norm):
            return f"{shape.m} rows of A, {most} are possible"
        if shape.k % 8:
            return f"k {shape.k} is not a multiple of 8: rows would not be 16-byte aligned"
        if max(shape.n, shape.k) > 1 << 30:  # a warp counts a grid's rows beyond n, and a chunk beyond k
            return f"{shape}: extents beyond 2^30, places have 32 bits"
        if self.shared_bytes > SHARED_LIMIT:
            return f"{self.shared_bytes} bytes of shared memory, {SHARED_LIMIT} are there"
        return None

    def dominated(self, shape: Shape) -> str | None:
        """Why a legal configuration is surely worse than another; None when it may be good."""
        if shape.k < self.instance.warps * self.instance.k_chunk:
            return f"{self.instance.warps} warps for {ceil_div(shape.k, self.instance.k_chunk)} chunks of k"
        return None

    def _scalars(self, shape: Shape) -> dict[str, int]:
        return {**self._extents(shape), "early": 0, "eps": 0}

    def _grid(self, shape: Shape) -> tuple[int, int, int]:
        # where several fit on a multiprocessor a tile each: the next launch's CTAs start as they end
        alone, tiles = cost.residents(self.threads, self.shared_bytes) == 1, ceil_div(shape.n, ROWS)
        return min(MULTIPROCESSORS, tiles) if alone else tiles, 1, 1

    def estimate_us(self, shape: Shape) -> float:
        """Microseconds, roughly: memory, and what the rounds of CTAs add to it."""
        instance, ctas = self.instance, ceil_div(shape.n, ROWS)
        rounds = ctas / (MULTIPROCESSORS * cost.residents(self.threads, self.shared_bytes))
        if rounds > _MANY:  # a CTA that starts waits for its rings
            waits = _RING * instance.stages * rounds
        else:
            waits = _ROUND * (math.ceil(rounds) - 1) + _WARP * instance.warps
            waits += _SMALL * (1 - self.shared_bytes / SHARED_LIMIT)
        return cost.microseconds(cost.START) + shape.nbytes / _BYTES + waits


_EXTENTS = ("m", "n", "k", "lda", "ldb", "ldc")
#: bytes a microsecond; rounds of CTAs from which the last one does not show; microseconds: of a round, for
#: each stage of a ring; of a further round of few; of a warp at the end; of little in flight
_BYTES, _MANY, _RING, _ROUND, _WARP, _SMALL = 4.35e6, 3, 0.35, 1.3, 0.1, 1.2
#: warps, stages, k of a stage: what wins for some layer of a model
_RINGS = ((4, 2, 256), (8, 1, 256), (4, 2, 128), (8, 2, 128))
INSTANCES: tuple[StreamInstance, ...] = tuple(StreamInstance(*ring) for ring in _RINGS)
OTHER_INSTANCES: tuple[StreamInstance, ...] = tuple(StreamInstance(*ring, dtype="bf16") for ring in _RINGS)
#: of a multiprocessor's whole memory: for GPUs whose memory is faster than an H100's
_WIDE = (8, 2, 256)
#: those with an epilogue (`epilogue`): what wins for some layer that has one
EPILOGUE_INSTANCES: tuple[StreamInstance, ...] = tuple(
    StreamInstance(*ring, dtype=dtype, epilogue=True, norm=norm)
    for norm in (False, True)
    for dtype in ("fp16", "bf16")
    for ring in (*_RINGS[:3], _WIDE)
)


def wide_us(shape: Shape) -> float:
    """Microseconds of the ring of a whole multiprocessor, one launch behind the other, weights from memory.

    Fitted as `split_k_early.cost_us`, to be compared with it: within 4 % (RMS).
    """
    rounds = ceil_div(ceil_div(shape.n, ROWS), MULTIPROCESSORS)
    chunk = _WIDE[0] * _WIDE[2]
    read = 2e-6 * ROWS * ceil_div(shape.k, chunk) * chunk
    return 1.26 + 2e-6 * shape.n * shape.k / 6.31 + rounds * (read / 0.11 + 12.6e-6 * shape.m * shape.k)


def best(shape: Shape, least: int = LEAST_ELEMENTS, wide: bool = False) -> list[StreamConfig]:
    """Those that can run a shape that is bound by B, by their estimates; none for a B of fewer elements.

    They overlap the launch before: a chain of layers is ours, one behind the other. `wide`: the ring of a
    whole multiprocessor alone, where its warps have equal parts of k (elsewhere, in Qwen2.5-7B, split-K tiles
    take 0.97 of its time on an H200); it is there with an epilogue.
    """
    if shape.n * shape.k < least:
        return []
    if wide:
        ring = StreamConfig(StreamInstance(*_WIDE), mode=Mode(pdl=True))
        even = shape.k % (ring.instance.warps * ring.instance.k_chunk) == 0
        return [ring] if even and ring.why_illegal(shape) is None else []
    every = [StreamConfig(instance, mode=Mode(pdl=True)) for instance in INSTANCES]
    able = [c for c in every if not (c.why_illegal(shape) or c.dominated(shape))]
    return sorted(able, key=lambda config: config.estimate_us(shape))

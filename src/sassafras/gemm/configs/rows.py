"""What stands between a model's products, row by row (`kernels/sm90_rows.cuh`): norms, silu(gate) * up.

They are launched with programmatic stream serialization and let the launch behind them start at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ..problem.launch import GRID_LIMIT, Launch, ceil_div
from .source import KernelInstance, Parameters, all_of

#: of kernels that work row by row: the number that problems have for it
RMS_NORM, GATED, LAYER_NORM = 4, 8, 128


@dataclass(frozen=True, slots=True, order=True)
class RmsNormInstance(KernelInstance):
    """One compiled kernel: C = A * norm / sqrt(mean of a line's squares + eps), one CTA a line.

    Attributes:
        dtype: ``fp16`` or ``bf16``.
        threads: of a CTA.
        vectors: of eight elements, of a thread.
    """

    HEADER: ClassVar[str] = "sm90_rows.cuh"
    TEMPLATE: ClassVar[str] = "RmsNorm"
    #: a multiprocessor's memory is divided as for products, so that CTAs of the next one fit beside it
    all_shared: ClassVar[bool] = True

    dtype: str = "fp16"
    threads: int = 512
    vectors: int = 1

    @property
    def name(self) -> str:
        """For example ``rms_bf16_t512v1``."""
        return f"rms{self._kind}_t{self.threads}v{self.vectors}"

    @property
    def parameters(self) -> Parameters:
        """Names and types of the kernel's parameters."""
        return (*all_of(f"*{self.dtype}", "a", "norm", "c"), *all_of("i32", *_LINE, "early"), ("eps", "f32"))

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The template's."""
        return self.threads, self.vectors, self.dtype == "bf16"

    @property
    def shared_bytes(self) -> int:
        """A sum of each warp."""
        return self.threads // 8

    @property
    def most(self) -> int:
        """Elements of a line."""
        return 8 * self.threads * self.vectors

    def launch(self, m: int, k: int, lda: int, early: bool = False) -> Launch:
        """How to launch it for m lines of k elements, `lda` from one to the next; C has no gaps.

        Args:
            early: norm was written before the launch ahead of this one began.
        """
        scalars = {"k": k, "lda": lda, "ldc": k, "early": int(early)}
        return Launch((m, 1, 1), self.threads, self.shared_bytes, (1, 1, 1), scalars, overlap=True)

    def why_illegal(self, m: int, k: int, lda: int) -> str | None:
        """Why it cannot run this; None when it can."""
        if k > self.most:
            return f"{k} elements a line, {self.most} are possible"
        return _why_illegal(m, k, lda)


@dataclass(frozen=True, slots=True, order=True)
class LayerNormInstance(RmsNormInstance):
    """The same for C = (A - mean of a line) * norm / sqrt(variance of it + eps) + bias, or without bias."""

    TEMPLATE: ClassVar[str] = "LayerNorm"

    @property
    def name(self) -> str:
        """For example ``layernorm_bf16_t512v1``."""
        return f"layernorm{self._kind}_t{self.threads}v{self.vectors}"

    @property
    def parameters(self) -> Parameters:
        """Names and types of the kernel's parameters."""
        pointers = all_of(f"*{self.dtype}", "a", "norm", "bias", "c")
        return (*pointers, *all_of("i32", *_LINE, "early"), ("eps", "f32"))

    @property
    def shared_bytes(self) -> int:
        """Two sums of each warp."""
        return self.threads // 4


@dataclass(frozen=True, slots=True, order=True)
class GatedInstance(KernelInstance):
    """One compiled kernel: C = silu(A) * B.

    Attributes:
        dtype: ``fp16`` or ``bf16``.
        threads: of a CTA.
    """

    HEADER: ClassVar[str] = "sm90_rows.cuh"
    TEMPLATE: ClassVar[str] = "Gated"
    all_shared: ClassVar[bool] = True

    dtype: str = "fp16"
    threads: int = 256

    @property
    def name(self) -> str:
        """For example ``gated_t256``."""
        return f"gated{self._kind}_t{self.threads}"

    @property
    def parameters(self) -> Parameters:
        """Names and types of the kernel's parameters."""
        return (*all_of(f"*{self.dtype}", "a", "b", "c"), *all_of("i32", "n", "lda", "ldb", "ldc"))

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The template's."""
        return self.threads, self.dtype == "bf16"

    def launch(self, m: int, n: int, ld: int) -> Launch:
        """How to launch it for m lines of n elements, `ld` from one to the next of A and B; C has no gaps."""
        scalars = {"n": n, "lda": ld, "ldb": ld, "ldc": n}
        grid = (ceil_div(n, 8 * self.threads), m, 1)
        return Launch(grid, self.threads, 0, (1, 1, 1), scalars, overlap=True)

    def why_illegal(self, m: int, n: int, ld: int) -> str | None:
        """Why it cannot run this; None when it can."""
        if n + 8 * self.threads > 1 << 31:
            return f"{n} columns: the last CTA's have 32 bits"
        return _why_illegal(m, n, ld)


_LINE = ("k", "lda", "ldc")
#: few vectors leave registers to the product whose CTAs are on the multiprocessors as well
RMS_NORMS: tuple[RmsNormInstance, ...] = tuple(
    RmsNormInstance(dtype, vectors=vectors) for vectors in (1, 4) for dtype in ("fp16", "bf16")
)
LAYER_NORMS = tuple(LayerNormInstance(i.dtype, i.threads, i.vectors) for i in RMS_NORMS)
PAIRS: tuple[GatedInstance, ...] = tuple(map(GatedInstance, ("fp16", "bf16")))
INSTANCES: tuple[RmsNormInstance | GatedInstance, ...] = (*RMS_NORMS, *PAIRS, *LAYER_NORMS)
_OF_KIND: dict[int, tuple[RmsNormInstance | GatedInstance, ...]] = {
    RMS_NORM: RMS_NORMS,
    GATED: PAIRS,
    LAYER_NORM: LAYER_NORMS,
}


def chosen(kind: int, dtype: str, m: int, columns: int, ld: int, constant: bool) -> tuple[Any, Launch] | None:
    """The kernel for m lines of C and its launch; None where none can run it.

    Args:
        kind: `RMS_NORM`, `GATED` or `LAYER_NORM`.
        ld: elements from line to line of the operands.
        constant: the norm's weight was written before the launch ahead of this one began.
    """
    place = m, columns, ld
    for instance in _OF_KIND[kind]:
        if instance.dtype == dtype and instance.why_illegal(*place) is None:
            early = () if isinstance(instance, GatedInstance) else (constant,)
            return instance, instance.launch(*place, *early)
    return None


def _why_illegal(m: int, columns: int, ld: int) -> str | None:
    if columns % 8 or ld % 8:
        return f"lines of {columns} elements, {ld} from one to the next: no multiples of 8"
    if m > GRID_LIMIT:
        return f"{m} lines, a grid takes {GRID_LIMIT}"
    return f"{ld} elements from line to line: 32 bits" if ld >= 1 << 31 else None

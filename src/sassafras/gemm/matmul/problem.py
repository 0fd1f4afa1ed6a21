"""From tensors to a problem: shape, layout, leading dimensions. The twin of `problem.hpp`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

#: names of the bits in `Problem.transposed`, as cuBLAS would say it: B first, then A
LAYOUTS = ("nn", "tn", "nt", "tt")
DTYPES = ("fp16", "bf16")


class Problem(NamedTuple):
    """C (m x n) = A (m x k) * B (k x n) with everything that decides which kernel may run.

    Attributes:
        device: CUDA ordinal (-1: host memory, in tests).
        dtype: 0 FP16, 1 BF16 (`DTYPES`).
        m, n, k: extents.
        transposed: bit 0: B is stored n x k; bit 1: A is stored k x m (`LAYOUTS`).
        lda, ldb, ldc: elements from line to line; the line's length where there is one line only.
        aligned: 1 when all addresses are multiples of 16 bytes.
        exchanged: 1 when C is column-major: this is C^T = B^T A^T, A and B have changed places.
    """

    device: int
    dtype: int
    m: int
    n: int
    k: int
    transposed: int
    lda: int
    ldb: int
    ldc: int
    aligned: int
    exchanged: int

    @property
    def layout(self) -> str:
        """``nn``, ``tn``, ``nt`` or ``tt``: B's letter first."""
        return LAYOUTS[self.transposed]

    @property
    def natural(self) -> bool:
        """No gaps between lines."""
        lda = self.m if self.transposed & 2 else self.k
        ldb = self.k if self.transposed & 1 else self.n
        return (self.lda, self.ldb, self.ldc) == (lda, ldb, self.n)


def lies(rows: int, columns: int, s0: int, s1: int) -> tuple[bool, int] | None:
    """(transposed, leading dimension) of a matrix; None when neither rows nor columns are contiguous.

    Strides are in elements. The stride of an extent of one says nothing and is ignored. Where both readings
    hold, the one with a leading dimension that is a multiple of 8 wins, then the row-major one.
    """
    by_rows = _leading(rows, columns, s0, s1)
    by_columns = _leading(columns, rows, s1, s0)
    if by_rows is None and by_columns is None:
        return None
    if by_rows is None or (by_columns is not None and by_rows % 8 and by_columns % 8 == 0):
        assert by_columns is not None
        return True, by_columns
    return False, by_rows


def _leading(rows: int, columns: int, s0: int, s1: int) -> int | None:
    if columns > 1 and s1 != 1:
        return None
    if rows <= 1:
        return columns
    return s0 if s0 >= columns else None


def folded(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, int] | None:
    """(rows, stride) of all extents but the last, where they lie one after the other; else None."""
    rows, stride = shape[-2], strides[-2]
    for extent, step in zip(shape[-3::-1], strides[-3::-1], strict=True):
        if extent == 1:
            continue
        if rows == 1:
            stride = step
        elif step != stride * rows:
            return None
        rows *= extent
    return rows, stride


def _span(rows: int, columns: int, transposed: bool, leading: int) -> int:
    lines, width = (columns, rows) if transposed else (rows, columns)
    return (lines - 1) * leading + width


def read(a: Any, b: Any, out: Any = None, *, device_type: str = "cuda") -> tuple[Problem, int, int] | None:
    """(problem, address of its A, address of its B), or None for what no plan can serve.

    None: another device or type, b not a matrix, extents that do not fit or are zero, strides that neither
    rows nor columns explain, an `out` of another shape or overlapping an input.
    """
    import torch

    if a.device.type != device_type or b.device != a.device or a.dtype != b.dtype:
        return None
    if a.dtype not in (torch.float16, torch.bfloat16) or not 2 <= a.dim() <= 8 or b.dim() != 2:
        return None
    shape, (k, n) = tuple(a.shape), tuple(b.shape)
    rows = folded(shape, a.stride())
    if rows is None or shape[-1] != k or min(rows[0], n, k) < 1:
        return None
    m = rows[0]
    left, right = lies(m, k, rows[1], a.stride(-1)), lies(k, n, *b.stride())
    if left is None or right is None:
        return None
    at_a, at_b, at_c = a.data_ptr(), b.data_ptr(), 0
    ldc, exchanged = n, 0
    if out is not None:
        if out.device != a.device or out.dtype != a.dtype or tuple(out.shape) != (*shape[:-1], n):
            return None
        lines = folded(out.shape, out.stride())
        result = lies(m, n, lines[1], out.stride(-1)) if lines else None
        if result is None:
            return None
        at_c, ldc = out.data_ptr(), result[1]
        end = at_c + 2 * _span(m, n, *result)
        for start, lines_of, columns, lie in ((at_a, m, k, left), (at_b, k, n, right)):
            if at_c < start + 2 * _span(lines_of, columns, *lie) and start < end:
                return None
        if result[0]:
            exchanged, m, n = 1, n, m
            at_a, at_b = at_b, at_a
            left, right = (not right[0], right[1]), (not left[0], left[1])
    problem = Problem(
        a.device.index if a.device.index is not None else -1 if device_type == "cpu" else 0,
        int(a.dtype == torch.bfloat16),
        m,
        n,
        k,
        int(right[0]) | int(left[0]) << 1,
        left[1],
        right[1],
        ldc,
        int((at_a | at_b | at_c) % 16 == 0),
        exchanged,
    )
    return problem, at_a, at_b

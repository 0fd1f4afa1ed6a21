"""From the arguments of a call to its problem: the key of every plan. The twin of `launcher/problem.hpp`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple
from typing import Any, NamedTuple

from ..configs.epilogue import NUMBERS, SWIGLU, Batch, Lines, bits
from ..configs.rows import GATED, LAYER_NORM
from ..problem.shape import Product, Shape

#: names of the bits in `Problem.transposed`, as cuBLAS would say it: B first, then A
LAYOUTS = ("nn", "tn", "nt", "tt")
DTYPES = ("fp16", "bf16")
#: bits of `Problem.extra`; the activation's number is between ALPHA and NORM
BIAS, BETA, ALPHA, NORM, CONSTANT = 1, 2, 4, 64, 128
_ACTIVATION, _ACTIVATIONS = 3, 7


class MatmulCall(NamedTuple):
    """activation(alpha * a @ b + beta * addend + bias), with the activation's number in `NUMBERS`.

    Attributes:
        addend: None: `out`. Of `SWIGLU`: up's matrix, lying as `b`, which is the gate's alone.
        norm, eps: a is RMS-normalised first: times norm's k values, over root (mean square + eps).
        constant: b, `SWIGLU`'s addend and norm were written before the launch ahead of this one began.
        weight: what `b` is the transpose of, where torch.nn.functional.linear would serve the call.
    """

    a: Any
    b: Any
    out: Any = None
    bias: Any = None
    activation: int = 0
    alpha: float = 1.0
    beta: float = 0.0
    addend: Any = None
    norm: Any = None
    eps: float = 0.0
    constant: bool = False
    weight: Any = None

    @property
    def tensors(self) -> tuple[Any, ...]:
        """Those that were given."""
        more = self.out, self.bias, self.addend, self.norm
        return (self.a, self.b, *(t for t in more if t is not None))

    @property
    def extra(self) -> int:
        """`Problem.extra` of such a call."""
        flags = BIAS * (self.bias is not None) | BETA * (self.beta != 0) | ALPHA * (self.alpha != 1)
        flags |= NORM * (self.norm is not None) | CONSTANT * self.constant
        return flags | self.activation << _ACTIVATION

    @property
    def torch_alone(self) -> bool:
        """Whether one function of torch does all that is asked for."""
        return self.extra == 0 or (self.weight is not None and self.extra == BIAS)


class Problem(NamedTuple):
    """C (m x n) = A (m x k) * B (k x n), or a batch of it, with everything that decides which kernel may run.

    Attributes:
        device: CUDA ordinal (0 for host memory, in tests).
        dtype: 0 FP16, 1 BF16 (`DTYPES`).
        m, n, k: extents of each product; of `SWIGLU`, n counts the columns of both.
        transposed: bit 0: B is stored n x k; bit 1: A is stored k x m (`LAYOUTS`).
        lda, ldb, ldc: elements from line to line; the line's length where there is one line only.
        aligned: 1 when all addresses are multiples of 16 bytes.
        matrices: products in the batch.
        step_a, step_b, step_c: elements from one product's matrix to the next's; 0: all share it.
        extra: what is asked for beyond the product: `BIAS`, `BETA`, `ALPHA` and the activation's number.
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
    matrices: int = 1
    step_a: int = 0
    step_b: int = 0
    step_c: int = 0
    extra: int = 0

    @property
    def plain(self) -> bool:
        """One product and nothing else, which kernels without an epilogue can run."""
        return self.matrices == 1 and self.extra == 0

    @property
    def shape(self) -> Shape:
        """Of each product."""
        return Shape(self.m, self.n, self.k)

    @property
    def product(self) -> Product | None:
        """What a program asks for, wherever operands lie; None for what is not tuned: a batch, a pair, and a
        layer of a compiled model that takes in what surrounds it."""
        if self.matrices > 1 or self.pair or self.extra & (NORM | CONSTANT):
            return None
        extra = self.extra
        kinds = self.layout, DTYPES[self.dtype], bool(extra & BIAS), self.activation
        return Product(self.shape, *kinds, bool(extra & BETA), bool(extra & ALPHA))

    @classmethod
    def of(cls, product: Product) -> Problem:
        """The problem of a product whose operands are aligned and without gaps, on the first device."""
        (m, n, k), lines = astuple(product.shape), Lines.tight(product.shape, product.layout)
        extra = BIAS * product.bias | BETA * product.addend | ALPHA * product.scaled
        extra |= NUMBERS[product.activation] << _ACTIVATION
        kinds = DTYPES.index(product.dtype), LAYOUTS.index(product.layout)
        return cls(0, kinds[0], m, n, k, kinds[1], lines.a, lines.b, lines.c, 1, extra=extra)

    @property
    def layout(self) -> str:
        """``nn``, ``tn``, ``nt`` or ``tt``: B's letter first."""
        return LAYOUTS[self.transposed]

    @property
    def batch(self) -> Batch:
        """Where the products' matrices lie."""
        return Batch(self.matrices, self.step_a, self.step_b, self.step_c)

    @property
    def lines(self) -> Lines:
        """Leading dimensions."""
        return Lines(self.lda, self.ldb, self.ldc)

    @property
    def tight(self) -> Lines:
        """What they would be without gaps between lines."""
        return Lines.tight(self.shape, self.layout)

    @property
    def activation(self) -> str | None:
        """Its name."""
        return tuple(NUMBERS)[self.extra >> _ACTIVATION & _ACTIVATIONS]

    @property
    def pair(self) -> bool:
        """Whether halves of the product are multiplied with each other."""
        return self.activation == SWIGLU


class ReadCall(NamedTuple):
    """A call whose tensors were read: problem, addresses (of C: 0 without `out`), extents of the batch."""

    problem: Problem
    a: int
    b: int
    c: int
    bias: int
    addend: int
    norm: int
    leading: tuple[int, ...]

    def values(self, asked: MatmulCall, c: int) -> dict[str, int]:
        """What a launch gives its kernels, by parameter."""
        operands = {"a": self.a, "b": self.b, "c": c}
        if asked.extra == 0:
            return operands | _PRODUCT
        return operands | {
            "bias": self.bias,
            "addend": (self.addend or c) if asked.beta else 0,
            "alpha": bits(asked.alpha) & 0xFFFFFFFF,
            "beta": bits(asked.beta) & 0xFFFFFFFF,
            "activation": asked.activation,
            "norm": self.norm,
            "eps": bits(asked.eps) & 0xFFFFFFFF,
        }


#: the epilogue of a product
_PRODUCT = {"bias": 0, "addend": 0, "alpha": bits(1.0), "beta": 0, "activation": 0, "norm": 0, "eps": 0}


def lies(rows: int, columns: int, s0: int, s1: int) -> tuple[bool, int] | None:
    """(transposed, leading dimension) of a matrix; None when neither rows nor columns are contiguous.

    Strides are in elements. The stride of an extent of one says nothing and is ignored. Where both readings
    hold, the one with a leading dimension that is a multiple of 8 wins, then the row-major one.
    """
    by_rows = _leading(rows, columns, s0, s1)
    by_columns = _leading(columns, rows, s1, s0)
    if by_columns is not None and (by_rows is None or (by_rows % 8 and by_columns % 8 == 0)):
        return True, by_columns
    return None if by_rows is None else (False, by_rows)


def _leading(rows: int, columns: int, s0: int, s1: int) -> int | None:
    if columns > 1 and s1 != 1:
        return None
    if rows <= 1:
        return columns
    return s0 if s0 >= columns else None


def broadcast(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...] | None:
    """Leading extents of a product of batches, None where they do not fit."""
    rank = max(len(a), len(b))
    pairs = list(zip((1,) * (rank - len(a)) + tuple(a), (1,) * (rank - len(b)) + tuple(b), strict=True))
    if any(x != y and 1 not in (x, y) for x, y in pairs):
        return None
    return tuple(y if x == 1 else x for x, y in pairs)


def stride_of(leading: Sequence[int], strides: Sequence[int], wanted: tuple[int, ...]) -> int | None:
    """The one stride of a tensor's leading extents along a batch of `wanted`; 0: it has one matrix for all.

    None where no single stride does it.
    """
    if leading.count(1) == len(leading):
        return 0
    if (*[1] * (len(wanted) - len(leading)), *leading) != wanted:
        return None  # some extents are shared and others are not
    count, step = 1, 0
    for extent, stride in zip(reversed(leading), reversed(strides), strict=True):
        if extent == 1:
            continue
        if count == 1:
            step = stride
        elif stride != step * count:
            return None
        count *= extent
    return step


def read(asked: MatmulCall, device_type: str = "cuda") -> ReadCall | None:
    """What a call of plain tensors is; None for what no plan can serve.

    None: another device or type, extents that do not fit or are zero, strides that neither rows nor columns
    (with an epilogue or in batches: rows alone) at equal distances explain, an `out` of another shape or
    overlapping an input, an addend that does not lie as a fresh C; with `SWIGLU` more than `MatmulCall` says.
    """
    import torch

    a, b, out, bias, addend, norm = tensors = (*asked[:4], asked.addend, asked.norm)
    device, dtype = a.device, a.dtype
    if a.dim() < 2 or b.dim() < 2:
        return None
    if device.type != device_type or dtype not in (torch.float16, torch.bfloat16):
        return None
    if any(t is not None and (t.device, t.dtype) != (device, dtype) for t in tensors):
        return None
    (*lead_a, m, k), (*lead_b, inner, n) = a.shape, b.shape
    pair, width = asked.activation == NUMBERS[SWIGLU], n  # columns of C
    if pair:
        n = n if addend is None else 2 * n
        width = n // 2
        if n % 2 or lead_b or (addend is not None and bias is not None):
            return None
        if addend is not None and (addend.shape != b.shape or addend.stride() != b.stride()):
            return None
    leading = broadcast(lead_a, lead_b) if lead_b else tuple(lead_a)
    if inner != k or leading is None or len(leading) > 6:
        return None
    count = math.prod(leading)
    if not m * n * k * count:
        return None
    for vector, length in ((bias, n), (norm, k)):
        if vector is not None and (vector.shape != (length,) or (length > 1 and vector.stride(0) != 1)):
            return None
    if out is not None and out.shape != (*leading, m, width):
        return None
    residual = None if pair else addend  # which lies as a fresh C, and so does `out` then
    if residual is not None and not (residual.shape == (*leading, m, n) and residual.is_contiguous()):
        return None
    if residual is not None and out is not None and not out.is_contiguous():
        return None
    (*far_a, line_a, column_a), (*far_b, line_b, column_b) = a.stride(), b.stride()
    *far_c, line_c, column_c = (width, 1) if out is None else out.stride()
    step_a = step_b = step_c = 0
    if count > 1:
        found_a, found_b = stride_of(lead_a, far_a, leading), stride_of(lead_b, far_b, leading)
        found_c = m * width if out is None else stride_of(leading, far_c, leading)
        if found_a is None or found_b is None or not found_c:  # 0: an expanded out
            return None
        step_a, step_b, step_c = found_a, found_b, found_c
        if step_a and step_b == 0 and (m == 1 or (step_a, step_c) == (m * line_a, m * line_c)):
            line_a, line_c = (step_a, step_c) if m == 1 else (line_a, line_c)
            m, count, step_a, step_c = m * count, 1, 0, 0  # one product of more rows
    left, right = lies(m, k, line_a, column_a), lies(k, n, line_b, column_b)
    result = (False, width) if out is None else lies(m, width, line_c, column_c)
    if left is None or right is None or result is None:
        return None
    extra = asked.extra
    if (count > 1 or extra) and (left[0] or result[0]):
        return None
    at = at_a, at_b, at_c, at_bias, at_addend, at_norm = [0 if t is None else t.data_ptr() for t in tensors]
    if out is not None:
        more, one = count - 1, _span(m, width, *result)
        taken = [
            (at_a, more * step_a + _span(m, k, *left)),
            (at_b, more * step_b + _span(k, b.shape[-1], *right)),
            (at_bias, n if bias is not None else 0),
            (at_norm, k if norm is not None else 0),
            (at_addend, 0 if addend is None else _span(k, width, *right) if pair else addend.numel()),
        ]
        end = at_c + 2 * (more * step_c + one)
        if any(at < end and at_c < at + 2 * elements for at, elements in taken) or (more and step_c < one):
            return None
    if result[0]:  # C^T (n x m) = B^T (n x k) A^T (k x m)
        m, n, at_a, at_b = n, m, at_b, at_a
        left, right = (not right[0], right[1]), (not left[0], left[1])
    kinds = device.index or 0, int(dtype == torch.bfloat16)
    lies_as, aligned = int(right[0]) | int(left[0]) << 1, int(not any(address % 16 for address in at))
    where = lies_as, left[1], right[1], result[1], aligned
    problem = Problem(*kinds, m, n, k, *where, count, step_a, step_b, step_c, extra)
    return ReadCall(problem, at_a, at_b, at_c, at_bias, at_addend, at_norm, leading)


def read_rows(
    kind: int, a: Any, other: Any, bias: Any, out: Any, constant: bool = False, device_type: str = "cuda"
) -> tuple[Problem, dict[str, int]] | None:
    """What a call of plain tensors (of stand-ins without memory, `out` None) asks of kernels that work row by
    row (`configs.rows`): problem, and addresses by parameter; None for what none of them reads.

    The problem's m, n and k are C's lines and columns, and elements from line to line of `a`; `transposed` is
    the kind.

    Args:
        kind: `rows.GATED`: out = silu(a) * other, where a's lines hold both halves if there is no `other`;
            otherwise `out` is `a`, normalised, times `other`, of a `rows.LAYER_NORM` plus `bias`, if any.
        constant: `other` and `bias` were written before the launch ahead of this one began.
    """
    import torch

    tensors, gated = [t for t in (a, other, bias, out) if t is not None], kind == GATED
    if a.device.type != device_type or a.dtype not in (torch.float16, torch.bfloat16) or a.dim() < 1:
        return None
    if any((t.dtype, t.device) != (a.dtype, a.device) or not t.is_contiguous() for t in tensors):
        return None
    line = a.shape[-1]
    columns = line // 2 if gated and other is None else line
    if not a.numel() or (columns != line and line % 2):
        return None
    if other is not None and other.shape != (a.shape if gated else (line,)):
        return None
    if bias is not None and (kind != LAYER_NORM or bias.shape != (line,)):
        return None
    lines, at = a.numel() // line, {}
    if out is not None:
        at = {"a": a.data_ptr(), "c": out.data_ptr()}
        at["b"] = at["norm"] = at["a"] + 2 * columns if other is None else other.data_ptr()
        at["bias"] = 0 if bias is None else bias.data_ptr()
        taken = [(at["a"], a.numel()), (at["b"], 0 if other is None else other.numel())]
        taken.append((at["bias"], 0 if bias is None else line))
        end = at["c"] + 2 * out.numel()
        if out.shape != (*a.shape[:-1], columns) or any(address % 16 for address in at.values()):
            return None
        if any(begin < end and at["c"] < begin + 2 * count for begin, count in taken):
            return None
    extra = CONSTANT * constant
    dtype = int(a.dtype == torch.bfloat16)
    problem = Problem(a.device.index or 0, dtype, lines, columns, line, kind, 0, 0, 0, 0, 0, extra=extra)
    return problem, at


def _span(rows: int, columns: int, transposed: bool, leading: int) -> int:
    lines, width = (columns, rows) if transposed else (rows, columns)
    return (lines - 1) * leading + width

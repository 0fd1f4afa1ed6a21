"""Triton kernels that treat every row alike, whatever the number of rows: one order of sums, fixed blocks.

They serve what our CUDA kernels do not: FP32 and other GPUs than Hopper, and rows' log_softmax, mean and RMS
norm. `product` is the persistent kernel that vLLM and batch_invariant_ops describe, in our own words.
"""

# mypy: allow-untyped-defs
from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl

#: columns of a row that are summed at once
_BLOCK = 1024


@dataclass(frozen=True, slots=True)
class Tiling:
    """Of `product`: rows, columns and k of a tile, rows of tiles in a band, warps, stages."""

    rows: int
    columns: int
    k: int
    band: int = 8
    warps: int = 8
    stages: int = 3


#: vLLM's and batch_invariant_ops' for FP16 and BF16 (their ``matmul_persistent``); FP32 in smaller tiles
PUBLISHED = {
    torch.float16: Tiling(128, 256, 64),
    torch.bfloat16: Tiling(128, 128, 64),
    torch.float32: Tiling(64, 64, 32, warps=4),
}


@triton.jit
def product_kernel(
    a_ptr,
    b_ptr,
    c_ptr,
    m,
    n,
    k,
    am,
    ak,
    bk,
    bn,
    cm,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    K: tl.constexpr,
    BAND: tl.constexpr,
    PROGRAMS: tl.constexpr,
):
    across = tl.cdiv(n, COLUMNS)
    down = tl.cdiv(m, ROWS)
    for tile in range(tl.program_id(0), down * across, PROGRAMS):
        first = tile // (BAND * across) * BAND
        high = min(down - first, BAND)
        inside = tile % (BAND * across)
        row = (first + inside % high) * ROWS + tl.arange(0, ROWS)
        column = inside // high * COLUMNS + tl.arange(0, COLUMNS)
        at = tl.arange(0, K)
        # rows and columns outside read the first ones, and are not stored
        a_rows = tl.where(row < m, row, 0).to(tl.int64)
        b_columns = tl.where(column < n, column, 0).to(tl.int64)
        sums = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
        for begin in range(0, k, K):
            here = (begin + at).to(tl.int64)
            left = at < k - begin
            x = tl.load(a_ptr + a_rows[:, None] * am + here[None, :] * ak, mask=left[None, :], other=0.0)
            y = tl.load(b_ptr + here[:, None] * bk + b_columns[None, :] * bn, mask=left[:, None], other=0.0)
            sums = tl.dot(x, y, sums, input_precision="ieee")
        to = c_ptr + row.to(tl.int64)[:, None] * cm + column[None, :]
        tl.store(to, sums.to(c_ptr.dtype.element_ty), mask=(row < m)[:, None] & (column < n)[None, :])


@triton.jit
def log_softmax_kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * columns
    at = tl.arange(0, BLOCK)
    most = tl.full((BLOCK,), float("-inf"), dtype=tl.float32)
    for begin in range(0, columns, BLOCK):
        x = tl.load(x_ptr + row + begin + at, mask=begin + at < columns, other=float("-inf"))
        most = tl.maximum(most, x.to(tl.float32))
    top = tl.max(most, axis=0)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for begin in range(0, columns, BLOCK):
        x = tl.load(x_ptr + row + begin + at, mask=begin + at < columns, other=float("-inf"))
        total += tl.exp(x.to(tl.float32) - top)
    low = tl.log(tl.sum(total, axis=0))
    for begin in range(0, columns, BLOCK):
        inside = begin + at < columns
        x = tl.load(x_ptr + row + begin + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(y_ptr + row + begin + at, (x - top - low).to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def mean_kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for begin in range(0, columns, BLOCK):
        x = tl.load(x_ptr + row * columns + begin + at, mask=begin + at < columns, other=0.0)
        total += x.to(tl.float32)
    tl.store(y_ptr + row, (tl.sum(total, axis=0) / columns).to(y_ptr.dtype.element_ty))


@triton.jit
def rms_norm_kernel(
    x_ptr, weight_ptr, y_ptr, factor_ptr, columns, eps, WEIGHT: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    squares = tl.zeros((BLOCK,), dtype=tl.float32)
    for begin in range(0, columns, BLOCK):
        x = tl.load(x_ptr + row * columns + begin + at, mask=begin + at < columns, other=0.0).to(tl.float32)
        squares += x * x
    factor = tl.rsqrt(tl.sum(squares, axis=0) / columns + eps)
    tl.store(factor_ptr + row, factor)
    for begin in range(0, columns, BLOCK):
        inside = begin + at < columns
        y = tl.load(x_ptr + row * columns + begin + at, mask=inside, other=0.0).to(tl.float32) * factor
        if WEIGHT:
            y *= tl.load(weight_ptr + begin + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(y_ptr + row * columns + begin + at, y.to(y_ptr.dtype.element_ty), mask=inside)


@lru_cache(maxsize=8)
def _multiprocessors(ordinal: int) -> int:
    return int(torch.cuda.get_device_properties(ordinal).multi_processor_count)


def product(a: Any, b: Any, tiling: Tiling | None = None, out: Any = None) -> Any:
    """a (m, k) @ b (k, n), of any strides, summed in FP32, k ascending: (m, n), fresh or `out`, row-major."""
    (m, k), n = a.shape, b.shape[1]
    c, t = a.new_empty((m, n)) if out is None else out, tiling or PUBLISHED[a.dtype]
    tiles = triton.cdiv(m, t.rows) * triton.cdiv(n, t.columns)
    programs = _multiprocessors(a.device.index or 0)
    with torch.cuda.device(a.device):
        product_kernel[(min(programs, tiles),)](
            a,
            b,
            c,
            m,
            n,
            k,
            *a.stride(),
            *b.stride(),
            n,
            ROWS=t.rows,
            COLUMNS=t.columns,
            K=t.k,
            BAND=t.band,
            PROGRAMS=programs,
            num_warps=t.warps,
            num_stages=t.stages,
        )
    return c


def log_softmax(x: Any, dtype: Any) -> Any:
    """Over the last dimension, which is not empty; in FP32 until one rounding to `dtype`."""
    rows = x.contiguous().view(-1, x.shape[-1])
    y = torch.empty_like(rows, dtype=dtype)
    with torch.cuda.device(x.device):
        log_softmax_kernel[(len(rows),)](rows, y, rows.shape[1], BLOCK=_BLOCK)
    return y.view(x.shape)


def mean(x: Any) -> Any:
    """Over the last dimension, which is not empty: (...), summed in FP32."""
    rows = x.contiguous().view(-1, x.shape[-1])
    y = rows.new_empty(len(rows))
    with torch.cuda.device(x.device):
        mean_kernel[(len(rows),)](rows, y, rows.shape[1], BLOCK=_BLOCK)
    return y.view(x.shape[:-1])


def rms_norm(x: Any, weight: Any, eps: float) -> tuple[Any, Any]:
    """(x / root of (mean square + eps) * weight, the factors in FP32) over the last dimension.

    Args:
        weight: as many values as a row has, contiguous; None: ones.
    """
    rows = x.contiguous().view(-1, x.shape[-1])
    y, factors = torch.empty_like(rows), torch.empty(len(rows), dtype=torch.float32, device=x.device)
    with torch.cuda.device(x.device):
        rms_norm_kernel[(len(rows),)](
            rows,
            rows if weight is None else weight.contiguous(),
            y,
            factors,
            rows.shape[1],
            eps,
            WEIGHT=weight is not None,
            BLOCK=_BLOCK,
        )
    return y.view(x.shape), factors.view(*x.shape[:-1], 1)

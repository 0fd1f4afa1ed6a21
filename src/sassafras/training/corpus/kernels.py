"""Small Triton kernels to train on, of families that the suite does not have.

None is of a held-out family (attention, softmax, GEMV, quantisation). They are compiled and modelled, never
run: so they have no reference.
"""

# mypy: allow-untyped-defs
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl

from sassafras.core import Buffer, Case, Workload, WorkloadError
from sassafras.core.workload import Argument
from sassafras.frontend.triton import workload as triton_workload


@triton.jit
def gelu_kernel(y_ptr, x_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n).to(tl.float32)
    inner = 0.7978845608 * x * (1.0 + 0.044715 * x * x)
    y = x * tl.sigmoid(2.0 * inner)
    tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=at < n)


@triton.jit
def chain_kernel(y_ptr, a_ptr, b_ptr, c_ptr, n, scale, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = at < n
    a = tl.load(a_ptr + at, mask=live).to(tl.float32)
    b = tl.load(b_ptr + at, mask=live).to(tl.float32)
    c = tl.load(c_ptr + at, mask=live).to(tl.float32)
    y = tl.maximum(a * scale + b, 0.0) * c + tl.abs(a - b)
    tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=live)


@triton.jit
def dropout_kernel(y_ptr, x_ptr, n, seed, p, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n).to(tl.float32)
    kept = tl.rand(seed, at) > p
    y = tl.where(kept, x / (1.0 - p), 0.0)
    tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=at < n)


@triton.jit
def adam_kernel(w_ptr, m_ptr, v_ptr, g_ptr, n, rate, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = at < n
    g = tl.load(g_ptr + at, mask=live).to(tl.float32)
    m = 0.9 * tl.load(m_ptr + at, mask=live) + 0.1 * g
    v = 0.999 * tl.load(v_ptr + at, mask=live) + 0.001 * g * g
    w = tl.load(w_ptr + at, mask=live).to(tl.float32)
    w -= rate * m / (tl.sqrt(v) + 1e-8)
    tl.store(m_ptr + at, m, mask=live)
    tl.store(v_ptr + at, v, mask=live)
    tl.store(w_ptr + at, w.to(w_ptr.dtype.element_ty), mask=live)


@triton.jit
def moments_kernel(mean_ptr, variance_ptr, x_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row.to(tl.int64) * n_cols + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
    mean = tl.sum(x, axis=0) / n_cols
    tl.store(mean_ptr + row, mean)
    tl.store(variance_ptr + row, tl.sum(x * x, axis=0) / n_cols - mean * mean)


@triton.jit
def column_sum_kernel(y_ptr, x_ptr, n_rows, n_cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    cols = tl.program_id(0) * COLS + tl.arange(0, COLS)
    rows = tl.arange(0, ROWS)
    total = tl.zeros((ROWS, COLS), dtype=tl.float32)
    for first in range(0, n_rows, ROWS):
        live = (rows < n_rows - first)[:, None] & (cols < n_cols)[None, :]
        x = tl.load(x_ptr + (first + rows)[:, None] * n_cols + cols[None, :], mask=live, other=0.0)
        total += x.to(tl.float32)
    tl.store(y_ptr + cols, tl.sum(total, axis=0).to(y_ptr.dtype.element_ty), mask=cols < n_cols)


@triton.jit
def argmax_kernel(index_ptr, best_ptr, x_ptr, n_cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, COLS)
    at = rows[:, None] * n_cols + cols[None, :]
    x = tl.load(x_ptr + at, mask=(cols < n_cols)[None, :], other=-float("inf")).to(tl.float32)
    best, index = tl.max(x, axis=1, return_indices=True)
    tl.store(index_ptr + rows, index)
    tl.store(best_ptr + rows, best)


@triton.jit
def transpose_kernel(y_ptr, x_ptr, n_rows, n_cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.program_id(1) * COLS + tl.arange(0, COLS)
    live = (rows < n_rows)[:, None] & (cols < n_cols)[None, :]
    x = tl.load(x_ptr + rows[:, None] * n_cols + cols[None, :], mask=live)
    tl.store(y_ptr + cols[:, None] * n_rows + rows[None, :], tl.trans(x), mask=tl.trans(live))


@triton.jit
def embedding_kernel(y_ptr, table_ptr, token_ptr, n_cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.program_id(1) * COLS + tl.arange(0, COLS)
    tokens = tl.load(token_ptr + rows).to(tl.int64)
    live = (cols < n_cols)[None, :]
    x = tl.load(table_ptr + tokens[:, None] * n_cols + cols[None, :], mask=live)
    tl.store(y_ptr + rows.to(tl.int64)[:, None] * n_cols + cols[None, :], x, mask=live)


@triton.jit
def cumsum_kernel(y_ptr, x_ptr, n_cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, COLS)
    at = rows[:, None] * n_cols + cols[None, :]
    live = (cols < n_cols)[None, :]
    y = tl.cumsum(tl.load(x_ptr + at, mask=live, other=0.0).to(tl.float32), axis=1)
    tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=live)


@triton.jit
def convolve_kernel(y_ptr, x_ptr, w_ptr, n, TAPS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for tap in tl.static_range(TAPS):
        back = at - tap
        x = tl.load(x_ptr + back, mask=(back >= 0) & (at < n), other=0.0).to(tl.float32)
        total += x * tl.load(w_ptr + tap).to(tl.float32)
    tl.store(y_ptr + at, total.to(y_ptr.dtype.element_ty), mask=at < n)


_N, _ROWS, _COLS = 1 << 20, 4096, 1024


def _flat(kernel: Any, ins: str, outs: str, scalars: Mapping[str, Argument] | None = None) -> Workload:
    """A kernel over one long array; buffers `ins` and `outs` are named without ``_ptr``."""
    args: dict[str, Argument] = {f"{name}_ptr": Buffer("fp16", (_N,), role="inout") for name in outs.split()}
    args |= {f"{name}_ptr": Buffer("fp16", (_N,)) for name in ins.split()}
    args |= {"n": _N, **(scalars or {})}
    constants = {"TAPS": 4} if "TAPS" in kernel.arg_names else {}
    case = Case("flat", (_N // 1024, 1, 1), args, {"BLOCK": 1024, **constants}, {"num_warps": 4})
    return triton_workload(kernel, cases=[case])


def _table(kernel: Any, buffers: Mapping[str, Buffer], constants: Mapping[str, int], **rest: int) -> Workload:
    """A kernel over rows and columns."""
    trips = rest.pop("trips", None)
    args: dict[str, Argument] = {f"{name}_ptr": buffer for name, buffer in buffers.items()}
    sizes = {"n_rows": _ROWS, "n_cols": _COLS}
    args |= {name: size for name, size in sizes.items() if name in kernel.arg_names}
    case = Case("table", (1024, 1, 1), args, constants, {"num_warps": 4}, loop_trips=trips)
    return triton_workload(kernel, cases=[case])


def load(name: str) -> Workload:
    """The workload of this name.

    Raises:
        WorkloadError: there is no such kernel.
    """
    whole, row = Buffer("fp16", (_ROWS, _COLS)), Buffer("fp16", (_COLS,), role="out")
    out = Buffer("fp16", (_ROWS, _COLS), role="out")
    number, index = Buffer("fp32", (_ROWS,), role="out"), Buffer("i32", (_ROWS,), role="out")
    tokens, tile = Buffer("i32", (_ROWS,)), {"ROWS": 4, "COLS": _COLS}
    if name == "gelu":
        return _flat(gelu_kernel, "x", "y")
    if name == "chain":
        return _flat(chain_kernel, "a b c", "y", {"scale": 0.5})
    if name == "dropout":
        return _flat(dropout_kernel, "x", "y", {"seed": 7, "p": 0.1})
    if name == "adam":
        return _flat(adam_kernel, "g", "w m v", {"rate": 1e-3})
    if name == "convolve":
        return _flat(convolve_kernel, "x w", "y")
    if name == "moments":
        return _table(moments_kernel, {"mean": number, "variance": number, "x": whole}, {"BLOCK": _COLS})
    if name == "column_sum":
        return _table(column_sum_kernel, {"y": row, "x": whole}, {"ROWS": 32, "COLS": 64}, trips=32)
    if name == "argmax":
        return _table(argmax_kernel, {"index": index, "best": number, "x": whole}, tile)
    if name == "transpose":
        return _table(transpose_kernel, {"y": out, "x": whole}, {"ROWS": 32, "COLS": 64})
    if name == "embedding":
        return _table(embedding_kernel, {"y": out, "table": whole, "token": tokens}, tile)
    if name == "cumsum":
        return _table(cumsum_kernel, {"y": out, "x": whole}, tile)
    raise WorkloadError(f"the training corpus has no kernel {name!r}", hint="see sassafras/corpus/kernels.py")

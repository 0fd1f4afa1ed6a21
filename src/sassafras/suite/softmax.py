"""Row-wise softmax: one program a row, the row held in registers."""

# mypy: allow-untyped-defs
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl

from sassafras.core import Buffer, Case, Tolerance
from sassafras.frontend.triton import workload as triton_workload


@triton.jit
def softmax_kernel(y_ptr, x_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    x = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=-float("inf"))
    x = x - tl.max(x, axis=0)
    e = tl.exp(x)
    tl.store(y_ptr + row * n_cols + cols, e / tl.sum(e, axis=0), mask=mask)


def reference(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """FP64 softmax over the last axis."""
    return {"y_ptr": tensors["x_ptr"].double().softmax(-1)}


def _case(rows: int, cols: int, block: int, warps: int) -> Case:
    return Case(
        name=f"{rows}x{cols}",
        grid=(rows, 1, 1),
        args={
            "y_ptr": Buffer("fp32", (rows, cols), role="out"),
            "x_ptr": Buffer("fp32", (rows, cols)),
            "n_cols": cols,
        },
        constants={"BLOCK": block},
        options={"num_warps": warps},
    )


workload = triton_workload(
    softmax_kernel,
    cases=[
        _case(512, 4096, 4096, 16),
        _case(512, 4000, 4096, 16),
        _case(512, 2064, 4096, 16),
        _case(512, 2048, 2048, 4),
        _case(512, 2047, 2048, 4),
        _case(512, 4095, 4096, 16),
    ],
    reference=reference,
    # FP32 throughout; exp is ex2.approx (2 ulp) after a product with log2(e), the sum is a tree of <= 4096
    # positive terms: a few 1e-6 relative. Values are below 1, so the absolute part only covers subnormals.
    tolerance=Tolerance(rtol=2e-5, atol=1e-7),
    name="softmax",
    meta={"tails": ["512x4000", "512x2064"], "odd": ["512x2047", "512x4095"]},
)

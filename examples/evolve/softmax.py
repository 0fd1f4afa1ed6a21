"""A row softmax in Triton whose arithmetic may be rewritten by ``sassafras evolve``."""

# mypy: allow-untyped-defs
from __future__ import annotations

import triton
import triton.language as tl

from sassafras.core import Buffer, Case, Tolerance
from sassafras.frontend.triton import workload as triton_workload


@triton.jit
def softmax_kernel(y_ptr, x_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    # hole: row: reads x_ptr at row * n_cols + cols, writes the row's softmax to y_ptr at the same place
    x = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=-float("inf"))
    x = x - tl.max(x, axis=0)
    e = tl.exp(x)
    y = e / tl.sum(e, axis=0)
    tl.store(y_ptr + row * n_cols + cols, y, mask=mask)
    # end hole


def reference(tensors):
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
    cases=[_case(512, 4096, 4096, 16), _case(512, 4000, 4096, 16), _case(512, 2048, 2048, 4)],
    reference=reference,
    tolerance=Tolerance(rtol=2e-5, atol=1e-7),  # FP32, exp2 of 2 ulp, a tree of at most 4096 positive terms
    name="evolve_softmax",
)

"""RMSNorm over short rows (one attention head): several rows a program."""

# mypy: allow-untyped-defs
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl

from sassafras.core import Buffer, Case, Tolerance
from sassafras.frontend.triton import workload as triton_workload

_EPS = 1e-6


@triton.jit
def rmsnorm_kernel(
    y_ptr, x_ptr, weight_ptr, n_rows, n_cols, eps, BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr
):
    rows = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    cols = tl.arange(0, BLOCK_COLS)
    mask = (rows < n_rows)[:, None] & (cols < n_cols)[None, :]
    offsets = rows.to(tl.int64)[:, None] * n_cols + cols[None, :]
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=1) / n_cols + eps)
    y = x * scale[:, None] * weight[None, :]
    tl.store(y_ptr + offsets, y.to(y_ptr.dtype.element_ty), mask=mask)


def reference(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """FP64 on upcast inputs."""
    x, weight = tensors["x_ptr"].double(), tensors["weight_ptr"].double()
    return {"y_ptr": x * (x.square().mean(-1, keepdim=True) + tensors["eps"]).rsqrt() * weight}


def _case(name: str, rows: int, cols: int, block_rows: int, block_cols: int, warps: int) -> Case:
    return Case(
        name=name,
        grid=(-(-rows // block_rows), 1, 1),
        args={
            "y_ptr": Buffer("fp16", (rows, cols), role="out"),
            "x_ptr": Buffer("fp16", (rows, cols)),
            "weight_ptr": Buffer("fp16", (cols,)),
            "n_rows": rows,
            "n_cols": cols,
            "eps": _EPS,
        },
        constants={"BLOCK_ROWS": block_rows, "BLOCK_COLS": block_cols},
        options={"num_warps": warps},
    )


workload = triton_workload(
    rmsnorm_kernel,
    cases=[
        _case("1x32x4096x64", 32 * 4096, 64, 32, 64, 4),
        _case("1x32x4090x48", 32 * 4090, 48, 32, 64, 4),
        _case("4096x4096", 4096, 4096, 1, 4096, 8),
        _case("1x32x4096x63", 32 * 4096, 63, 32, 64, 4),
    ],
    reference=reference,
    # the output is rounded to FP16 (half an ulp: 4.9e-4 relative); everything before is FP32
    tolerance=Tolerance(rtol=1e-3, atol=1e-5),
    name="rmsnorm",
    meta={"tails": ["1x32x4090x48"], "odd": ["1x32x4096x63"]},
)

"""Quantise rows to FP8 (e4m3) with one dynamic scale each: scale = max|x| / 448, q = x / scale."""

# mypy: allow-untyped-defs
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl

from sassafras.core import Buffer, Case, Tolerance
from sassafras.frontend.triton import workload as triton_workload


@triton.jit
def quantise_fp8_kernel(q_ptr, scale_ptr, x_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    base = row.to(tl.int64) * n_cols
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    x = tl.load(x_ptr + base + cols, mask=mask, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(x), axis=0), 1e-12) / 448.0
    q = tl.clamp(x / scale, -448.0, 448.0)
    tl.store(q_ptr + base + cols, q.to(q_ptr.dtype.element_ty), mask=mask)
    tl.store(scale_ptr + row, scale)


def reference(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """FP64 before the one rounding to FP8."""
    import torch

    x = tensors["x_ptr"].double()
    scale = x.abs().amax(-1, keepdim=True).clamp_min(1e-12) / 448.0
    quantised = (x / scale).clamp(-448.0, 448.0).float().to(torch.float8_e4m3fn)
    return {"q_ptr": quantised, "scale_ptr": scale[:, 0]}


def _case(rows: int, cols: int, block: int, warps: int) -> Case:
    return Case(
        name=f"{rows}x{cols}",
        grid=(rows, 1, 1),
        args={
            "q_ptr": Buffer("fp8e4nv", (rows, cols), role="out"),
            "scale_ptr": Buffer("fp32", (rows,), role="out"),
            "x_ptr": Buffer("bf16", (rows, cols)),
            "n_cols": cols,
        },
        constants={"BLOCK": block},
        options={"num_warps": warps},
    )


workload = triton_workload(
    quantise_fp8_kernel,
    cases=[
        _case(2048, 4096, 4096, 4),
        _case(2048, 4000, 4096, 4),
        _case(2048, 8192, 8192, 8),
        _case(2048, 4095, 4096, 4),
    ],
    reference=reference,
    # a quotient an ulp of FP32 away may round to the neighbouring FP8 value: one step is 2^-3 relative, and
    # 2^-9 absolute among subnormals; scales are FP32
    tolerance=Tolerance(rtol=0.125, atol=2.0**-9),
    name="quantise_fp8",
    meta={"tails": ["2048x4000"], "odd": ["2048x4095"]},
)

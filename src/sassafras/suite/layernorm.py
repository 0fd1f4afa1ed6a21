"""Layer norm over whole rows, FP16 in and out: mean and variance in FP32, two passes in registers."""

# mypy: allow-untyped-defs
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl

from sassafras.core import Buffer, Case, Tolerance
from sassafras.frontend.triton import workload as triton_workload


@triton.jit
def layernorm_kernel(y_ptr, x_ptr, weight_ptr, bias_ptr, n_cols, eps, BLOCK: tl.constexpr):
    base = tl.program_id(0).to(tl.int64) * n_cols
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    x = tl.load(x_ptr + base + cols, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(x, axis=0) / n_cols
    centred = tl.where(mask, x - mean, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, axis=0) / n_cols + eps)
    weight = tl.load(weight_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    y = centred * scale * weight + bias
    tl.store(y_ptr + base + cols, y.to(y_ptr.dtype.element_ty), mask=mask)


def reference(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """FP64 on the upcast inputs."""
    import torch

    x = tensors["x_ptr"].double()
    weight, bias = tensors["weight_ptr"].double(), tensors["bias_ptr"].double()
    return {"y_ptr": torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, tensors["eps"])}


def _case(rows: int, cols: int, block: int, warps: int) -> Case:
    return Case(
        name=f"{rows}x{cols}",
        grid=(rows, 1, 1),
        args={
            "y_ptr": Buffer("fp16", (rows, cols), role="out"),
            "x_ptr": Buffer("fp16", (rows, cols)),
            "weight_ptr": Buffer("fp16", (cols,)),
            "bias_ptr": Buffer("fp16", (cols,)),
            "n_cols": cols,
            "eps": 1e-5,
        },
        constants={"BLOCK": block},
        options={"num_warps": warps},
    )


workload = triton_workload(
    layernorm_kernel,
    cases=[
        _case(2048, 4096, 4096, 4),
        _case(2048, 4000, 4096, 4),
        _case(2048, 1024, 1024, 4),
        _case(2048, 4093, 4096, 4),
    ],
    reference=reference,
    # FP16 rounding of the output (4.9e-4 relative) over FP32 statistics; near zero, bias and product cancel
    tolerance=Tolerance(rtol=1e-3, atol=1e-4),
    name="layernorm",
    meta={"tails": ["2048x4000"], "odd": ["2048x4093"]},
)

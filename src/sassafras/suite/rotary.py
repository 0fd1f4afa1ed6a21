"""Rotary position embedding (rotate-half form): one program rotates all heads of one token."""

# mypy: allow-untyped-defs
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl

from sassafras.core import Buffer, Case, Tolerance, Uniform
from sassafras.frontend.triton import workload as triton_workload


@triton.jit
def rotary_kernel(
    y_ptr,
    x_ptr,
    cos_ptr,
    sin_ptr,
    position_ptr,
    n_heads,
    HALF: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
):
    token = tl.program_id(0)
    heads = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    dims = tl.arange(0, HALF)
    position = tl.load(position_ptr + token)
    cos = tl.load(cos_ptr + position * HALF + dims)[None, :]
    sin = tl.load(sin_ptr + position * HALF + dims)[None, :]
    offsets = (token.to(tl.int64) * n_heads + heads[:, None]) * (2 * HALF) + dims[None, :]
    mask = (heads < n_heads)[:, None]
    low = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    high = tl.load(x_ptr + offsets + HALF, mask=mask, other=0.0).to(tl.float32)
    tl.store(y_ptr + offsets, (low * cos - high * sin).to(y_ptr.dtype.element_ty), mask=mask)
    tl.store(y_ptr + offsets + HALF, (high * cos + low * sin).to(y_ptr.dtype.element_ty), mask=mask)


def reference(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """FP64 on the upcast inputs."""
    import torch

    x = tensors["x_ptr"].double()
    position = tensors["position_ptr"].long()
    cos, sin = (tensors[n].double()[position][:, None, :] for n in ("cos_ptr", "sin_ptr"))
    low, high = x.chunk(2, dim=-1)
    return {"y_ptr": torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)}


def _case(tokens: int, heads: int, head: int, block_heads: int, warps: int) -> Case:
    context = 4096
    return Case(
        name=f"{tokens}x{heads}x{head}",
        grid=(tokens, -(-heads // block_heads), 1),
        args={
            "y_ptr": Buffer("bf16", (tokens, heads, head), role="out"),
            "x_ptr": Buffer("bf16", (tokens, heads, head)),
            "cos_ptr": Buffer("fp32", (context, head // 2), fill=Uniform(-1.0, 1.0)),
            "sin_ptr": Buffer("fp32", (context, head // 2), fill=Uniform(-1.0, 1.0)),
            "position_ptr": Buffer("i32", (tokens,), fill=Uniform(0, context)),
            "n_heads": heads,
        },
        constants={"HALF": head // 2, "BLOCK_HEADS": block_heads},
        options={"num_warps": warps},
    )


workload = triton_workload(
    rotary_kernel,
    cases=[
        _case(4096, 32, 128, 16, 4),
        _case(4096, 48, 128, 16, 4),
        _case(4096, 8, 128, 8, 4),
        _case(4096, 28, 128, 16, 4),
    ],
    reference=reference,
    # BF16 rounding of the output (3.9e-3 relative); the two FP32 products cancel to about 1e-7
    tolerance=Tolerance(rtol=4e-3, atol=1e-5),
    name="rotary",
    meta={"tails": ["4096x48x128", "4096x28x128"], "odd": []},
)

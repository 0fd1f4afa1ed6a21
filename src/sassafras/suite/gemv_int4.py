"""y = W @ x with INT4 weights, two a byte, and one FP16 scale for each group of 128 along K."""

# mypy: allow-untyped-defs
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl

from sassafras.core import Buffer, Case, Tolerance, Uniform
from sassafras.frontend.triton import workload as triton_workload

_GROUP = 128


@triton.jit
def gemv_int4_kernel(
    y_ptr,
    w_ptr,
    x_ptr,
    scale_ptr,
    N,
    K,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
):
    """A byte holds the weights of columns j (low half) and j + K/2 (high half): x is read in order.

    Tiles are rows x groups x GROUP, so that a scale is loaded once a group. K is a multiple of 2 * GROUP.
    """
    rows = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N))[:, None, None]
    groups = tl.arange(0, BLOCK_K // GROUP)[None, :, None]
    ks = groups * GROUP + tl.arange(0, GROUP)[None, None, :]
    half = K // 2
    half_groups = half // GROUP
    w_ptrs = w_ptr + rows.to(tl.int64) * half + ks
    scale_ptrs = scale_ptr + rows * (2 * half_groups) + groups
    acc = tl.zeros((BLOCK_N, BLOCK_K // GROUP, GROUP), dtype=tl.float32)
    for k in range(0, half, BLOCK_K):
        inside = ks < half - k
        scaled = (rows < N) & (groups < half_groups - k // GROUP)
        packed = tl.load(w_ptrs + k, mask=(rows < N) & inside, other=0).to(tl.int32)
        x_low = tl.load(x_ptr + k + ks, mask=inside, other=0.0).to(tl.float32)
        x_high = tl.load(x_ptr + half + k + ks, mask=inside, other=0.0).to(tl.float32)
        s_low = tl.load(scale_ptrs + k // GROUP, mask=scaled, other=0.0).to(tl.float32)
        s_high = tl.load(scale_ptrs + half_groups + k // GROUP, mask=scaled, other=0.0).to(tl.float32)
        acc += ((packed & 15) - 8).to(tl.float32) * s_low * x_low
        acc += ((packed >> 4) - 8).to(tl.float32) * s_high * x_high
    y = tl.sum(tl.sum(acc, axis=2), axis=1)
    rows_out = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    tl.store(y_ptr + rows_out, y.to(y_ptr.dtype.element_ty), mask=rows_out < N)


def reference(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """FP64 product of the dequantised weights."""
    import torch

    packed = tensors["w_ptr"].int()
    weights = torch.cat(((packed & 15) - 8, (packed >> 4) - 8), dim=1).double()
    scales = tensors["scale_ptr"].double().repeat_interleave(_GROUP, dim=1)
    return {"y_ptr": (weights * scales) @ tensors["x_ptr"].double()}


def _case(n: int, k: int) -> Case:
    block_n, block_k = 4, 1024
    return Case(
        name=f"{n}x{k}",
        grid=(-(-n // block_n), 1, 1),
        args={
            "y_ptr": Buffer("fp16", (n,), role="out"),
            "w_ptr": Buffer("u8", (n, k // 2), fill=Uniform(0, 256)),
            "x_ptr": Buffer("fp16", (k,)),
            "scale_ptr": Buffer("fp16", (n, k // _GROUP), fill=Uniform(1e-3, 2e-3)),
            "N": n,
            "K": k,
        },
        constants={"BLOCK_N": block_n, "BLOCK_K": block_k, "GROUP": _GROUP},
        options={"num_warps": 4},
        loop_trips=-(-k // 2 // block_k),
    )


workload = triton_workload(
    gemv_int4_kernel,
    cases=[_case(4096, 4096), _case(4096, 11008), _case(4080, 3840), _case(4095, 3840)],
    reference=reference,
    # FP16 rounding of the output (4.9e-4 relative); the outputs are of size 0.5, so FP32 sums cancel to 1e-6
    tolerance=Tolerance(rtol=1e-3, atol=1e-5),
    name="gemv_int4",
    meta={"tails": ["4096x11008", "4080x3840"], "odd": ["4095x3840"]},
)

"""C = leaky_relu(A @ B), FP16 in and out, FP32 accumulation."""

# mypy: allow-untyped-defs
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl

from sassafras.core import Buffer, Case, Normal, Tolerance
from sassafras.frontend.triton import workload as triton_workload


@triton.jit
def gemm_leakyrelu_kernel(
    c_ptr, a_ptr, b_ptr, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    rows = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)
    # rows and columns past the edge wrap around: they are loaded but never stored
    a_ptrs = a_ptr + (rows % M)[:, None] * K + ks[None, :]
    b_ptrs = b_ptr + ks[:, None] * N + (cols % N)[None, :]
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        a = tl.load(a_ptrs, mask=ks[None, :] < K - k, other=0.0)
        b = tl.load(b_ptrs, mask=ks[:, None] < K - k, other=0.0)
        acc = tl.dot(a, b, acc)
        a_ptrs += BLOCK_K
        b_ptrs += BLOCK_K * N
    acc = tl.where(acc >= 0, acc, 0.01 * acc)
    mask = (rows < M)[:, None] & (cols < N)[None, :]
    tl.store(c_ptr + rows[:, None] * N + cols[None, :], acc.to(c_ptr.dtype.element_ty), mask=mask)


def reference(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """FP64 product of the upcast inputs."""
    import torch

    product = tensors["a_ptr"].double() @ tensors["b_ptr"].double()
    return {"c_ptr": torch.nn.functional.leaky_relu(product, 0.01)}


def _case(m: int, n: int, k: int) -> Case:
    block_m, block_n, block_k = 64, 32, 128
    return Case(
        name=f"{m}x{n}x{k}",
        grid=(-(-n // block_n), -(-m // block_m), 1),
        args={
            "c_ptr": Buffer("fp16", (m, n), role="out"),
            "a_ptr": Buffer("fp16", (m, k)),
            "b_ptr": Buffer("fp16", (k, n), fill=Normal(std=0.05)),
            "M": m,
            "N": n,
            "K": k,
        },
        constants={"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k},
        options={"num_warps": 4, "num_stages": 4},
        loop_trips=-(-k // block_k),
    )


workload = triton_workload(
    gemm_leakyrelu_kernel,
    cases=[_case(512, 512, 2048), _case(496, 464, 2000), _case(512, 512, 512), _case(500, 509, 2047)],
    reference=reference,
    # FP16 rounding of the result (4.9e-4 relative), FP32 accumulation of K <= 2048 products of size about
    # 0.05: absolute error well below 1e-3 where the sum cancels
    tolerance=Tolerance(rtol=2e-3, atol=1e-3),
    name="gemm_leakyrelu",
    meta={"tails": ["496x464x2000"], "odd": ["500x509x2047"]},
)

"""The gated half of a feed-forward layer, fused: Y = silu(X @ W1) * (X @ W3)."""

# mypy: allow-untyped-defs
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl

from sassafras.core import Buffer, Case, Normal, Tolerance
from sassafras.frontend.triton import workload as triton_workload


@triton.jit
def feed_forward_kernel(
    y_ptr, x_ptr, w1_ptr, w3_ptr, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    rows = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)
    # rows and columns past the edge wrap around: they are loaded but never stored
    x_ptrs = x_ptr + (rows % M)[:, None] * K + ks[None, :]
    w_offsets = ks[:, None] * N + (cols % N)[None, :]
    w1_ptrs = w1_ptr + w_offsets
    w3_ptrs = w3_ptr + w_offsets
    gate = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    up = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        x = tl.load(x_ptrs, mask=ks[None, :] < K - k, other=0.0)
        w1 = tl.load(w1_ptrs, mask=ks[:, None] < K - k, other=0.0)
        w3 = tl.load(w3_ptrs, mask=ks[:, None] < K - k, other=0.0)
        gate = tl.dot(x, w1, gate)
        up = tl.dot(x, w3, up)
        x_ptrs += BLOCK_K
        w1_ptrs += BLOCK_K * N
        w3_ptrs += BLOCK_K * N
    y = gate * tl.sigmoid(gate) * up
    mask = (rows < M)[:, None] & (cols < N)[None, :]
    tl.store(y_ptr + rows[:, None] * N + cols[None, :], y.to(y_ptr.dtype.element_ty), mask=mask)


def reference(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """FP64 on the upcast inputs."""
    import torch

    x = tensors["x_ptr"].double()
    gate, up = x @ tensors["w1_ptr"].double(), x @ tensors["w3_ptr"].double()
    return {"y_ptr": torch.nn.functional.silu(gate) * up}


def _case(m: int, n: int, k: int) -> Case:
    block_m, block_n, block_k = 64, 32, 128
    return Case(
        name=f"{m}x{n}x{k}",
        grid=(-(-n // block_n), -(-m // block_m), 1),
        args={
            "y_ptr": Buffer("fp16", (m, n), role="out"),
            "x_ptr": Buffer("fp16", (m, k)),
            "w1_ptr": Buffer("fp16", (k, n), fill=Normal(std=0.03)),
            "w3_ptr": Buffer("fp16", (k, n), fill=Normal(std=0.03)),
            "M": m,
            "N": n,
            "K": k,
        },
        constants={"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k},
        options={"num_warps": 4, "num_stages": 4},
        loop_trips=-(-k // block_k),
    )


workload = triton_workload(
    feed_forward_kernel,
    cases=[_case(512, 512, 2048), _case(496, 464, 2000), _case(500, 509, 2047)],
    reference=reference,
    # FP16 rounding of the result (4.9e-4 relative); sums of K <= 2048 FP32 products cancel to about 1e-5
    # absolute and are multiplied by factors of a few
    tolerance=Tolerance(rtol=2e-3, atol=1e-3),
    name="feed_forward",
    meta={"tails": ["496x464x2000"], "odd": ["500x509x2047"]},
)

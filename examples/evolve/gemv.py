"""y = (W * scale) @ x with INT8 weights in Triton; the loop over k may be rewritten."""

# mypy: allow-untyped-defs
from __future__ import annotations

import triton
import triton.language as tl

from sassafras.core import Buffer, Case, Tolerance, Uniform
from sassafras.frontend.triton import workload as triton_workload


@triton.jit
def gemv_kernel(y_ptr, w_ptr, x_ptr, scale_ptr, N, K, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    rows = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)
    live = rows < N
    w_ptrs = w_ptr + rows.to(tl.int64)[:, None] * K + ks[None, :]
    # hole: loop: leaves in `total` (BLOCK_N values, FP32) the sums over all k < K of w[row, k] * x[k]
    acc = tl.zeros((BLOCK_N, BLOCK_K), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        inside = ks < K - k
        w = tl.load(w_ptrs + k, mask=live[:, None] & inside[None, :], other=0)
        x = tl.load(x_ptr + k + ks, mask=inside, other=0.0)
        acc += w.to(tl.float32) * x.to(tl.float32)[None, :]
    total = tl.sum(acc, axis=1)
    # end hole
    y = total * tl.load(scale_ptr + rows, mask=live, other=0.0).to(tl.float32)
    tl.store(y_ptr + rows, y.to(y_ptr.dtype.element_ty), mask=live)


def reference(tensors):
    """FP64 product of the dequantised weights."""
    weights = tensors["w_ptr"].double() * tensors["scale_ptr"].double()[:, None]
    return {"y_ptr": weights @ tensors["x_ptr"].double()}


def _case(n: int, k: int) -> Case:
    block_n, block_k = 2, 2048
    return Case(
        name=f"{n}x{k}",
        grid=(-(-n // block_n), 1, 1),
        args={
            "y_ptr": Buffer("fp16", (n,), role="out"),
            "w_ptr": Buffer("i8", (n, k), fill=Uniform(-127, 128)),
            "x_ptr": Buffer("fp16", (k,)),
            "scale_ptr": Buffer("fp16", (n,), fill=Uniform(1e-4, 2e-4)),
            "N": n,
            "K": k,
        },
        constants={"BLOCK_N": block_n, "BLOCK_K": block_k},
        options={"num_warps": 4},
        loop_trips=-(-k // block_k),
    )


workload = triton_workload(
    gemv_kernel,
    cases=[_case(4096, 4096), _case(4080, 4000)],
    reference=reference,
    tolerance=Tolerance(rtol=1e-3, atol=1e-5),  # FP16 rounding of outputs of size 0.5 over FP32 sums
    name="evolve_gemv",
)

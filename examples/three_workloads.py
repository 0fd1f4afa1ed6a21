"""Three kernels with strides, a None pointer, indices, atomics, an autotuner and heuristics.

    sassafras check examples/three_workloads.py:rows
    sassafras optimize examples/three_workloads.py:product --case all

docs/reference/workload.md explains them.
"""

import triton
import triton.language as tl

from sassafras import Buffer, Case, Custom, Tolerance, Uniform
from sassafras.frontend.triton import workload


# 1. Rows of a view: a stride, a pointer that is None, two outputs.
@triton.jit
def rows_kernel(y, mean, x, w, bias, stride, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    v = tl.load(x + row * stride + cols, mask=cols < n, other=0.0).to(tl.float32)
    m = tl.sum(v, 0) / n
    d = tl.where(cols < n, v - m, 0.0)
    out = d * tl.rsqrt(tl.sum(d * d, 0) / n + eps) * tl.load(w + cols, mask=cols < n)
    if bias is not None:
        out += tl.load(bias + cols, mask=cols < n)
    tl.store(mean + row, m)
    tl.store(y + row * n + cols, out, mask=cols < n)


def rows_reference(t):
    x = t["x"].double().as_strided((64, 1000), (t["stride"], 1))
    m = x.mean(-1)
    scale = (x.var(-1, correction=0) + t["eps"]).rsqrt()
    return {"mean": m, "y": (x - m[:, None]) * scale[:, None] * t["w"].double()}


rows = workload(
    rows_kernel,
    [
        Case(
            name="64x1000",
            grid=(64,),
            args={
                "y": Buffer("fp16", (64, 1000), role="out"),
                "mean": Buffer("fp32", (64,), role="out"),
                "x": Buffer("fp16", (63 * 1024 + 1000,)),  # 64 rows of 1000, 1024 apart
                "w": Buffer("fp16", (1000,)),
                "stride": 1024,
                "n": 1000,
                "eps": 1e-5,
            },
            constants={"bias": None, "BLOCK": 1024},
            options={"num_warps": 4},
        )
    ],
    reference=rows_reference,
    tolerance=Tolerance(rtol=2e-3, atol=2e-3),
)


# 2. Sums by index: indices, and atomics on a buffer that is read and written.
@triton.jit
def experts_kernel(total, grad, expert, rows, COLUMNS: tl.constexpr, ROWS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, COLUMNS)
    inside = row < rows
    to = tl.load(expert + row, mask=inside, other=0)
    v = tl.load(grad + row[:, None] * COLUMNS + cols[None, :], mask=inside[:, None], other=0.0)
    tl.atomic_add(total + to[:, None] * COLUMNS + cols[None, :], v, mask=inside[:, None])


def which_expert(shape, dtype, generator, device):
    import torch

    return torch.randint(0, 8, shape, generator=generator, device=device).to(dtype)


def experts_reference(t):
    return {"total": t["total"].double().index_add(0, t["expert"].long(), t["grad"].double())}


experts = workload(
    experts_kernel,
    [
        Case(
            name="96x64",
            grid=lambda meta: (triton.cdiv(96, meta["ROWS"]),),
            args={
                "total": Buffer("fp32", (8, 64), role="inout", fill=Uniform(0, 1)),
                "grad": Buffer("fp32", (96, 64)),
                "expert": Buffer("i32", (96,), fill=Custom(which_expert)),
                "rows": 96,
            },
            constants={"COLUMNS": 64, "ROWS": 16},
        )
    ],
    reference=experts_reference,
    tolerance=Tolerance(rtol=1e-4, atol=1e-4),
)


# 3. An autotuned product: each configuration becomes a case; EVEN comes from a heuristic.
@triton.autotune(
    [
        triton.Config({"BM": 64, "BN": 64, "BK": 32}, num_warps=4),
        triton.Config({"BM": 32, "BN": 32, "BK": 32}, num_warps=2),
    ],
    key=["K"],
)
@triton.heuristics({"EVEN": lambda args: args["K"] % args["BK"] == 0})
@triton.jit
def product_kernel(c, a, b, K, EVEN: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    columns = tl.num_programs(1) * BN
    total = tl.zeros((BM, BN), tl.float32)
    for at in range(0, K, BK):
        left, right = a + m[:, None] * K + (at + k)[None, :], b + (at + k)[:, None] * columns + n[None, :]
        if EVEN:
            total = tl.dot(tl.load(left), tl.load(right), total)
        else:
            rest = at + k < K
            x = tl.load(left, mask=rest[None, :], other=0.0)
            total = tl.dot(x, tl.load(right, mask=rest[:, None], other=0.0), total)
    tl.store(c + m[:, None] * columns + n[None, :], total.to(tl.float16))


product = workload(
    product_kernel,
    [
        Case(
            name="64x64x128",
            grid=lambda meta: (triton.cdiv(64, meta["BM"]), triton.cdiv(64, meta["BN"])),
            args={
                "c": Buffer("fp16", (64, 64), role="out"),
                "a": Buffer("fp16", (64, 128)),
                "b": Buffer("fp16", (128, 64)),
                "K": 128,
            },
            loop_trips=4,
        )
    ],
    reference=lambda t: {"c": t["a"].double() @ t["b"].double()},
    tolerance=Tolerance(rtol=2e-3, atol=1e-2),
    meta={"flops": 2 * 64 * 64 * 128},
)

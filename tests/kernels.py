"""Real kernels for the tests: compiled by Triton (no GPU needed) or nvcc, once a session."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def softmax(x_ptr, y_ptr, n, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + row * stride + offsets, mask=mask, other=-float("inf"))
    x = tl.exp(x - tl.max(x, 0))
    tl.store(y_ptr + row * stride + offsets, x / tl.sum(x, 0), mask=mask)


@triton.jit
def matmul(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        x = tl.load(a + rm[:, None] * K + (k + rk)[None, :])
        y = tl.load(b + (k + rk)[:, None] * N + rn[None, :])
        acc = tl.dot(x, y, acc)
    tl.store(c + rm[:, None] * N + rn[None, :], acc.to(tl.float16))


@triton.jit
def cumsum(y_ptr, x_ptr, n_cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, COLS)
    at = rows[:, None] * n_cols + cols[None, :]
    live = (cols < n_cols)[None, :]
    y = tl.cumsum(tl.load(x_ptr + at, mask=live, other=0.0).to(tl.float32), axis=1)
    tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=live)


_ALIGNED = [["tt.divisibility", 16]]
_NUMBER = {"sm_80": 80, "sm_86": 86, "sm_89": 89, "sm_90a": 90, "sm_100a": 100, "sm_120a": 120}


def _compile(
    fn: Any, signature: dict, constants: dict, aligned: tuple[int, ...], arch: str, **options: Any
) -> bytes:
    source = ASTSource(
        fn=fn, signature=signature, constexprs=constants, attrs={(i,): _ALIGNED for i in aligned}
    )
    kernel = triton.compile(source, target=GPUTarget("cuda", _NUMBER[arch], 32), options=options)
    return kernel.asm["cubin"]


@lru_cache(maxsize=64)
def softmax_cubin(arch: str = "sm_90a", block: int = 1024, aligned: bool = True, num_warps: int = 4) -> bytes:
    """A masked softmax; `aligned=False` is the variant with scalar accesses."""
    signature = {"x_ptr": "*fp32", "y_ptr": "*fp32", "n": "i32", "stride": "i32", "BLOCK": "constexpr"}
    return _compile(
        softmax, signature, {(4,): block}, (0, 1, 2, 3) if aligned else (0, 1), arch, num_warps=num_warps
    )


@lru_cache(maxsize=64)
def matmul_cubin(arch: str = "sm_90a", bm: int = 64, bn: int = 64, bk: int = 64, num_warps: int = 4) -> bytes:
    """An FP16 matrix product: HGMMA on sm_90a with 64 or more rows, HMMA elsewhere."""
    signature = dict.fromkeys("abc", "*fp16") | dict.fromkeys("MNK", "i32")
    signature |= dict.fromkeys(("BM", "BN", "BK"), "constexpr")
    return _compile(
        matmul,
        signature,
        {(6,): bm, (7,): bn, (8,): bk},
        tuple(range(6)),
        arch,
        num_warps=num_warps,
        num_stages=3,
    )


@lru_cache(maxsize=64)
def cumsum_cubin(rows: int, cols: int, num_warps: int, dtype: str) -> bytes:
    """A prefix sum along rows for sm_90a: shuffles, stores between them, and loads not used whole."""
    signature = {"y_ptr": f"*{dtype}", "x_ptr": f"*{dtype}", "n_cols": "i32"}
    signature |= dict.fromkeys(("ROWS", "COLS"), "constexpr")
    constants = {(3,): rows, (4,): cols}
    return _compile(cumsum, signature, constants, (0, 1, 2), "sm_90a", num_warps=num_warps)


@lru_cache(maxsize=64)
def nvcc_cubin(source: str, arch: str = "sm_90a", flags: tuple[str, ...] = ()) -> bytes | None:
    """CUDA C++ compiled by nvcc, or None where there is no nvcc."""
    if shutil.which("nvcc") is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cu"
        path.write_text(source)
        command = [
            "nvcc",
            f"-arch={arch}",
            "-cubin",
            *flags,
            "-o",
            str(path.with_suffix(".cubin")),
            str(path),
        ]
        subprocess.run(command, check=True, capture_output=True, timeout=300)
        return path.with_suffix(".cubin").read_bytes()


#: two kernels in one file: shared memory, a real call, a jump table, FP64, an atomic
TWO_KERNELS = r"""
__device__ __noinline__ float twice(float x) { return __sinf(x) * x + 1.f; }
extern "C" __global__ void reverse(float* a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  __shared__ float s[256];
  if (i < n) {
    s[threadIdx.x] = a[i];
    __syncthreads();
    a[i] = twice(s[255 - threadIdx.x]);
    atomicAdd(&a[0], 1.f);
  }
}
extern "C" __global__ void choose(double* a, int n, int m) {
  int i = threadIdx.x;
  switch (m) {
    case 0: a[i] *= 2; break;
    case 1: a[i] += 3; break;
    case 2: a[i] = sqrt(a[i]); break;
    case 3: a[i] = 1 / a[i]; break;
    case 4: a[i] = exp(a[i]); break;
    default: a[i] = n;
  }
}
"""

"""A CUDA source as a workload, with a reference.

    sassafras optimize examples/saxpy.py

nvcc compiles it; `compiler="nvrtc"` would do so through NVRTC.
"""

from pathlib import Path

from sassafras.core import Buffer, Case, Tolerance
from sassafras.frontend.cuda import workload as cuda_workload

THREADS = 256


def reference(tensors):
    return {"y": tensors["a"] * tensors["x"].double() + tensors["y"].double()}


def call(n: int) -> Case:
    return Case(
        name=str(n),
        grid=(-(-n // (4 * THREADS)), 1, 1),
        # in the kernel's parameter order; the names are yours
        args={"y": Buffer("fp32", (n,), role="inout"), "x": Buffer("fp32", (n,)), "a": 1.5, "n": n},
    )


workload = cuda_workload(
    Path(__file__).with_name("saxpy.cu"),
    cases=[call(1 << 20), call((1 << 20) - 500)],
    threads=THREADS,
    flags=("-O3",),
    reference=reference,
    tolerance=Tolerance(rtol=1e-6, atol=1e-6),  # one fused multiply-add in FP32
)

"""A workload of your own: a Triton kernel, what it is called with, and what it should compute.

    sassafras optimize examples/softmax.py                     # on the GPU that is present
    sassafras optimize examples/softmax.py --device model      # without a GPU: modelled, not measured

Copy this file, put your kernel in, and describe its call.
"""

import triton
import triton.language as tl

from sassafras.core import Buffer, Case, Tolerance
from sassafras.frontend.triton import workload as triton_workload


# 1. The kernel, as it stands in your program.
@triton.jit
def softmax_kernel(out_ptr, in_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_cols
    x = tl.load(in_ptr + row * n_cols + cols, mask=mask, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * n_cols + cols, e / tl.sum(e, axis=0), mask=mask)


# 2. What it should compute, in higher precision: tensors by argument name in, outputs by name out.
def reference(tensors):
    return {"out_ptr": tensors["in_ptr"].double().softmax(-1)}


# 3. The calls. Here, softmax_kernel[(rows,)](out, in, cols, BLOCK=2048, num_warps=4).
#    Where a size is a multiple of 16 Triton compiles another variant (vectorised accesses) than where it is
#    not (scalar ones). Sassafras tunes the variant that the first case selects: describe the call you make.
def call(rows: int, cols: int) -> Case:
    return Case(
        name=f"{rows}x{cols}",
        grid=(rows, 1, 1),
        args={
            "out_ptr": Buffer("fp32", (rows, cols), role="out"),
            "in_ptr": Buffer("fp32", (rows, cols)),  # filled with normal random values
            "n_cols": cols,
        },
        constants={"BLOCK": 2048},
        options={"num_warps": 4},
    )


workload = triton_workload(
    softmax_kernel,
    cases=[call(512, 2047), call(512, 2048)],
    reference=reference,
    tolerance=Tolerance(rtol=2e-5, atol=1e-7),
    name="softmax-example",
)

"""The call that `program.py` makes, described for Sassafras; see docs/tutorial.md."""

from program import add_rmsnorm_kernel

from sassafras.core import Buffer, Case, Tolerance
from sassafras.frontend.triton import workload as triton_workload


def reference(t):
    """The outputs in double precision, from the same inputs."""
    h = t["x_ptr"].double() + t["r_ptr"].double()
    y = h * (h.square().mean(-1, keepdim=True) + t["eps"]).rsqrt() * t["w_ptr"].double()
    return {"h_ptr": h, "y_ptr": y}


def call(rows):
    """add_rmsnorm_kernel[(rows,)](y, h, x, r, w, 1024, 1e-5, BLOCK=1024, num_warps=4)"""
    wide = (rows, 1024)
    return Case(
        name=f"{rows}x1024",
        grid=(rows, 1, 1),
        args={
            "y_ptr": Buffer("fp16", wide, role="out"),
            "h_ptr": Buffer("fp16", wide, role="out"),
            "x_ptr": Buffer("fp16", wide),
            "r_ptr": Buffer("fp16", wide),
            "w_ptr": Buffer("fp16", (1024,)),
            "n_cols": 1024,
            "eps": 1e-5,
        },
        constants={"BLOCK": 1024},
        options={"num_warps": 4},
    )


workload = triton_workload(
    add_rmsnorm_kernel,
    cases=[call(512), call(16)],
    reference=reference,
    tolerance=Tolerance(rtol=2e-3, atol=2e-3),
    name="add-rmsnorm",
)

"""A matrix product that other sources than ours are to compute: ``gemm-source:MxNxK[/CONFIGURATION]``.

The baseline is the kernel that `sassafras.matmul` chooses, launched plainly: programmatic dependent launch is
no property of a kernel's code. Operands have the problem's names, whatever the baseline's kernel calls them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

from sassafras.core import Buffer, Case, Custom, Kernel, SassafrasError, Uniform, Workload, WorkloadError

from ..configs import names
from ..configs.registry import Config
from ..problem.shape import Shape
from .workload import operands, winner, workload

PREFIX = "gemm-source:"
#: bytes of scratch that a kernel may use at most, and 32-bit counters, which it has to leave at zero
MOST_WORKSPACE, COUNTERS = 64 << 20, 4096
#: splits of K that the workspace has room for, in FP32
_SPLITS = 16
#: mean of a 0/1 product's elements at most; FP16 holds whole numbers to 2048, BF16 to 256
_MEAN = {"fp16": 512.0, "bf16": 96.0}


def plain(config: Config, shape: Shape) -> Config:
    """The configuration without overlapping launches."""
    return next((mode for mode in config.in_modes() if not mode.launch(shape).overlap), config)


def source_workload(shape: Shape, config: Config | None = None) -> Workload:
    """C = A x B for sources: operands ``a``, ``b``, ``c``, scratch ``workspace`` and ``counters``.

    Results are compared with FP32 on random inputs, with a library's errors (`Workload.peer`), and exactly
    on matrices of 0 and 1 and of -1, 0 and 1.

    Args:
        shape: the problem.
        config: the baseline; by default that of the shipped table, or the estimate's favourite.

    Raises:
        SassafrasError: the configuration cannot run the shape.
    """
    chosen = plain(config or winner(shape), shape)
    made = workload(shape, chosen)
    (theirs,) = made.cases
    renamed = {"a": "b", "b": "a"} if chosen.swap_ab else {}
    a, b = operands(chosen, shape)
    scratch = [own.nbytes for name in ("workspace",) if isinstance(own := theirs.args.get(name), Buffer)]
    room = max([min(MOST_WORKSPACE, 4 * _SPLITS * shape.m * shape.n), *scratch])
    args: dict[str, Any] = {
        "a": Buffer(chosen.dtype, a),
        "b": Buffer(chosen.dtype, b),
        "c": Buffer(chosen.dtype, (shape.m, shape.n), "out"),
        "workspace": Buffer("fp32", (room // 4,), "out"),
        "counters": Buffer("i32", (COUNTERS,), "inout", Uniform(0, 1)),  # zeros
    }
    constants = {"GEMM_M": shape.m, "GEMM_N": shape.n, "GEMM_K": shape.k}

    def build(case: Case, arch: str, **options: Any) -> Kernel:
        kernel = made.build(theirs, arch, **options)
        maps = {
            name: {**described, "operand": renamed.get(described["operand"], described["operand"])}
            for name, described in kernel.meta["tensor_maps"].items()
        }
        parameters = tuple((renamed.get(name, name), kind) for name, kind in kernel.parameters or ())
        return dataclasses.replace(
            kernel, parameters=parameters, meta={**kernel.meta, "tensor_maps": maps, "compiler": "nvcc"}
        )

    def product(tensors: Mapping[str, Any], wide: bool) -> dict[str, Any]:
        import torch

        first, second = tensors["a"], tensors["b"]
        first = first.t() if chosen.layout[1] == "t" else first
        second = second.t() if chosen.layout[0] == "t" else second
        if wide:
            return {"c": torch.matmul(first.float(), second.float())}
        flags = torch.backends.cuda.matmul
        before = flags.allow_fp16_reduced_precision_reduction, flags.allow_bf16_reduced_precision_reduction
        flags.allow_fp16_reduced_precision_reduction = flags.allow_bf16_reduced_precision_reduction = False
        try:
            return {"c": torch.matmul(first, second)}
        finally:
            flags.allow_fp16_reduced_precision_reduction, flags.allow_bf16_reduced_precision_reduction = (
                before
            )

    share = min(0.5, (_MEAN[chosen.dtype] / shape.k) ** 0.5)
    return Workload(
        "hgemm_source",
        (Case(str(shape), theirs.grid, args, constants, loop_trips=theirs.loop_trips),),
        build,
        partial(product, wide=True),
        made.tolerance,
        source=f"{PREFIX}{shape}/{chosen.name}",
        meta={
            **made.meta,
            "layout": chosen.layout,
            "flops": shape.flop,
            "scratch": ("workspace", "counters"),
        },
        exact=tuple(
            {name: Custom(partial(whole, share=share, signed=signed)) for name in ("a", "b")}
            for signed in (False, True)
        ),
        peer=partial(product, wide=False),
    )


def whole(shape: Any, dtype: Any, generator: Any, device: str, *, share: float, signed: bool) -> Any:
    """A fill of ones and zeros, or of both signs: a `share` of the elements is not zero."""
    import torch

    drawn = torch.rand(tuple(shape), generator=generator, device=device)
    ones = (drawn < share).to(dtype)
    return ones - 2 * (drawn < share / 2).to(dtype) if signed else ones


def load(target: str) -> Workload:
    """``gemm-source:MxNxK[/CONFIGURATION]``, extents also separated by commas.

    Raises:
        WorkloadError: no shape, or no configuration that can run it.
    """
    text, _, name = target.removeprefix(PREFIX).partition("/")
    try:
        return source_workload(Shape.parse(text.replace(",", "x")), names.parse(name) if name else None)
    except WorkloadError:
        raise
    except SassafrasError as error:
        raise WorkloadError(error.what, where=error.where or target, hint=error.hint) from error

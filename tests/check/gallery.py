"""Right and wrong workloads, small: ``gallery.py:NAME`` loads each in the interpreter's process too."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import triton
import triton.language as tl

from sassafras import suite
from sassafras.core import Buffer, Case, Custom, Tolerance, Uniform, Workload
from sassafras.frontend.cuda import workload as cuda_workload
from sassafras.frontend.triton import workload as triton_workload
from tests.suite.numerics import SMALL

ROOT = Path(__file__).parents[2]
FP32 = Tolerance(rtol=1e-5, atol=1e-6)
HALF = Tolerance(rtol=2e-3, atol=2e-3)


@triton.jit
def softmax_kernel(y, x, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    v = tl.load(x + row * n + cols, mask=cols < n, other=-float("inf"))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + row * n + cols, e / tl.sum(e, 0), mask=cols < n)


@triton.jit
def norm_kernel(y, rstd, x, w, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    v = tl.load(x + row * n + cols, mask=cols < n, other=0.0).to(tl.float32)
    r = tl.rsqrt(tl.sum(v * v, 0) / n + eps)
    tl.store(rstd + row, r)
    tl.store(y + row * n + cols, v * r * tl.load(w + cols, mask=cols < n), mask=cols < n)


@triton.jit
def axpy_kernel(y, x, a, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(y + i, mask=i < n) + a * tl.load(x + i, mask=i < n)
    tl.store(y + i, v, mask=i < n)


@triton.jit
def matmul_kernel(
    c, a, b, bias, K, am, ak, bk, bn, cm, cn, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    total = tl.zeros((BM, BN), tl.float32)
    for at in range(0, K, BK):
        left = tl.load(a + m[:, None] * am + (at + k)[None, :] * ak)
        total = tl.dot(left, tl.load(b + (at + k)[:, None] * bk + n[None, :] * bn), total)
    if bias is not None:
        total += tl.load(bias + n)[None, :]
    tl.store(c + m[:, None] * cm + n[None, :] * cn, total.to(tl.float16))


@triton.jit
def gather_kernel(y, table, index, n, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    row = tl.load(index + tl.program_id(0)).to(tl.int64)
    v = tl.load(table + row * n + cols, mask=cols < n)
    tl.store(y + tl.program_id(0) * n + cols, v, mask=cols < n)


@triton.jit
def sum_kernel(total, x, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(total, tl.sum(tl.load(x + i, mask=i < n, other=0.0), 0))


@triton.jit
def transpose_kernel(y, x, M, N, BLOCK: tl.constexpr):
    there = tl.make_block_ptr(
        x, (M, N), (N, 1), (tl.program_id(0) * BLOCK, tl.program_id(1) * BLOCK), (BLOCK, BLOCK), (1, 0)
    )
    here = tl.make_block_ptr(
        y, (N, M), (M, 1), (tl.program_id(1) * BLOCK, tl.program_id(0) * BLOCK), (BLOCK, BLOCK), (1, 0)
    )
    tl.store(here, tl.trans(tl.load(there, boundary_check=(0, 1))), boundary_check=(0, 1))


def _softmax(rows: int = 6, cols: int = 60) -> Workload:
    args = {"y": Buffer("fp32", (rows, cols), "out"), "x": Buffer("fp32", (rows, cols)), "n": cols}
    case = Case("c", (rows, 1, 1), args, {"BLOCK": 64})
    return triton_workload(
        softmax_kernel, [case], reference=lambda t: {"y": t["x"].double().softmax(-1)}, tolerance=FP32
    )


def _norm_reference(t: Any) -> dict[str, Any]:
    x = t["x"].double()
    r = (x.square().mean(-1) + t["eps"]).rsqrt()
    return {"rstd": r, "y": x * r[:, None] * t["w"].double()}


def _norm(dtype: str = "fp16", rows: int = 5) -> Workload:
    args = {
        "y": Buffer(dtype, (rows, 96), "out"), "rstd": Buffer("fp32", (rows,), "out"),
        "x": Buffer(dtype, (rows, 96)), "w": Buffer(dtype, (96,)), "n": 96, "eps": 1e-5,
    }  # fmt: skip
    case = Case("c", (rows, 1, 1), args, {"BLOCK": 128})
    return triton_workload(norm_kernel, [case], reference=_norm_reference, tolerance=HALF)


def _axpy(n: int = 500) -> Workload:
    args = {"y": Buffer("fp32", (n,), "inout"), "x": Buffer("fp32", (n,)), "a": 1.5, "n": n}
    case = Case("c", (-(-n // 128), 1, 1), args, {"BLOCK": 128})
    reference = lambda t: {"y": t["y"].double() + t["a"] * t["x"].double()}  # noqa: E731
    return triton_workload(axpy_kernel, [case], reference=reference, tolerance=FP32)


def _matmul(biased: bool = True) -> Workload:
    args: dict[str, Any] = {
        "c": Buffer("fp16", (64, 32), "out"), "a": Buffer("fp16", (64, 48)), "b": Buffer("fp16", (48, 32)),
        "K": 48, "am": 48, "ak": 1, "bk": 32, "bn": 1, "cm": 32, "cn": 1,
    }  # fmt: skip
    constants: dict[str, Any] = {"BM": 16, "BN": 16, "BK": 16}
    if biased:
        args["bias"] = Buffer("fp16", (32,))
    else:
        constants["bias"] = None

    def reference(t: Any) -> dict[str, Any]:
        return {"c": t["a"].double() @ t["b"].double() + (t["bias"].double() if biased else 0.0)}

    case = Case("c", (4, 2, 1), args, constants)
    return triton_workload(matmul_kernel, [case], reference=reference, tolerance=Tolerance(2e-3, 1e-2))


def _indices(shape: Any, dtype: Any, generator: Any, device: Any) -> Any:
    import torch

    return torch.randint(0, 20, shape, generator=generator).to(dtype)


def _gather() -> Workload:
    args = {
        "y": Buffer("fp32", (6, 32), "out"), "table": Buffer("fp32", (20, 32)),
        "index": Buffer("i32", (6,), fill=Custom(_indices)), "n": 32,
    }  # fmt: skip
    case = Case("c", (6, 1, 1), args, {"BLOCK": 32})
    return triton_workload(
        gather_kernel, [case], reference=lambda t: {"y": t["table"][t["index"].long()]}, tolerance=FP32
    )


def _sum() -> Workload:
    args = {"total": Buffer("fp32", (1,), "inout"), "x": Buffer("fp32", (300,), fill=Uniform(1, 2)), "n": 300}
    case = Case("c", (3, 1, 1), args, {"BLOCK": 128})
    reference = lambda t: {"total": t["total"].double() + t["x"].double().sum()}  # noqa: E731
    return triton_workload(sum_kernel, [case], reference=reference, tolerance=Tolerance(1e-5, 1e-5))


def _transpose() -> Workload:
    args = {"y": Buffer("fp32", (40, 24), "out"), "x": Buffer("fp32", (24, 40)), "M": 24, "N": 40}
    case = Case("c", (2, 3, 1), args, {"BLOCK": 16})
    return triton_workload(transpose_kernel, [case], reference=lambda t: {"y": t["x"].T}, tolerance=FP32)


def _of_suite(name: str) -> Workload:
    module = importlib.import_module("sassafras.suite." + name.removesuffix("_causal"))
    return replace(suite.load(name), cases=(module._case(*SMALL[name][0]),))


def _saxpy(**change: Any) -> Workload:
    """A CUDA source: nothing runs it without a GPU."""
    args = {"y": Buffer("fp32", (4096,), "inout"), "x": Buffer("fp32", (4096,)), "a": 1.5, "n": 4096}
    return cuda_workload(
        ROOT / "examples" / "saxpy.cu", [Case("c", (4, 1, 1), args | change)], threads=256, compiler="nvcc",
        reference=lambda t: {"y": t["y"].double() + t["a"] * t["x"].double()}, tolerance=FP32,
    )  # fmt: skip


#: right workloads that the wrong ones are made of
BASES: dict[str, Callable[[], Workload]] = {
    "softmax": _softmax, "norm": _norm, "axpy": _axpy, "matmul": _matmul, "gather": _gather, "sum": _sum,
    "transpose": _transpose,
}  # fmt: skip
RIGHT: dict[str, Callable[[], Workload]] = {
    **{f"suite_{name}": partial(_of_suite, name) for name in suite.names()},
    **{f"own_{name}": make for name, make in BASES.items()},
    "own_softmax_odd": partial(_softmax, 3, 33), "own_norm_fp32": partial(_norm, "fp32"),
    "own_norm_bf16": partial(_norm, "bf16"), "own_matmul_none": partial(_matmul, False),
    "own_axpy_whole": partial(_axpy, 512), "own_saxpy": _saxpy,
}  # fmt: skip


def changed(base: str, *, case: Any = None, **fields: Any) -> Workload:
    """A right workload with fields of it or, by `case`, of its case replaced; in ``args`` of single ones."""
    made = BASES[base]()
    mine = made.cases[0]
    if case:
        args = {**mine.args, **case.get("args", {})}
        constants = {**mine.constants, **case.get("constants", {})}
        mine = replace(mine, **{**case, "args": args, "constants": constants})
    return replace(made, cases=(mine,), **fields)


def buffer(base: str, name: str, **fields: Any) -> Workload:
    """A right workload with one buffer changed."""
    before = BASES[base]().cases[0].args[name]
    assert isinstance(before, Buffer)
    return changed(base, case={"args": {name: replace(before, **fields)}})


def _of_y_alone(t: Any) -> Any:
    return {"y": _norm_reference(t)["y"]}


def _broken(t: Any) -> Any:
    return {"y": t["input"].softmax(-1)}


#: name -> (how it is made, what must be named)
WRONG: dict[str, tuple[Callable[[], Workload], str]] = {
    "output_too_small": (lambda: buffer("softmax", "y", shape=(5, 60)), "y"),
    "input_too_small": (lambda: buffer("softmax", "x", shape=(5, 60)), "x"),
    "output_too_large": (lambda: buffer("matmul", "c", shape=(65, 32)), "c"),
    "weights_too_small": (lambda: buffer("norm", "w", shape=(80,)), "w"),
    "output_as_input": (lambda: buffer("norm", "rstd", role="in"), "rstd"),
    "nothing_is_output": (lambda: buffer("softmax", "y", role="in"), "role"),
    "input_as_output": (lambda: buffer("norm", "w", role="out"), "w"),
    "inout_as_output": (lambda: buffer("axpy", "y", role="out"), "y"),
    "input_as_inout": (lambda: buffer("matmul", "a", role="inout"), "a"),
    "atomic_as_output": (lambda: buffer("sum", "total", role="out"), "total"),
    "reference_is_another": (lambda: changed("softmax", reference=lambda t: {"y": t["x"].sigmoid()}), "y"),
    "reference_raises": (lambda: changed("softmax", reference=_broken), "reference"),
    "reference_returns_nothing": (lambda: changed("softmax", reference=lambda t: None), "reference"),
    "reference_returns_no_tensor": (
        lambda: changed("softmax", reference=lambda t: {"y": t["x"].softmax(-1).numpy()}), "reference",
    ),
    "reference_is_silent": (lambda: changed("norm", reference=_of_y_alone), "rstd"),
    "reference_of_no_output": (lambda: changed("softmax", reference=lambda t: {"z": t["x"]}), "reference"),
    "reference_is_transposed": (lambda: changed("transpose", reference=lambda t: {"y": t["x"]}), "reference"),
    "grid_too_small": (lambda: changed("transpose", case={"grid": (1, 3, 1)}), "y"),
    "grid_too_large": (lambda: changed("softmax", case={"grid": (7, 1, 1)}), "y"),
    "grid_half_idle": (lambda: changed("axpy", case={"grid": (8, 1, 1)}), "grid"),
    "grid_over_the_limit": (lambda: changed("softmax", case={"grid": (6, 70000, 1)}), "grid"),
    "output_of_integers": (lambda: buffer("softmax", "y", dtype="i32"), "y"),
    "output_of_half": (lambda: buffer("softmax", "y", dtype="fp16"), "y"),
    "index_anywhere": (lambda: buffer("gather", "index", fill=Uniform(0, 1000)), "table"),
    "tolerance_of_everything": (lambda: changed("softmax", tolerance=Tolerance(1e-3, 10.0)), "tolerance"),
    "tolerance_of_nothing": (lambda: changed("softmax", tolerance=Tolerance(0.0, 1e-12)), "y"),
    "tolerance_below_zero": (lambda: changed("softmax", tolerance=Tolerance(-1.0, 0.0)), "tolerance"),
    "block_too_small": (lambda: changed("softmax", case={"constants": {"BLOCK": 32}}), "y"),
    "stride_of_another": (lambda: changed("matmul", case={"args": {"bk": 48}}), "b"),
    "warps_not_a_power_of_two": (lambda: changed("axpy", case={"options": {"num_warps": 3}}), "compile"),
    "cuda_too_small": (lambda: _saxpy(x=Buffer("fp32", (2048,))), "reference"),
    "cuda_wrong_role": (lambda: _saxpy(x=Buffer("fp32", (4096,), "inout")), "bounds, roles, values"),
}  # fmt: skip


def by_script(seed: int) -> Workload:
    """A right workload with one field changed, drawn by `seed`: a size, role, grid, number or tolerance."""
    rng = np.random.default_rng(seed)
    base = list(BASES)[rng.integers(len(BASES))]
    made = BASES[base]()
    case = made.cases[0]
    buffers = {name: a for name, a in case.args.items() if isinstance(a, Buffer)}
    name = list(buffers)[rng.integers(len(buffers))]
    one = buffers[name]
    kind = ["size", "role", "grid", "number", "tolerance"][rng.integers(5)]
    if kind == "size":
        return buffer(base, name, shape=(one.shape[0] // 2 or 2, *one.shape[1:]))
    if kind == "role":
        return buffer(base, name, role=str(rng.choice([r for r in ("in", "out", "inout") if r != one.role])))
    if kind == "grid":
        axis = int(np.argmax(case.grid))
        grid = [n + int(rng.choice([-1, 1])) * (i == axis) for i, n in enumerate(case.grid)]
        return changed(base, case={"grid": tuple(grid)})
    if kind == "number":
        numbers = [n for n, a in case.args.items() if isinstance(a, int) and n not in ("ak", "bn", "cn")]
        which = numbers[rng.integers(len(numbers))]
        return changed(base, case={"args": {which: int(case.args[which]) // 2}})  # type: ignore[call-overload]
    factor = float(rng.choice([1e-9, 1e9]))
    return changed(base, tolerance=Tolerance(made.tolerance.rtol * factor, made.tolerance.atol * factor))


SEEDS = range(14)


def __getattr__(name: str) -> Any:
    """`sassafras.targets.load` asks for ``gallery.py:NAME``."""
    if name in RIGHT:
        return RIGHT[name]
    if name in WRONG:
        return WRONG[name][0]
    if name.startswith("seed_"):
        return partial(by_script, int(name.removeprefix("seed_")))
    raise AttributeError(name)

"""The Triton frontend compiles the variant that Triton's own JIT would select, without a GPU."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import triton
import triton.language as tl

from sassafras.core import Buffer, Case, CompileError, UnsupportedArch, WorkloadError
from sassafras.frontend.triton import leave_torch_out, workload
from sassafras.sass.cubin import Cubin
from sassafras.sass.tools import find
from sassafras.targets.load import variants


@triton.jit
def scale_kernel(y, x, n, a, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) * a, mask=i < n)


@triton.jit
def broken_kernel(y, BLOCK: tl.constexpr):
    tl.store(y + tl.arange(0, BLOCK), undefined_name)  # noqa: F821


def case(n: int, name: str | None = None, a: Any = 2.0, **options: Any) -> Case:
    size = max(min(abs(n), 1 << 16), 1)
    return Case(
        name=name or f"n{n}",
        grid=(1, 1, 1),
        args={"n": n, "y": Buffer("fp32", (size,), role="out"), "x": Buffer("fp32", (size,)), "a": a},
        constants={"BLOCK": 256},
        options=options,
    )


def one(item: Case, arch: str = "sm_90a") -> Any:
    return workload(scale_kernel, [item]).build(item, arch)


def test_arguments_come_in_the_kernels_order() -> None:
    assert list(workload(scale_kernel, [case(64)]).cases[0].args) == ["y", "x", "n", "a"]


@pytest.mark.parametrize(
    ("n", "parameter", "divisible"),
    [
        (64, ("n", "i32"), True),
        (65, ("n", "i32"), False),
        (1, None, False),  # becomes a constant, and is no parameter any more
        (1 << 31, ("n", "i64"), True),
        ((1 << 31) - 1, ("n", "i32"), False),
        (-16, ("n", "i32"), True),
    ],
)
def test_specialisation_follows_the_values(n: int, parameter: Any, divisible: bool) -> None:
    kernel = one(case(n))
    given = dict(kernel.parameters)
    assert (("n", given["n"]) if "n" in given else None) == parameter
    assert ("n" in kernel.meta["aligned_or_divisible_by_16"]) == divisible
    assert {"x", "y"} <= set(kernel.meta["aligned_or_divisible_by_16"])


def test_the_specialisation_is_what_tritons_own_jit_derives() -> None:
    """Against `JITFunction.run`, stopped where it would compile; a stand-in driver names the target."""
    script = """
import test_triton as t
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
class Stub:
    def get_current_target(self): return GPUTarget("cuda", 90, 32)
    def get_current_device(self): return 0
    def get_current_stream(self, device): return 0
driver.set_active(Stub())
class Tensor:
    dtype = "fp32"
    def data_ptr(self): return 4096
for n in (64, 65, 1, 1 << 31, 7 << 33, -3):
    seen = {}
    def stop(key, signature, device, constexprs, options, attrs, warmup):
        seen.update(signature=signature, constants=constexprs, attrs=attrs)
    t.scale_kernel._do_compile = stop
    t.scale_kernel.device_caches.clear()
    t.scale_kernel.run(Tensor(), Tensor(), n, 2.0, BLOCK=256, grid=(1,), warmup=False)
    builder = t.workload(t.scale_kernel, [t.case(n)]).build
    from sassafras.frontend.triton import _target
    signature, constants, attrs, options, _ = builder._bind(t.case(n), _target(90), "here")
    assert (signature, constants, attrs) == (seen["signature"], seen["constants"], seen["attrs"]), n
print("same")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "same", done.stderr


@pytest.mark.parametrize(
    ("arch", "actual"),
    [("sm_80", "sm_80"), ("sm_86", "sm_86"), ("sm_89", "sm_89"), ("sm_90", "sm_90a"), ("sm_100a", "sm_100a"),
     ("sm_120a", "sm_120a")],
)  # fmt: skip
def test_the_cubin_is_for_the_arch_named(arch: str, actual: str) -> None:
    kernel = one(case(64), arch)
    assert kernel.arch == actual
    cubin = Cubin.parse(kernel.cubin)
    assert f"sm_{cubin.sm}" == actual.removesuffix("a")
    assert kernel.name in cubin.entries


def test_launch_facts() -> None:
    kernel = one(case(64, num_warps=8))
    assert (kernel.threads, kernel.cluster, kernel.hidden_args, kernel.scratch_bytes) == (
        256,
        (1, 1, 1),
        2,
        0,
    )
    assert kernel.parameters == (("y", "*fp32"), ("x", "*fp32"), ("n", "i32"), ("a", "fp32"))
    assert kernel.meta["triton"] == triton.__version__


def test_clusters_count_as_their_blocks() -> None:
    made = workload(scale_kernel, [replace(case(64, num_ctas=2), grid=(3, 2, 1))])
    assert made.cases[0].grid == (6, 2, 1)
    assert made.build(made.cases[0], "sm_90a").cluster == (2, 1, 1)


def test_variants_group_cases_by_code() -> None:
    made = workload(scale_kernel, [case(64), case(128), case(65), case(67), case(1)])
    groups = [[c.name for c in cases] for _, cases in variants(made, "sm_90a")]
    assert groups == [["n64", "n128"], ["n65", "n67"], ["n1"]]


def test_another_ptxas_assembles_the_same_ptx() -> None:
    item = case(64)
    build = workload(scale_kernel, [item]).build
    bundled = find("ptxas")
    again = build(item, "sm_90a", ptxas=str(bundled.path))
    original = build(item, "sm_90a")
    text = f".text.{original.name}"

    def code(data: bytes) -> bytes:
        return next(s.data for s in Cubin.parse(data).sections if s.name == text)

    if again.meta["ptxas"] == original.meta["ptxas"]:
        assert code(again.cubin) == code(original.cubin)
    assert again.meta["ptx_hash"] == original.meta["ptx_hash"]


def test_another_ptxas_optimises_as_little_as_tritons_is_told_to() -> None:
    item = case(64)
    build = workload(scale_kernel, [item]).build
    tool = str(find("ptxas").path)
    with triton.knobs.nvidia.scope():
        triton.knobs.nvidia.disable_ptxas_opt = True
        debugged = build(item, "sm_90a"), build(item, "sm_90a", ptxas=tool)
    plain = build(item, "sm_90a")
    sizes = [Cubin.parse(k.cubin).entries[k.name].text.size for k in (*debugged, plain)]
    assert sizes[0] == sizes[1] > sizes[2]


FACTOR = tl.constexpr(3)


@triton.jit
def times_factor(value):
    return value * FACTOR


@triton.jit
def global_kernel(y):
    tl.store(y, times_factor(tl.load(y)))


def test_a_global_that_has_changed_since_the_kernel_was_compiled_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    item = Case("c", (1, 1, 1), {"y": Buffer("i32", (1,), role="inout")})
    build = workload(global_kernel, [item]).build
    before = build(item, "sm_90a")
    monkeypatch.setitem(globals(), "FACTOR", tl.constexpr(5))
    for again in (build, workload(global_kernel, [item]).build):
        with pytest.raises(WorkloadError, match=r"'FACTOR' has changed from .*3.* to .*5"):
            again(item, "sm_90a")
    monkeypatch.undo()
    assert build(item, "sm_90a").digest == before.digest


def test_heuristics_are_honoured_and_autotune_is_unwrapped() -> None:
    @triton.autotune(configs=[triton.Config({}, num_warps=4)], key=["n"])
    @triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
    @triton.jit
    def hinted(y, n, EVEN: tl.constexpr, BLOCK: tl.constexpr):
        i = tl.arange(0, BLOCK)
        if EVEN:
            tl.store(y + i, 1.0)
        else:
            tl.store(y + i, 1.0, mask=i < n)

    def item(n: int) -> Case:
        buffer = Buffer("fp32", (n,), role="out")
        return Case(f"n{n}", (1, 1, 1), {"y": buffer, "n": n}, {"BLOCK": 256})

    made = workload(hinted, [item(256), item(240)])
    assert [made.build(c, "sm_90a").meta["constants"]["EVEN"] for c in made.cases] == [True, False]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"args": {}}, "no value for parameter 'y'"),
        ({"constants": {}}, "no value for parameter 'BLOCK'"),
        ({"constants": {"BLOCK": 256, "WIDTH": 3}}, "no parameter 'WIDTH'.*y, x, n, a, BLOCK"),
        ({"constants": {"BLOCK": 256, "n": 3}}, "'n' is given both"),
        ({"constants": {}, "args": {**case(64).args, "BLOCK": 256}}, "'BLOCK' is a tl.constexpr"),
    ],
)
def test_arguments_that_do_not_fit_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        workload(scale_kernel, [replace(case(64), **change)])


def test_errors_of_building() -> None:
    item = case(64)
    made = workload(scale_kernel, [item])
    with pytest.raises(UnsupportedArch, match=r"sm_75.*sm_80"):
        made.build(item, "sm_75")
    with pytest.raises(WorkloadError, match="warps"):
        made.build(case(64, warps=4), "sm_90a")
    with pytest.raises(WorkloadError, match="launch_pdl"):
        made.build(case(64, launch_pdl=True), "sm_90a")
    with pytest.raises(WorkloadError, match=r"expected a @triton\.jit function, got function"):
        workload(case, [item])
    bad = Case("b", (1, 1, 1), {"y": Buffer("fp32", (16,), role="out")}, {"BLOCK": 16})
    with pytest.raises(CompileError, match="undefined_name"):
        workload(broken_kernel, [bad]).build(bad, "sm_90a")


@triton.autotune(
    [triton.Config({"BLOCK": 128}, num_warps=2), triton.Config({"BLOCK": 256}, num_warps=4, num_stages=5)],
    key=["n"],
)
@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def tuned_kernel(y, x, n, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=(i < n) | EVEN), mask=(i < n) | EVEN)


def test_grids_are_taken_as_triton_takes_them() -> None:
    args = {"y": Buffer("fp32", (1000,), "out"), "x": Buffer("fp32", (1000,)), "n": 1000}

    def grid(meta: Any) -> tuple[int, ...]:
        assert meta["x"].numel() == 1000 and meta["EVEN"] is False
        return (triton.cdiv(meta["n"], meta["BLOCK"]),)

    short = Case("c", (80,), args, {"BLOCK": 128})  # type: ignore[arg-type]
    assert short.grid == (80, 1, 1)
    asked = Case("c", grid, args, {"BLOCK": 128}, {"num_ctas": 2})  # type: ignore[arg-type]
    assert workload(tuned_kernel, [asked]).cases[0].grid == (16, 1, 1)  # blocks
    for bad in ((), (0,), (1, 2, 3, 4), "80", (1.5,)):
        with pytest.raises(WorkloadError, match="case c: grid is one to three positive whole numbers"):
            Case("c", bad, args)  # type: ignore[arg-type]
    with pytest.raises(WorkloadError, match="case c: the grid's function raised KeyError: 'BLOK'"):
        workload(tuned_kernel, [replace(asked, grid=lambda meta: (meta["BLOK"],))])  # type: ignore[arg-type]


def test_an_open_case_of_an_autotuned_kernel_is_one_for_each_configuration() -> None:
    args = {"y": Buffer("fp32", (1024,), "out"), "x": Buffer("fp32", (1024,)), "n": 1024}
    grid: Any = lambda meta: (triton.cdiv(1024, meta["BLOCK"]),)  # noqa: E731
    made = workload(tuned_kernel, [Case("c", grid, args), Case("d", grid, args, {"BLOCK": 512})])
    assert [(c.name, c.grid[0]) for c in made.cases] == [
        ("c-BLOCK128-w2-s3", 8), ("c-BLOCK256-w4-s5", 4), ("d", 2),
    ]  # fmt: skip
    assert [c.options.get("num_stages") for c in made.cases] == [3, 5, None]
    assert made.build(made.cases[0], "sm_90a").threads == 64


def test_torch_is_left_out_whatever_triton_does_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """3.8 imports it never, and takes the None that stands there for it."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    seen: list[Any] = []

    def of_3_8(value: Any) -> str:
        seen.append(sys.modules["torch"])
        return str(seen[-1].Tensor)

    monkeypatch.setattr("triton.runtime.jit.mangle_type", of_3_8)
    leave_torch_out()
    assert seen == [None] and "torch" not in sys.modules

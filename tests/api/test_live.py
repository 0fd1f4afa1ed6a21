"""A call that works is a workload: nothing is written by hand, and without a GPU nothing is launched."""

from __future__ import annotations

import os
import runpy
from pathlib import Path
from typing import Any

import pytest
import triton
import triton.language as tl

import sassafras
from sassafras.core import Buffer, Case, SassafrasError, WorkloadError
from sassafras.cuda.environment import available
from sassafras.frontend import ptx
from sassafras.frontend._ptxas import ptxas_version
from sassafras.frontend.ptxas_options import PtxasOptions
from sassafras.frontend.ptxas_options import available as ptxas_programs
from sassafras.frontend.triton import workload as triton_workload

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(available()[0], reason="with a GPU the calls would be launched")
N = 1 << 12


@triton.jit
def scale(y, x, n, a, bias, seed=0, BLOCK: tl.constexpr = 256):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n) * a
    if bias is not None:
        v += tl.load(bias + i, mask=i < n)
    tl.store(y + i, v, mask=i < n)


@triton.autotune([triton.Config({"BLOCK": b}, num_warps=w) for b, w in ((256, 4), (512, 8))], key=["n"])
@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def tuned(y, x, n, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=(i < n) | EVEN) + 1, mask=(i < n) | EVEN)


@triton.jit
def described(desc, y, BLOCK: tl.constexpr):
    tl.store(y + tl.arange(0, BLOCK), desc.load([0]))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SASSAFRAS_STORE", str(tmp_path / "store.sqlite"))
    return tmp_path


def tensors() -> tuple[Any, Any]:
    return torch.zeros(N), torch.randn(N)


def grid(meta: Any) -> tuple[int, ...]:
    return (triton.cdiv(N, meta["BLOCK"]),)


def test_one_line_from_a_launch_to_a_result(home: Path) -> None:
    y, x = tensors()
    result = sassafras.optimize(scale[(16,)], y, x, N, 2.0, None, BLOCK=256, num_warps=4, budget="3e")
    assert result.modelled and result.workload.startswith("scale-") and result.evaluations == 3
    assert not y.any(), "nothing may be launched"
    again = sassafras.optimize(scale[(16,)], y, x, N, 2.0, None, BLOCK=256, num_warps=4, budget="3e")
    assert again.from_store
    assert len(list((home / "calls").iterdir())) == 1


def test_a_damaged_recording_is_made_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    y, x = tensors()
    for damage in ("captured.json", "*.cubin"):
        workload = sassafras.workload_of(lambda: scale[grid](y, x, N, 2.0, None))
        (path,) = Path(str(workload.source).rpartition(":")[0]).parent.glob(damage)
        path.write_bytes(path.read_bytes()[:100])
        workload = sassafras.workload_of(lambda: scale[grid](y, x, N, 2.0, None))
        assert workload.build(workload.case(), "sm_90a").cubin
    monkeypatch.setenv("SASSAFRAS_STORE", "/dev/null/folder/store.sqlite")
    with pytest.raises(WorkloadError, match="cannot keep the recorded call: Not a directory"):
        sassafras.workload_of(lambda: scale[grid](y, x, N, 2.0, None))


def test_a_recorded_launch_carries_its_ptx(home: Path) -> None:
    y, x = tensors()
    found = sassafras.workload_of(lambda: scale[grid](y, x, N, 2.0, None))
    space = ptx.of(found, found.case(), "sm_90a")
    assert space.own_version in {ptxas_version(path) for path in ptxas_programs()}
    start = space.build(space.start())
    assert start.kernel.cubin == found.build(found.case(), "sm_90a").cubin
    other = space.build(ptx.PtxState(PtxasOptions(load_cache="cs")))
    assert other.digest != start.digest and not other.recipe["rewrites"]
    assert ptx.of(found, found.case(), "sm_90a", []).own_version == space.own_version, "Triton's own is known"
    kept = next(home.rglob("*.ptx"))
    kept.write_text(kept.read_text().replace("mul.f32", "add.f32"))
    with pytest.raises(SassafrasError, match="no ptxas here makes this cubin"):
        ptx.of(found, found.case(), "sm_90a", [])
    kept.unlink()  # as of captures of earlier versions
    with pytest.raises(WorkloadError, match="the capture holds no PTX"):
        ptx.of(found, found.case(), "sm_90a")


def test_it_is_the_variant_that_a_workload_by_hand_compiles() -> None:
    y, x = tensors()
    made = sassafras.workload_of(lambda: scale[grid](y, x, N, 2.0, None, BLOCK=512, num_warps=8))
    case = made.case()
    assert case.grid == (8, 1, 1) and (case.args["n"], case.args["a"]) == (N, 2.0)
    roles = {name: a.role for name, a in case.args.items() if isinstance(a, Buffer)}
    assert roles == {"y": "out", "x": "in"}
    args = {"y": Buffer("fp32", (N,), "out"), "x": Buffer("fp32", (N,)), "n": N, "a": 2.0}
    by_hand = Case("c", (8,), args, {"bias": None, "BLOCK": 512}, {"num_warps": 8})  # type: ignore[arg-type]
    other = triton_workload(scale, [by_hand])
    mine, theirs = (w.build(w.case(), "sm_90a") for w in (made, other))
    assert mine.digest == theirs.digest and mine.parameters == theirs.parameters
    assert sassafras.load(str(made.source)).case() == case


def test_a_wrapper_may_ask_torch_about_the_gpu() -> None:
    y, x = tensors()

    def wrapper() -> None:
        with torch.cuda.device(x.device.index), torch.cuda.device(x.device):
            assert torch.cuda.get_device_capability() == (9, 0)
            processors = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
            scale[(min(16, processors),)](y, x, N, 2.0, None, BLOCK=256)

    before = torch.cuda.current_device
    assert sassafras.workload_of(wrapper).case().grid == (16, 1, 1)
    assert torch.cuda.current_device is before


def test_a_call_may_hold_what_torch_compiles() -> None:
    """Inductor asks for the GPU's name, even where it compiles for the CPU."""
    y, x = tensors()
    twice = torch.compile(lambda t: t.exp() * 2)
    found = sassafras.workload_of(lambda: scale[grid](y, twice(x), N, 2.0, None))
    assert found.name.startswith("scale-") and not y.any()


def test_all_configurations_in_one_table() -> None:
    y, x = tensors()
    found = sassafras.workloads_of(lambda: tuned[grid](y, x, N))
    assert sorted(w.case().grid[0] for w in found) == [8, 16]
    assert tuned.cache == {}, "times that were not measured must not choose"
    results = sassafras.optimize_all(found, budget="2e", store=False)
    assert len(results.results) == 2 and not results.failures
    assert results.summary().splitlines()[0].split() == ["kernel", "case", "baseline", "ratio"]
    assert all(w.name in results.summary() for w in found)
    assert len(sassafras.workloads_of(lambda: tuned[grid](y, x, N), configurations=False)) == 1


def test_an_error_of_one_does_not_stop_the_others() -> None:
    y, x = tensors()
    good = sassafras.workload_of(lambda: scale[grid](y, x, N, 2.0, x, BLOCK=256))
    args = {"y": Buffer("fp32", (9,), "out"), "x": Buffer("fp32", (9,)), "bias": Buffer("fp32", (9,))}
    bad = triton_workload(scale, [Case("c", (1, 1, 1), args | {"n": 9, "a": 1.0}, {}, {"num_warps": 3})])
    results = sassafras.optimize_all([bad, good], budget="2e", store=False)
    assert [one.workload for one in results.results] == [good.name]
    assert "num_warps must be a power of 2" in results.failures[0][2]
    assert results.summary().splitlines()[-1].split()[:2] == ["scale", "c"]


def test_calls_that_are_no_workload_say_why() -> None:
    y, x = tensors()

    def both() -> None:
        scale[grid](y, x, N, 2.0, None, BLOCK=256)
        tuned[grid](y, x, N)

    with pytest.raises(WorkloadError, match=r"launches 2 kernels: .*kernel='\w+' chooses one"):
        sassafras.workload_of(both)
    assert sassafras.workload_of(both, kernel="scale").name.startswith("scale-")
    with pytest.raises(WorkloadError, match="launches no Triton kernel"):
        sassafras.workload_of(lambda: x + 1)
    with pytest.raises(WorkloadError, match=r"test_live.py:\d+: the call raised RuntimeError"):
        sassafras.workload_of(lambda: x.cuda() if torch.version.cuda else _no_gpu())
    with pytest.raises(WorkloadError, match=r"^the call raised TypeError: the kernel missing .* 'bias'$"):
        sassafras.optimize(scale[(16,)], y, x, N, 2.0)
    with pytest.raises(WorkloadError, match="has no grid"):
        sassafras.optimize(scale, y, x, N)
    with pytest.raises(WorkloadError, match="'seed' is a parameter of the kernel and an option"):
        sassafras.optimize(scale[(16,)], y, x, N, 2.0, None, seed=3)
    with pytest.raises(TypeError, match="takes no budgett"):
        sassafras.optimize("suite:softmax", budgett="3s")
    with pytest.warns(RuntimeWarning, match="then raised ZeroDivisionError"):
        sassafras.workload_of(lambda: (scale[grid](y, x, N, 2.0, None, BLOCK=256), 1 // 0))


def _no_gpu() -> None:
    raise RuntimeError("no GPU")


def test_the_line_that_failed_is_the_callers(tmp_path: Path) -> None:
    """Not one of torch's, and also in a checkout, whose folder has the project's name."""
    (folder := tmp_path / "sassafras").mkdir()
    (folder / "mine.py").write_text("import torch\n\n\ndef call(x):\n    torch.nn.Linear(3, 3)(x)\n")
    call = runpy.run_path(str(folder / "mine.py"))["call"]
    with pytest.raises(WorkloadError, match=r"mine.py:5: the call raised RuntimeError"):
        sassafras.workload_of(lambda: call(torch.zeros(N)))


def test_what_cannot_be_launched_again_is_named() -> None:
    from triton.tools.tensor_descriptor import TensorDescriptor

    y, x = tensors()
    with pytest.raises(SassafrasError, match=r"'desc' is a tensor descriptor .*tl.make_tensor_descriptor"):
        sassafras.workload_of(lambda: described[(1,)](TensorDescriptor.from_tensor(x, [256]), y, BLOCK=256))


def test_triton_is_left_as_it_was() -> None:
    import triton.testing
    from triton.runtime import driver
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    before = (JITFunction.run, Autotuner.run, Autotuner._bench, triton.testing.do_bench, driver._active)
    y, x = tensors()
    sassafras.workload_of(lambda: tuned[grid](y, x, N))
    assert before == (
        JITFunction.run, Autotuner.run, Autotuner._bench, triton.testing.do_bench, driver._active
    )  # fmt: skip
    assert "TRITON_INTERPRET" not in os.environ
    assert not tuned.fn.fn.device_caches, "deployment would take them for kernels that are loaded"

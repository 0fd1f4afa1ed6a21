"""What Inductor's programs call for our operators, and what it times (sassafras.external_matmul)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
settings = pytest.importorskip("torch._inductor.config")

import sassafras  # noqa: E402
from sassafras.gemm.configs import names  # noqa: E402
from sassafras.gemm.matmul import api as room  # noqa: E402
from sassafras.gemm.problem.shape import Shape  # noqa: E402
from sassafras.gemm.select.table import TableRow, TunedTable  # noqa: E402
from tests.gemm.test_matmul_fused import (  # noqa: E402
    Install,
    cache,
    close,
    half,
    install,
    launches,
    library,
)

__all__ = ["cache", "install", "library"]  # fixtures


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("ours", [True, False])
def test_programs_call_the_launcher(install: Install, library: Path, ours: bool) -> None:
    """Past the dispatcher, into memory of Inductor's; where torch serves likewise."""
    from torch._inductor.utils import run_and_get_code

    slow = ((names.parse("small_tn_m1n2s2/w1x1x1/c1"), 1e3),)
    shapes = [Shape(m, *rest) for m in (9, 34) for rest in ((48, 64), (64, 48))]
    torchs = TunedTable({"gpu": "NVIDIA H200"}, [TableRow(s, "tn", slow, 1.0) for s in shapes])
    install("compiled", table=torchs).everything = ours
    network = torch.nn.Sequential(torch.nn.Linear(64, 48), torch.nn.Linear(48, 64, bias=False)).half()
    inputs, before = (half(2, 17, 64), half(9, 64)), launches(library)
    with torch.no_grad():
        wanted = [network(x).double() for x in inputs]
        compiled = torch.compile(sassafras.accelerate(network), fullgraph=True, dynamic=False)
        for x, right in zip(inputs, wanted, strict=True):
            result, (code, *_) = run_and_get_code(compiled, x)
            called = re.findall(r"torch\.ops\.sassafras\.\S+?\(", code)
            assert called == ["torch.ops.sassafras.fused.into(", "torch.ops.sassafras.mm.into("]
            assert close(result, right) and result.shape == right.shape
    assert launches(library) == before + 4 * ours, room.status()["problems"]


def test_calls_with_more_go_through_the_dispatcher(install: Install, library: Path) -> None:
    install("compiled").everything = True
    x, weight, bias, residual = half(16, 64), half(48, 64), half(48), half(16, 48)
    compiled, before = torch.compile(sassafras.linear, fullgraph=True), launches(library)
    added = compiled(x, weight, bias, None, residual)
    assert close(added, x.double() @ weight.double().t() + bias.double() + residual.double())
    assert close(compiled(x, weight, None, "relu"), (x.double() @ weight.double().t()).relu())
    assert launches(library) == before + 2


def test_compiled_training(install: Install, library: Path) -> None:
    install("compiled").everything = True
    layer, x = torch.nn.Linear(64, 48, bias=False).half(), half(16, 64).requires_grad_()
    grad, before = half(16, 48, seed=3), launches(library)
    torch.compile(sassafras.accelerate(layer), fullgraph=True)(x).backward(grad)
    assert launches(library) == before + 3
    assert close(x.grad, grad.double() @ layer.weight.detach().double())
    assert close(layer.weight.grad, grad.double().t() @ x.detach().double())


@pytest.mark.parametrize("backends", ["ATEN", ""])
def test_inductor_times_ours(install: Install, library: Path, backends: str) -> None:
    """Beside torch's kernel, and alone."""
    import torch._inductor.config as settings

    engine = install("compiled")
    engine.everything = True
    layer, x, before = torch.nn.Linear(64, 48, bias=False).half(), half(32, 64), launches(library)
    options = {"max_autotune": True, "max_autotune_gemm_backends": backends, "fx_graph_cache": False}
    with torch.no_grad(), settings.patch(external_matmul=[sassafras.external_matmul]):
        compiled = torch.compile(layer, fullgraph=True, options=options)
        assert close(compiled(x), x.double() @ layer.weight.double().t())
        timed = launches(library) - before
        compiled(x)
    assert timed > 10 if backends else launches(library) == before + 2


def test_what_no_kernel_serves_is_torchs(install: Install, library: Path) -> None:
    install()
    a, b, before = torch.randn(4, 8), torch.randn(8, 6), launches(library)
    out = torch.empty(4, 6)
    sassafras.external_matmul(a, b, out)
    assert torch.equal(out, a @ b) and launches(library) == before


@pytest.mark.skipif(not hasattr(settings.triton, "enable_pdl"), reason="this torch has none")
def test_kernels_that_end_without_waiting_have_no_launch_of_ours_behind(
    install: Install, library: Path
) -> None:
    """Products, biases, activations and gradients; whichever pass was set since the first trace."""
    install("compiled")
    torch.ops.sassafras.mm(torch.empty(8, 8, device="meta"), torch.empty(8, 8, device="meta"))
    network = torch.nn.Sequential(
        torch.nn.Linear(64, 48), torch.nn.GELU(), torch.nn.Linear(48, 64, bias=False)
    ).half()
    x, before = half(2, 17, 64).requires_grad_(), launches(library)
    wanted = network(x)
    (slope,) = torch.autograd.grad(wanted.float().sum(), x)
    compiled = torch.compile(sassafras.accelerate(network), fullgraph=True, dynamic=False)
    with (
        settings.patch({"triton.enable_pdl": True, "post_grad_custom_pre_pass": None}),
        pytest.warns(RuntimeWarning, match="enable_pdl"),
    ):
        result = compiled(x)
        (found,) = torch.autograd.grad(result.float().sum(), x)
    assert close(result, wanted.double()) and close(found, slope.double())
    assert launches(library) == before

    def times(a: Any, b: Any) -> Any:
        return sassafras.matmul(a, b, activation="gelu_tanh", alpha=0.5)

    a, b = half(3, 9, 64), half(64, 48)
    with settings.patch({"triton.enable_pdl": True}):
        assert close(torch.compile(times)(a, b), times(a, b).double())
        c = torch.empty(9, 48, dtype=a.dtype)
        sassafras.external_matmul(a[0], b, c)
        assert close(c, a[0].double() @ b.double())
    assert launches(library) == before + 1, "the eager call"

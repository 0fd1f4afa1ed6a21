"""sassafras.linear on host memory: the driver's stand-in computes what our kernels are told to."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from sassafras.core import SassafrasError  # noqa: E402
from sassafras.gemm.configs import names  # noqa: E402
from sassafras.gemm.configs.epilogue import ACTIVATIONS  # noqa: E402
from sassafras.gemm.matmul import api as room  # noqa: E402
from sassafras.gemm.matmul.composed import activated  # noqa: E402
from sassafras.gemm.matmul.linear import linear  # noqa: E402
from sassafras.gemm.matmul.planner import Planner  # noqa: E402
from sassafras.gemm.problem.shape import Shape  # noqa: E402
from sassafras.gemm.select.selector import Choice  # noqa: E402
from sassafras.gemm.select.table import TableRow, TunedTable  # noqa: E402
from tests.gemm import stand_in  # noqa: E402
from tests.gemm.test_matmul_fused import (  # noqa: E402
    Install,
    cache,
    close,
    engine,
    half,
    install,
    launches,
    library,
)

__all__ = ["cache", "engine", "install", "library"]  # fixtures
functional = torch.nn.functional
DTYPES = (torch.float16, torch.bfloat16)


def exact(x: Any, weight: Any, bias: Any = None, activation: Any = None, residual: Any = None) -> Any:
    value = x.double() @ weight.double().t()
    value = value if bias is None else value + bias.double()
    return activated(value if residual is None else value + residual.double(), activation)


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_launch_with_the_residual_read_where_it_lies(engine: Planner, library: Path, dtype: Any) -> None:
    before, calls = launches(library), 0
    weight, bias = half(48, 64, dtype=dtype), half(48, seed=1, dtype=dtype)
    for leading in ((32,), (2, 3, 5), (1,), (1, 1)):
        x, residual = half(*leading, 64, dtype=dtype), half(*leading, 48, seed=2, dtype=dtype)
        kept = residual.clone()
        for number, activation in enumerate(ACTIVATIONS):
            given = bias if number % 2 else None
            result = linear(x, weight, given, activation, residual)
            assert close(result, exact(x, weight, given, activation, residual))
            assert result.dtype == dtype and result.is_contiguous()
            assert close(linear(x, weight, bias, activation), exact(x, weight, bias, activation))
            calls += 2
        assert torch.equal(residual, kept) and launches(library) == before + calls, room.status()["problems"]
    assert {s["member"] for s in room.status()["problems"]} == {"ours"}


def test_a_linear_and_its_product_share_a_plan(engine: Planner) -> None:
    x, weight, bias, out = half(32, 64), half(48, 64), half(48), half(32, 48, seed=3)
    first = room.matmul(x, weight.t(), bias=bias)
    assert torch.equal(linear(x, weight, bias), first)
    added = room.matmul(x, weight.t(), out.clone(), bias=bias, beta=1.0)
    assert torch.equal(linear(x, weight, bias, residual=out), added)
    assert engine.launcher.counts()["plans"] == 2 and len(room.status()["problems"]) == 2


def test_shapes_of_inputs(engine: Planner, library: Path) -> None:
    weight, bias, before = half(48, 64), half(48), launches(library)
    wide = half(4, 8, 128)[:, :, :64]
    one, apart = half(64), half(4, 16, 64)[:, :8]
    for x in (wide, one, apart):
        assert close(linear(x, weight, bias, "silu"), exact(x, weight, bias, "silu"))
    assert close(linear(one, weight, residual=bias), exact(one, weight, None, None, bias))
    gaps = half(48, 128)[:, :64]
    assert close(linear(wide, gaps, bias), exact(wide, gaps, bias))
    assert launches(library) == before + 5, room.status()["problems"]


def test_what_no_kernel_reads_is_torchs(engine: Planner, library: Path) -> None:
    before, weight, bias = launches(library), half(48, 64), half(48)
    x = half(32, 64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for residual in (half(48, 32).t(), half(32, 96)[:, ::2], half(1, 48).expand(32, 48)):
            assert close(linear(x, weight, bias, None, residual), exact(x, weight, bias, None, residual))
        columns = half(64, 32).t()
        assert torch.equal(linear(columns, weight, bias), functional.linear(columns, weight, bias))
        assert torch.equal(linear(x[:0], weight, bias), functional.linear(x[:0], weight, bias))
        for given in (bias[:1], half(32, 48)):  # torch broadcasts
            assert torch.equal(linear(x, weight, given), functional.linear(x, weight, given))
        wider = linear(x, weight, residual=torch.randn(32, 48))
        assert wider.dtype == torch.float32, "as a sum of both types"
        assert torch.equal(linear(x, weight[0]), functional.linear(x, weight[0]))
    assert launches(library) == before


def test_unfit_residuals_are_said_once(install: Install) -> None:
    install()
    x, weight = half(32, 64), half(48, 64)
    with pytest.warns(RuntimeWarning, match="not rows at equal distances"):
        linear(x, weight, residual=half(48, 32).t())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        linear(x, weight, residual=half(48, 32).t())


@pytest.mark.parametrize("launcher", ["compiled", "python"])
def test_known_to_be_torchs(launcher: str, install: Install, library: Path) -> None:
    """One function of torch where one does it all, which records its own gradients."""
    far = TableRow(Shape(15, 48, 64), "tn", ((names.parse("small_tn_m1n2s2/w1x1x1/c1"), 1e3),), 1.0)
    engine = install(launcher, table=TunedTable({"gpu": "NVIDIA H200"}, [far]))
    x, weight, bias, residual = half(3, 5, 64), half(48, 64), half(48), half(3, 5, 48)
    before = launches(library)
    for _ in range(2):
        assert torch.equal(linear(x, weight), functional.linear(x, weight))
        assert torch.equal(linear(x, weight, bias), functional.linear(x, weight, bias))
        added = linear(x, weight, bias, "relu", residual)
        assert torch.equal(added, functional.relu(functional.linear(x, weight, bias) + residual))
    assert launches(library) == before and engine.launcher.counts()["hits"] >= 3
    assert engine.launcher.linear(x, weight, bias, residual, 1) is None
    result = linear(x.requires_grad_(), weight, bias)
    assert type(result.grad_fn).__name__ not in ("LinearBackward", "RecordedBackward")
    assert engine.launcher.linear(x, weight, bias, residual, 1) is NotImplemented
    for activation, added in ((None, residual), ("relu", residual), ("relu", None)):
        for _ in range(2):  # the second time torch is known to serve it
            got = linear(x, weight, bias, activation, added)
            plain = functional.linear(x, weight, bias)
            wanted = activated(plain if added is None else plain + added, activation)
            assert torch.equal(got, wanted) and got.requires_grad


def test_bad_input(engine: Planner) -> None:
    x, weight, bias = half(32, 64), half(48, 64), half(48)
    with pytest.raises(SassafrasError, match="no activation 'tanh'"):
        linear(x, weight, bias, "tanh")
    with pytest.raises(SassafrasError, match=r"residual is \(48,\), the result \(32, 48\)"):
        linear(x, weight, bias, residual=bias)
    for bad in ((half(32, 63), weight), (x, weight, half(47)), (x, weight.float()), (x, half(2, 48, 64))):
        with pytest.raises(RuntimeError) as ours:
            linear(*bad)
        with pytest.raises(RuntimeError) as torchs:
            functional.linear(*bad)
        assert str(ours.value) == str(torchs.value)
    with pytest.raises(TypeError):
        linear(x, None)
    with pytest.raises(TypeError, match="activation"):
        engine.launcher.linear(x, weight)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients(engine: Planner, library: Path, activation: str | None) -> None:
    inputs = [half(4, 8, 64), half(48, 64), half(48, seed=1), half(4, 8, 48, seed=2)]
    ours = [t.clone().requires_grad_() for t in inputs]
    torchs = [t.double().requires_grad_() for t in inputs]
    before = launches(library)
    result = linear(ours[0], ours[1], ours[2], activation, ours[3])
    assert result.requires_grad and launches(library) == before + 1
    grad = half(4, 8, 48, seed=3)
    result.backward(grad)
    exact(torchs[0], torchs[1], torchs[2], activation, torchs[3]).backward(grad.double())
    for mine, other in zip(ours, torchs, strict=True):
        scale = float(other.grad.abs().max())
        assert mine.grad.shape == other.grad.shape
        assert float((mine.grad.double() - other.grad).abs().max()) <= 0.02 * scale


@pytest.mark.parametrize("activation", [None, "relu", "silu"])
def test_gradients_of_gradients(engine: Planner, activation: str | None) -> None:
    shapes = ((4, 8, 64), (48, 64), (48,), (4, 8, 48))
    ours = [(half(*s, seed=n) / 8).requires_grad_() for n, s in enumerate(shapes)]
    torchs = [t.detach().double().requires_grad_() for t in ours]
    found = []
    for inputs, call in ((ours, linear), (torchs, exact)):
        x, weight, bias, residual = inputs
        result = call(x, weight, bias, activation, residual)
        first = torch.autograd.grad(result.square().sum(), (x, weight), create_graph=True)
        found.append(torch.autograd.grad(sum(g.square().sum() for g in first), inputs))
    for mine, other in zip(*found, strict=True):
        assert float((mine.double() - other).abs().max()) <= 0.03 * float(other.abs().max())


def test_what_backward_keeps(engine: Planner) -> None:
    x, weight = half(32, 64).requires_grad_(), half(48, 64).requires_grad_()
    linear(x, weight)  # the first call makes the plan
    result = linear(x, weight)
    assert type(result.grad_fn).__name__ == "LinearBackward"
    with torch.no_grad():
        weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()
    frozen = linear(x, weight.detach())
    x.data.mul_(2)
    frozen.sum().backward()
    assert x.grad.is_contiguous() and weight.grad is None
    linear(x.detach(), weight).sum().backward()
    assert weight.grad.is_contiguous() and weight.grad.shape == weight.shape


@pytest.mark.parametrize("member", ["ours", "torch"])
@pytest.mark.parametrize("activation", [None, "relu", "gelu", "swiglu"])
def test_a_checkpoint_keeps_the_same_twice(
    engine: Planner, monkeypatch: pytest.MonkeyPatch, activation: str | None, member: str
) -> None:
    """The plan is made, for a kernel or for torch, while it runs for the first time."""
    from torch.utils.checkpoint import checkpoint

    if member == "torch":
        choice = Choice("torch", None, None, 1.0, "asked for")
        monkeypatch.setattr(engine, "choose", lambda problem: choice)
    for leading in ((32,), (4, 8), (1,)):
        for bias in (None, half(48, seed=1).requires_grad_()):
            x, weight = half(*leading, 64).requires_grad_(), half(48, 64).requires_grad_()
            engine.forget()
            for _ in range(3):
                result = checkpoint(linear, x, weight, bias, activation, use_reentrant=False)
                result.sum().backward()
            (wanted,) = torch.autograd.grad(linear(x, weight, bias, activation).sum(), weight)
            assert float((weight.grad - 3 * wanted).abs().max()) <= 0.02 * float(weight.grad.abs().max())


@pytest.mark.parametrize("activation", ["none", "relu", "gelu", "silu"])
def test_the_operators_formula(activation: str) -> None:
    """First derivatives against differences, and vmap over the residual, in FP64 (torch serves there)."""
    shapes = ((2, 3, 4), (4, 2), (2,), (2, 3, 2))
    inputs = [half(*s, seed=n, dtype=torch.float64).requires_grad_() for n, s in enumerate(shapes)]

    def call(x: Any, y: Any, bias: Any, residual: Any) -> Any:
        return torch.ops.sassafras.fused.default(x, y, bias, activation, 0.5, residual)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert torch.autograd.gradcheck(call, inputs)
        many = half(5, 2, 3, 2, seed=9, dtype=torch.float64)
        x, y, bias = (t.detach() for t in inputs[:3])
        each = torch.stack([call(x, y, bias, one) for one in many])
        mapped = torch.func.vmap(lambda one: call(x, y, bias, one))(many)
    assert torch.allclose(mapped, each)


@pytest.mark.parametrize("grad", [False, True])
def test_torch_compile(install: Install, library: Path, grad: bool) -> None:
    """One operator a call, no break."""
    install()
    torch._dynamo.reset()
    graphs: list[Any] = []

    def keep(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    def block(x: Any, w1: Any, b1: Any, w2: Any) -> Any:
        return linear(linear(x, w1, b1, "gelu"), w2, residual=x) + 1

    shapes = ((32, 64), (48, 64), (48,), (64, 48))
    x, w1, b1, w2 = ((half(*s, seed=n) / 8).requires_grad_(grad) for n, s in enumerate(shapes))
    wanted = exact(exact(x, w1, b1, "gelu").half(), w2, None, None, x) + 1
    for backend in (keep, "aot_eager"):
        before = launches(library)
        result = torch.compile(block, backend=backend, fullgraph=True)(x, w1, b1, w2)
        assert close(result.detach(), wanted.detach()) and launches(library) == before + 2
    ops = [str(n.target) for n in graphs[0].graph.nodes if "sassafras" in str(n.target)]
    assert len(graphs) == 1 and ops == ["sassafras.fused.default"] * 2
    torch._dynamo.reset()


def test_autocast(engine: Planner, library: Path) -> None:
    x, weight, bias = torch.randn(32, 64), torch.randn(48, 64), torch.randn(48)
    before = launches(library)
    with torch.autocast("cpu", dtype=torch.float16):
        result = linear(x, weight, bias, "relu", half(32, 48))
        assert result.dtype == torch.float16 and launches(library) == before + 1
        assert linear(x, weight, bias, residual=torch.randn(32, 48)).dtype == torch.float32
    assert close(result, exact(x.half(), weight.half(), bias.half(), "relu", half(32, 48)))


def test_modes_and_subclasses_see_torchs_function(engine: Planner) -> None:
    from torch.overrides import TorchFunctionMode

    seen: list[Any] = []

    class Mode(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    class Quantised(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return super().__torch_function__(func, types, args, kwargs or {})

    x, weight, bias = half(32, 64), half(48, 64), half(48)
    with Mode():
        linear(x, weight, bias)
    assert functional.linear in seen
    seen.clear()
    linear(x, weight.as_subclass(Quantised), bias)
    assert functional.linear in seen
    traced = torch.jit.trace(lambda *t: linear(*t), (x, weight, bias))
    assert "aten::linear" in str(traced.graph)


def test_a_symbolic_trace_has_the_whole_layer(engine: Planner) -> None:
    weight = half(48, 64)
    traced = torch.fx.symbolic_trace(lambda x, bias, residual: linear(x, weight, bias, "relu", residual))
    x, bias, residual = half(32, 64), half(48), half(32, 48)
    assert close(traced(x, bias, residual), exact(x, weight, bias, "relu", residual))
    with pytest.raises(TypeError):
        linear([[1.0]], weight, activation="relu")


def test_both_launchers_see_the_same_problem(install: Install) -> None:
    other, compiled = (install(kind).launcher for kind in ("python", "compiled"))
    x, w, bias = half(4, 32, 64), half(64, 48), half(48)
    residuals = [
        half(4, 32, 48), half(32, 48), half(4, 32, 96)[..., :48], half(4, 48, 32).mT,
        half(4, 32, 49)[..., :48],
        half(4, 32, 48).bfloat16(), half(1, 32, 48), half(4 * 32 * 48 + 1)[1:].view(4, 32, 48), None,
    ]  # fmt: skip
    served = 0
    for left in (x, x[0], x[:1], half(4, 64, 64)[:, :32]):
        for residual in residuals:
            call = (left, w, None, bias, 2, 1.0, float(residual is not None), residual)
            found = other.key(*call)
            assert compiled.key(*call) == found, (left.shape, residual)
            served += found is not None
    assert served == 10
    both = torch.empty(2 * 4 * 32 * 48, dtype=torch.float16)
    shared = both[48 : 48 + 4 * 32 * 48].view(4, 32, 48)
    outs = [half(4, 32, 48), half(4, 32, 56)[..., :48], both[: 4 * 32 * 48].view(4, 32, 48), shared]
    keys = [
        [launcher.key(x, w, out, None, 0, 1.0, 1.0, shared) for out in outs] for launcher in (other, compiled)
    ]
    assert keys[0] == keys[1] and [key is None for key in keys[0]] == [False, True, True, True]


def test_the_stand_in_is_told_the_residuals_address(install: Install, library: Path) -> None:
    engine = install("compiled")
    x, weight = half(32, 64), half(48, 64)
    results = {}
    for seed in (1, 2):
        residual = half(32, 48, seed=seed)
        results[seed] = linear(x, weight, residual=residual)
        assert close(results[seed], exact(x, weight, None, None, residual))
    assert not torch.equal(*results.values()) and engine.launcher.counts()["ours"] >= 2
    assert stand_in.state_of(library).launches

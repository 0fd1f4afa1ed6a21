"""What goes past torch's dispatcher: the one list; and that everything else is torch's, on host memory."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from sassafras.gemm.matmul import api as room  # noqa: E402
from sassafras.gemm.matmul import plain_tensors  # noqa: E402
from sassafras.gemm.matmul.driver import Driver  # noqa: E402
from sassafras.gemm.matmul.planner import Planner  # noqa: E402
from sassafras.gemm.matmul.torch_side import strict  # noqa: E402
from sassafras.gemm.select.table import TunedTable  # noqa: E402
from tests.gemm import semantics, semantics_modes, stand_in  # noqa: E402
from tests.gemm.semantics_modes import CASES  # noqa: E402

Install = Callable[[str], Planner]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> Path:
    return stand_in.build_driver(tmp_path_factory.mktemp("driver"), shared)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory, shared: Path) -> Path:
    return stand_in.launcher_into(tmp_path_factory.mktemp("cache"), shared)


@pytest.fixture(params=["compiled", "python"])
def engine(request: pytest.FixtureRequest, library: Path, cache: Path) -> Iterator[Planner]:
    """Every problem that one of our kernels can run is served by it."""
    driver, side = Driver(str(library)), stand_in.torch_side(strict=strict)
    made = Planner(driver, side, cache=cache, background=False, table=TunedTable({"gpu": "NVIDIA H200"}, []))
    made._stored = lambda instance: b"\x7fELF"  # type: ignore[method-assign]
    made.everything = True
    if request.param == "python":
        made.launcher = stand_in.make("python", driver, side, cache)
    room.use(made, device="cpu")
    yield made
    room.use(None)


def ours(engine: Planner) -> int:
    return int(engine.launcher.counts()["ours"])


def half(*shape: int) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).half()


KINDS: dict[str, Callable[[Any], Any]] = {
    "negated": torch._neg_view,
    "zeros without memory": lambda t: torch._efficientzerotensor(t.shape, dtype=t.dtype),
    "coordinates": lambda t: t.to_sparse(),
    "compressed rows": lambda t: t.to_sparse_csr(),
    "elsewhere": lambda t: t.to("meta"),
    "functional": torch._to_functional_tensor,
    "nested": lambda t: torch.nested.nested_tensor([t, t]),
    "subclass": lambda t: t.as_subclass(semantics_modes.Marked),
    "subclass of operators": semantics_modes.Logged,
}
STATES: dict[str, Callable[[], Any]] = {
    "dispatch mode": semantics_modes.Operators,
    "function mode": semantics_modes.Functions,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "forward mode": torch.autograd.forward_ad.dual_level,
}


def test_plain_tensors_are_on_the_list(engine: Planner) -> None:
    a, b = half(16, 32), half(32, 24)
    with torch.inference_mode():
        inner = half(16, 32)
        assert plain_tensors.plain(a) and plain_tensors.plain(inner) and not plain_tensors.observed()
    for tensor in (a, a[2:], a.t(), a.expand(2, 16, 32), torch.nn.Parameter(a), inner, half(0, 4)):
        assert plain_tensors.plain(tensor)
    with torch.device("cpu"), torch.no_grad():
        assert not plain_tensors.observed() and plain_tensors.quiet()
    before = ours(engine)
    room.matmul(a, b)
    room.matmul(inner, b, torch.empty(16, 24, dtype=a.dtype))
    room.matmul(torch.nn.Parameter(a), b)
    assert ours(engine) == before + 3


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_plain_is_no_launchers(engine: Planner, kind: str) -> None:
    a, b = half(16, 32), half(32, 24)
    room.matmul(a, b)  # there is a plan for it
    odd, before = KINDS[kind](a), ours(engine)
    assert not plain_tensors.plain(odd)
    assert engine.launcher(odd, b) is NotImplemented and engine.launcher.raw(odd, b) is NotImplemented
    assert engine.launcher.key(odd, b) is None
    assert engine.launcher(odd, b, None, None, 0, 0.5, 0.0) is NotImplemented
    out = half(16, 24)
    if kind != "nested":
        assert engine.launcher(a, b, KINDS[kind](out)) is NotImplemented
    assert ours(engine) == before


@pytest.mark.parametrize("state", STATES)
def test_a_launcher_leaves_what_is_observed_to_python(engine: Planner, state: str) -> None:
    a, b = half(16, 32), half(32, 24)
    room.matmul(a, b)
    with STATES[state]():
        assert plain_tensors.observed() and engine.launcher(a, b) is NotImplemented
        assert engine.launcher(a, b, None, None, 0, 0.5, 0.0) is NotImplemented
    assert not plain_tensors.observed() and engine.launcher(a, b) is not NotImplemented


def test_tracers_and_transformations_are_observed() -> None:
    seen: list[bool] = []

    def product(x: Any) -> Any:
        seen.append(plain_tensors.observed() and not plain_tensors.quiet())
        return x * 2

    from torch.fx.experimental.proxy_tensor import make_fx

    a = half(4, 4)
    torch.jit.trace(product, (a,), check_trace=False)
    torch.func.vmap(product)(a)
    torch.func.grad(lambda x: product(x).sum())(a)
    torch.func.functionalize(product)(a)
    make_fx(product)(a)
    make_fx(product, pre_dispatch=True)(a)
    assert len(seen) >= 6 and all(seen)


def test_out_is_counted_once_and_where_it_may_be_written() -> None:
    out = half(4, 4)
    view = out[1:]
    assert plain_tensors.admit(out) and (out._version, view._version) == (1, 1)
    inplace = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
    with torch._C._ExcludeDispatchKeyGuard(inplace):  # where torch's operators leave it, too
        assert plain_tensors.admit(out) and out._version == 1
    with torch.inference_mode():
        inner = half(4, 4)
        assert plain_tensors.admit(inner) and plain_tensors.admit(out) and out._version == 2
    assert not plain_tensors.admit(inner)


def test_the_operators_carry_tangents(engine: Planner) -> None:
    """Called by name, as a graph calls them."""
    from torch.autograd import forward_ad

    a, b, bias = half(16, 32), half(32, 24), half(24)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(a, torch.ones_like(a))
        for wants in (False, True):
            b.requires_grad_(wants)
            plain = forward_ad.unpack_dual(torch.ops.sassafras.mm(dual, b)).tangent
            fused = forward_ad.unpack_dual(torch.ops.sassafras.fused(dual, b, bias, "none", 2.0)).tangent
            exact = torch.ones(16, 32).double() @ b.detach().double()
            assert torch.allclose(plain.detach().double(), exact, atol=0.05)
            assert torch.allclose(fused.detach().double(), 2 * exact, atol=0.1)
    b.requires_grad_(False)
    batch = torch.func.vmap(lambda x: torch.ops.sassafras.fused(x, b, bias, "relu", 1.0))(half(3, 16, 32))
    assert batch.shape == (3, 16, 24)


@pytest.mark.parametrize("engine", ["compiled"], indirect=True)  # both launchers ask the same list (above)
@pytest.mark.parametrize("name", CASES)
def test_whatever_torch_means(engine: Planner, name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        semantics.alike(name, room.matmul, "cpu")

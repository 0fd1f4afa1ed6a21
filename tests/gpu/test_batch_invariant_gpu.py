"""Bits of a row on a GPU: classes of configurations, products of any m, torch's operators, a control."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import sassafras  # noqa: E402
from sassafras.gemm.configs import registry  # noqa: E402
from sassafras.gemm.configs.persistent_pair import PairConfig  # noqa: E402
from sassafras.gemm.configs.registry import Config  # noqa: E402
from sassafras.gemm.problem.shape import Shape  # noqa: E402
from sassafras.gemm.select import invariant  # noqa: E402
from tests.gpu.test_stream_gpu import DTYPES, drawn, engine  # noqa: E402

__all__ = ["engine"]  # a fixture
pytestmark = pytest.mark.gpu
functional = torch.nn.functional
MOST = 1024
COUNTS = (*range(1, 129), 160, 192, 255, 256, 257, 512, 777, 1000)
#: (n, k): k whole, in four ranges, in eight; few columns; k that ends within a tile
SIZES = ((4096, 4096), (1024, 3072), (512, 4096), (40, 4104), (2560, 2056))
Product = Callable[[Any, Any], Any]


def bits(tensor: Any) -> Any:
    return tensor.view(torch.int16)


def unequal(call: Product, a: Any, w: Any, counts: tuple[int, ...] = COUNTS) -> int:
    """Rows of products of `counts` rows that differ from those of one product of all."""
    whole, rng = call(a, w).clone(), np.random.default_rng(5)
    found = torch.zeros((), dtype=torch.int64, device="cuda")
    for count in counts:
        first = int(rng.integers(0, len(a) - count + 1))
        part = call(a[first : first + count].clone(), w)
        found += (bits(part) != bits(whole[first : first + count])).any(-1).sum()
    return int(found)


def ours(a: Any, w: Any) -> Any:
    return sassafras.linear(a, w, invariant=True)


def every_member(shape: Shape, layout: str, dtype: str) -> Iterator[Config]:
    """Of the class of a shape, with an epilogue and without; some of each instance's."""
    wanted, seen = invariant.cuts_of(shape.n, shape.k), dict[Any, int]()
    every = (registry.configurations, registry.other_configurations, registry.epilogue_configurations)
    for config in (c for of in every for c in of()):
        mine = (config.layout, config.dtype, config.cuts(shape)) == (layout, dtype, wanted)
        mine = mine and not isinstance(config, PairConfig)  # of another product
        if mine and config.why_illegal(shape) is None and seen.setdefault(config.instance, 0) < 3:
            seen[config.instance] += 1
            yield config


@pytest.mark.parametrize(("layout", "dtype"), product(("tn", "nn"), DTYPES))
@pytest.mark.parametrize(("n", "k"), SIZES)
def test_configurations_of_a_class_have_equal_bits(
    engine: Any, n: int, k: int, layout: str, dtype: str
) -> None:
    a, w = drawn(192, n, k, DTYPES[dtype], 3)
    b = w.t() if layout == "tn" else w.t().contiguous()
    bias, compared, names = drawn(1, 1, n, DTYPES[dtype], 4)[0][0], 0, []
    first: dict[bool, Any] = {}
    for m in (8, 192):
        for config in every_member(Shape(m, n, k), layout, dtype):
            for given in (None, bias) if config.instance.epilogue else (None,):
                got = engine.bind(config, a[:m].contiguous(), b, None, given)()[:8].clone()
                if not torch.equal(bits(first.setdefault(given is not None, got)), bits(got)):
                    names.append(config.name)
                compared += 1
    assert not names and compared > 10, (names, compared)


@pytest.mark.parametrize(("layout", "dtype"), product(("tn", "nn"), DTYPES))
@pytest.mark.parametrize(("n", "k"), [(2560, 4096), (1024, 8192), (2048, 3592)])
def test_folds_of_many_tiles_have_the_bits_of_few_rows(
    engine: Any, n: int, k: int, layout: str, dtype: str
) -> None:
    """Persistent CTAs store a tile beside the next one's products: 4168 rows are several tiles for each."""
    a, w = drawn(4168, n, k, DTYPES[dtype], 6)
    b = w.t() if layout == "tn" else w.t().contiguous()
    few = next(c for c in every_member(Shape(64, n, k), layout, dtype) if c.FAMILY == "split_k")
    at = (0, 2000, 4104)
    wanted = [bits(engine.bind(few, a[i : i + 64].contiguous(), b, None, None)().clone()) for i in at]
    names, compared = [], 0
    for config in every_member(Shape(len(a), n, k), layout, dtype):
        if config.FAMILY == "persistent_folded":
            for _ in range(3):  # what depends on timing shows in some launches
                got = bits(engine.bind(config, a, b, None, None)())
                same = [torch.equal(got[i : i + 64], rows) for i, rows in zip(at, wanted, strict=True)]
                names += [] if all(same) else [config.name]
                compared += 1
    assert not names and compared >= 9, (names, compared)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "k"), SIZES)
def test_rows_have_the_same_bits_in_any_product(engine: Any, n: int, k: int, dtype: str) -> None:
    a, w = drawn(MOST, n, k, DTYPES[dtype], 1)
    assert unequal(ours, a, w) == 0
    whole = ours(a, w)
    assert torch.equal(bits(sassafras.matmul(a[:9], w.t().contiguous(), invariant=True)), bits(whole[:9]))
    odd = torch.empty(9 * k + 1, device="cuda", dtype=a.dtype)[1:].view(9, k).copy_(a[:9])
    padded = torch.full((128, k), float("nan"), device="cuda", dtype=a.dtype)
    padded[50:59] = a[:9]
    for other in (a[:9].t().contiguous().t(), odd, a[None, :9].expand(2, -1, -1), padded[50:59]):
        assert torch.equal(bits(ours(other, w)).view(-1, 9, n)[-1], bits(whole[:9]))
    assert torch.equal(bits(ours(padded, w)[50:59]), bits(whole[:9]))
    graph, given = torch.cuda.CUDAGraph(), a[:33].clone()
    with torch.cuda.graph(graph):
        got = ours(given, w)
    graph.replay()
    assert torch.equal(bits(got), bits(whole[:33]))
    exact = a.double() @ w.double().t()
    assert float((whole.double() - exact).abs().max()) < 0.02 * k**0.5


def test_torch_fails_the_same_check(engine: Any) -> None:
    """The control: or nothing would be compared."""
    found = {}
    for (n, k), dtype in product(SIZES[:3], DTYPES):
        a, w = drawn(MOST, n, k, DTYPES[dtype], 1)
        found[n, k, dtype] = unequal(functional.linear, a, w)
    print(found)
    assert sum(map(bool, found.values())) >= 4


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", [None, "relu", "gelu", "gelu_tanh", "silu", "swiglu"])
def test_epilogues_and_odd_extents(engine: Any, dtype: str, activation: str | None) -> None:
    for n, k in ((2048, 4096), (4096, 512), (4098, 1001), (66, 4099)):
        a, w = drawn(300, n, k, DTYPES[dtype], 2)
        bias = drawn(1, 1, n, DTYPES[dtype], 4)[0][0]

        def call(x: Any, weight: Any, bias: Any = bias) -> Any:
            residual = None if activation == "swiglu" else x[:, :1].expand(-1, len(weight)).contiguous()
            return sassafras.linear(x, weight, bias, activation, residual, invariant=True)

        assert unequal(call, a, w, (1, 2, 7, 8, 16, 33, 64, 128, 255)) == 0, (n, k)


@pytest.mark.parametrize("dtype", [*DTYPES.values(), torch.float32])
def test_torchs_operators_within_the_context(engine: Any, dtype: Any) -> None:
    a, w = (t.to(dtype) for t in drawn(MOST, 2048, 4096, torch.float16, 1))
    bias, weight = w[0, :2048].contiguous(), w[1, :2048].contiguous()
    scores = functional.linear(a[:64], w)

    def rows(x: Any) -> list[Any]:
        y = functional.linear(x, w)
        heads = x.view(len(x), 32, 128).transpose(0, 1)  # as a batch of 32
        return [
            y,
            functional.linear(x, w, bias),
            torch.bmm(heads, w[:128, :1024].expand(32, -1, -1)).transpose(0, 1).reshape(len(x), -1),
            torch.log_softmax(y, -1),
            y.square().mean(-1, keepdim=True),
            functional.rms_norm(y, (2048,), weight, 1e-5),
        ]

    with torch.no_grad(), sassafras.batch_invariant():
        whole = rows(a)
        for count in (1, 3, 16, 100, 1000):
            for at, (one, of) in enumerate(zip(rows(a[:count].clone()), whole, strict=True)):
                assert torch.equal(one, of[:count]), (at, count)
    exact = a[:8].double() @ w.double().t()
    assert float((whole[0][:8].double() - exact).abs().max()) < 0.02 * 64
    wanted = functional.rms_norm(exact, (2048,), weight.double(), 1e-5)
    assert torch.allclose(whole[5][:8].double(), wanted, rtol=0.02, atol=0.03)
    assert torch.allclose(whole[3][:8].double(), torch.log_softmax(exact, -1), rtol=0.01, atol=3.0)
    assert torch.equal(functional.linear(a[:64], w), scores), "torch is as it was"


def test_compiled_programs_and_gradients(engine: Any) -> None:
    a, w = drawn(MOST, 1024, 3072, torch.bfloat16, 1)
    whole = ours(a, w)
    compiled = torch.compile(lambda x: ours(x, w) * 1.0, dynamic=True)
    plain = torch.compile(lambda x: functional.linear(x, w) * 1.0, dynamic=True)
    for count in (2, 17, 64, 200):
        assert torch.equal(compiled(a[:count]), whole[:count])
        with sassafras.batch_invariant():
            assert torch.equal(plain(a[:count]), whole[:count])
    grads = []
    for count in (3, 64, 512):
        x = a[:count].clone().requires_grad_()
        weight = w.clone().requires_grad_()
        sassafras.linear(x, weight, activation="silu", invariant=True).float().square().sum().backward()
        assert weight.grad is not None and bool(weight.grad.isfinite().all())
        grads.append(x.grad[:3])
    assert all(torch.equal(g, grads[0]) for g in grads)


def test_what_has_no_invariant_kernel_says_so(engine: Any) -> None:
    x = torch.ones(8, 8, device="cuda", dtype=torch.float64)
    with pytest.raises(sassafras.SassafrasError, match="FP16 or BF16"):
        sassafras.matmul(x, x, invariant=True)
    with sassafras.batch_invariant(), pytest.raises(sassafras.SassafrasError, match="no invariant product"):
        torch.mm(x, x)
    assert torch.equal(torch.mm(x, x), torch.full_like(x, 8.0))

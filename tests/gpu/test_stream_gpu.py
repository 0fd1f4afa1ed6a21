"""The stream kernel on a GPU: every instance, ragged extents, chains of launches that overlap."""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from sassafras.gemm.configs import stream  # noqa: E402
from sassafras.gemm.configs.base import Mode  # noqa: E402
from sassafras.gemm.configs.epilogue import ACTIVATIONS  # noqa: E402
from sassafras.gemm.configs.stream import StreamConfig  # noqa: E402
from sassafras.gemm.matmul import api  # noqa: E402
from tests.gpu.test_matmul_epilogue import exact, right  # noqa: E402

pytestmark = pytest.mark.gpu
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
PLAIN_ROWS = [i for i in stream.EPILOGUE_INSTANCES if not i.norm]


@pytest.fixture(scope="module")
def engine() -> Any:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a Hopper GPU")
    api.matmul(*(torch.ones(16, 16, device="cuda", dtype=torch.float16),) * 2)
    api.settle()
    return api._engine


def drawn(m: int, n: int, k: int, dtype: Any, seed: int, gap: int = 0) -> Any:
    made = torch.Generator("cuda").manual_seed(seed)
    a = torch.randn(m, k, device="cuda", generator=made).to(dtype)
    w = torch.randn(n, k + gap, device="cuda", generator=made).to(dtype)[:, :k]
    return a, w


@pytest.mark.parametrize("instance", (*stream.INSTANCES, *stream.OTHER_INSTANCES), ids=lambda i: i.name)
def test_every_instance_is_right(engine: Any, instance: stream.StreamInstance) -> None:
    rng, dtype = np.random.default_rng(7), DTYPES[instance.dtype]
    for turn in range(48):
        m, n = int(rng.integers(1, 9)), int(rng.integers(1, 14000))
        k, gap = 8 * int(rng.integers(1, 1200)), 8 * int(rng.integers(0, 3))
        a, w = drawn(m, n, k, dtype, turn, gap)
        config = StreamConfig(instance, mode=Mode(pdl=bool(turn % 2)))
        call = engine.bind(config, a, w.t())
        got = call().clone()
        exact = a.double() @ w.double().t()
        error = (got.double() - exact).abs()
        unit = 2.0**-11 if instance.dtype == "fp16" else 2.0**-8
        allowed = exact.abs() * unit + 2e-6 * k**0.5 * 4
        assert bool((error <= allowed).all()), (config.name, m, n, k, gap, float(error.max()))
        assert torch.equal(call(), got), "two launches differ"


@pytest.mark.parametrize("rows", [1, 3, 8])
@pytest.mark.parametrize("instance", PLAIN_ROWS, ids=lambda i: i.name)
def test_every_instance_with_an_epilogue_is_right(
    engine: Any, instance: stream.StreamInstance, rows: int
) -> None:
    """Bias, activation and residual in every combination, n that no tile divides, gaps, PDL."""
    dtype = DTYPES[instance.dtype]
    extents = (11003, 2048, 0), (512, 4096, 8), (1021, 1032, 16), (7, 8, 0)
    for turn, (n, k, gap) in enumerate(extents):
        a, w = drawn(rows, n, k, dtype, turn, gap)
        bias, residual = drawn(1, 1, n, dtype, turn + 9)[0][0], drawn(rows, 1, n, dtype, turn + 5)[0]
        for activation, given, added in product(ACTIVATIONS, (None, bias), (None, residual)):
            beta, kept = float(added is not None), residual.clone()
            wanted = exact(a, w.t(), added, given, activation, 1.0, beta)
            for pdl in (False, True):
                config = StreamConfig(instance, mode=Mode(pdl=pdl))
                call = engine.bind(config, a, w.t(), None, given, activation, 1.0, beta, added)
                got = call().clone()
                what = (config.name, n, k, gap, activation, given is not None, added is not None)
                assert right(got, wanted, k), what
                assert torch.equal(call(), got) and torch.equal(residual, kept), what
            if added is not None:  # C itself is what is added to
                engine.bind(config, a, w.t(), kept, given, activation, 1.0, 1.0)()
                assert torch.equal(kept, got), what


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_overlapping_launches_in_a_chain_equal_plain_ones(engine: Any, dtype: str) -> None:
    """C of one launch is A of the next, an elementwise kernel of torch between some: bitwise as plain."""
    kind = DTYPES[dtype]
    a, w = drawn(4, 4096, 4096, kind, 1)
    w = w / 64
    instances = [i for i in (*stream.INSTANCES, *stream.OTHER_INSTANCES) if i.dtype == dtype]

    def chain(pdl: bool) -> Any:
        kept, x = [], a
        for turn in range(40):
            config = StreamConfig(instances[turn % len(instances)], mode=Mode(pdl=pdl))
            x = engine.bind(replace(config), x, w.t())()
            x = x * 1.0 if turn % 3 == 0 else x
            kept.append(x)
        return torch.stack(kept)

    plain, overlapping = chain(False), chain(True)
    assert bool(plain.isfinite().all()) and torch.equal(plain, overlapping)


def test_a_layer_that_decodes_is_served(engine: Any) -> None:
    import sassafras

    for dtype in DTYPES.values():
        x, w = drawn(2, 6144, 4096, dtype, 3)
        sassafras.linear(x, w)
        api.settle()
        got = sassafras.linear(x, w)
        served = [p for p in api.status()["problems"] if p["shape"] == "2x6144x4096"]
        assert served and all(str(p["config"]).startswith(("stream_tn", "split_k_tn")) for p in served)
        torch.testing.assert_close(got.float(), (x.float() @ w.float().t()), rtol=2e-2, atol=0.3)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_a_layer_with_a_bias_and_a_residual_is_served(engine: Any, dtype: str) -> None:
    import sassafras

    x, w = drawn(2, 6144, 4096, DTYPES[dtype], 3)
    bias, residual = drawn(1, 1, 6144, DTYPES[dtype], 4)[0][0], drawn(2, 1, 6144, DTYPES[dtype], 5)[0]
    for given in ({"bias": bias}, {"bias": bias, "residual": residual}, {"activation": "silu"}):
        sassafras.linear(x, w, **given)
        api.settle()
        got = sassafras.linear(x, w, **given)
        problem = api.status()["problems"][-1]
        assert str(problem["config"]).startswith(("stream_tn", "split_k_early")), problem
        old = given.get("residual")
        assert right(got, exact(x, w.t(), old, given.get("bias"), given.get("activation"), 1.0, 1.0), 4096)


# --- SwiGLU's pair ----------------------------------------------------------------------------------------


def pair_of(x: Any, gate: Any, up: Any, bias: Any = None) -> tuple[Any, Any]:
    """silu(gate) * up in FP64, and what a result may differ by."""
    more = (0, 0) if bias is None else bias.double().chunk(2)
    left, right_ = (x.double() @ w.double().t() + b for w, b in zip((gate, up), more, strict=True))
    wanted = torch.nn.functional.silu(left) * right_
    unit = 2.0**-11 if x.dtype == torch.float16 else 2.0**-8
    return wanted, wanted.abs() * unit + 2e-5 * (1 + left.abs() + right_.abs())


@pytest.mark.parametrize("rows", [1, 3, 8])
@pytest.mark.parametrize("instance", PLAIN_ROWS, ids=lambda i: i.name)
def test_every_instance_multiplies_a_pair(engine: Any, instance: stream.StreamInstance, rows: int) -> None:
    """One weight or two, with a bias or without, gaps, PDL; twice the same bits."""
    dtype = DTYPES[instance.dtype]
    for turn, (n, k, gap) in enumerate(((6144, 4096, 0), (8, 8, 0), (1016, 1032, 16), (264, 8200, 8))):
        a, w = drawn(rows, 2 * n, k + gap, dtype, turn)
        w, bias = (w * k**-0.5)[:, :k], drawn(1, 1, 2 * n, dtype, turn + 9)[0][0]
        a = a[:, :k].contiguous()
        gate, up = w[:n], drawn(1, n, k + gap, dtype, turn + 5)[1][:, :k] * 1
        apart = torch.empty_strided(gate.shape, gate.stride(), dtype=dtype, device="cuda").copy_(up * k**-0.5)
        for given, other in ((None, None), (bias, None), (None, apart)):
            b = (w if other is None else gate).t()
            more = None if other is None else other.t()
            wanted, allowed = pair_of(a, gate, w[n:] if other is None else other, given)
            results = []
            for pdl in (False, True):
                config = StreamConfig(instance, mode=Mode(pdl=pdl))
                call = engine.bind(config, a, b, None, given, "swiglu", 1.0, float(other is not None), more)
                results += [call().clone(), call()]
            what = (config.name, n, k, gap, given is not None, other is not None)
            assert bool(((results[0].double() - wanted).abs() <= allowed).all()), what
            assert all(torch.equal(results[0], one) for one in results), what


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_a_pair_is_served_eagerly_and_in_a_graph(engine: Any, dtype: str) -> None:
    import sassafras

    x, w = drawn(2, 16384, 2048, DTYPES[dtype], 3)
    w, bias = w * 2048**-0.5, drawn(1, 1, 16384, DTYPES[dtype], 4)[0][0]
    for given in (None, bias):

        def call(given: Any = given) -> Any:
            return sassafras.linear(x, w, given, "swiglu")

        call()
        api.settle()
        call()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = call()
        for seed in range(3):
            x.copy_(drawn(2, 1, 2048, DTYPES[dtype], seed + 20)[0])
            graph.replay()
            wanted, allowed = pair_of(x, *w.chunk(2), given)
            assert bool(((out.double() - wanted).abs() <= allowed).all()) and torch.equal(out, call())
        problem = api.status()["problems"][-1]
        assert problem["activation"] == "swiglu" and str(problem["config"]).startswith("stream_tn"), problem
    wide = drawn(9, 1, 2048, DTYPES[dtype], 5)[0]  # composed
    wanted, allowed = pair_of(wide, *w.chunk(2))
    assert bool(((sassafras.linear(wide, w, None, "swiglu").double() - wanted).abs() <= 8 * allowed).all())


class Feed(torch.nn.Module):
    """A feed-forward half: gate and up in one layer, or in two."""

    def __init__(self, merged: bool) -> None:
        super().__init__()
        rows = (16384,) if merged else (8192, 8192)
        self.inner = torch.nn.ModuleList(torch.nn.Linear(2048, n, bias=False) for n in rows)
        self.down = torch.nn.Linear(8192, 2048, bias=False)

    def forward(self, x: Any) -> Any:
        parts = [layer(x) for layer in self.inner]
        gate, up = parts if len(parts) == 2 else parts[0].chunk(2, -1)
        return x + self.down(torch.nn.functional.silu(gate) * up)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
@pytest.mark.parametrize("merged", [True, False])
def test_a_compiled_model_has_the_pair(engine: Any, merged: bool, mode: str | None, dtype: str) -> None:
    from torch._inductor.utils import run_and_get_code

    import sassafras

    torch.manual_seed(0)
    network = Feed(merged).to("cuda", DTYPES[dtype]).requires_grad_(False)
    double = copy.deepcopy(network).double()
    sassafras.accelerate(network, wait=True, tokens=(4,))
    for rows in ((4, 1), (1, 9)):
        torch._dynamo.reset()
        engine.forget()
        x = torch.randn(*rows, 2048, device="cuda").to(DTYPES[dtype])
        run = torch.compile(network, fullgraph=True, dynamic=False, mode=mode)
        result, (code, *_) = run_and_get_code(run, x)
        few = rows[1] == 1
        # the pair, and the layer behind it with the residual; above eight rows the latter alone
        assert code.count("torch.ops.sassafras.layer.into(") == 1 + few and ("silu" in code) != few, code
        for _ in range(3):
            result = run(x).clone()
        wanted, unit = double(x.double()), 2.0**-9 if dtype == "fp16" else 2.0**-6
        assert float((result - wanted).abs().max()) <= unit * float(wanted.abs().max())
        pairs = [p for p in api.status()["problems"] if p["activation"] == "swiglu"]
        assert len(pairs) == few and all(str(p["config"]).startswith("stream_tn") for p in pairs), pairs
    torch._dynamo.reset()

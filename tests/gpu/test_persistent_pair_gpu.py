"""SwiGLU's pair of many rows on a GPU: every instance against FP64, in graphs, in compiled models."""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from sassafras.gemm.configs.base import Mode  # noqa: E402
from sassafras.gemm.configs.persistent_pair import EPILOGUE_INSTANCES, PairConfig, PairInstance  # noqa: E402
from sassafras.gemm.matmul import api  # noqa: E402
from tests.gpu.test_stream_gpu import DTYPES, Feed, drawn, engine, pair_of  # noqa: E402

__all__ = ["engine"]  # a fixture
pytestmark = pytest.mark.gpu


def operands(rows: int, n: int, k: int, gap: int, dtype: Any, seed: int) -> tuple[Any, ...]:
    """a, both weights in one matrix, up's apart with the same lines, and a bias."""
    a, w = drawn(rows, 2 * n, k + gap, dtype, seed)
    w, bias = (w * k**-0.5)[:, :k], drawn(1, 1, 2 * n, dtype, seed + 9)[0][0]
    up = drawn(1, n, k, dtype, seed + 5)[1] * k**-0.5
    apart = torch.empty_strided((n, k), w.stride(), dtype=dtype, device="cuda").copy_(up)
    return a[:, :k].contiguous(), w, apart, bias


def close(result: Any, wanted: Any, allowed: Any) -> bool:
    """WGMMA truncates sums of more products than a warp of the stream kernel adds up: twice its bound."""
    return bool(((result.double() - wanted).abs() <= 2 * allowed).all())


@pytest.mark.parametrize("instance", EPILOGUE_INSTANCES, ids=lambda i: i.name)
def test_every_instance_is_right(engine: Any, instance: PairInstance) -> None:
    """One weight or two, a bias or none, tails, gaps, many tiles a CTA, PDL; the same bits each time."""
    dtype = DTYPES[instance.dtype]
    extents = (
        (128, 8192, 4096, 0),
        (333, 1016, 1032, 16),
        (4097, 1160, 264, 8),
        (65, 8, 8, 0),
        (2048, 4096, 512, 0),
    )
    for turn, (rows, n, k, gap) in enumerate(extents):
        a, w, apart, bias = operands(rows, n, k, gap, dtype, turn)
        gate = w[:n]
        for given, other in ((None, None), (bias, None), (None, apart)):
            b, more = (w, None) if other is None else (gate, other.t())
            wanted, allowed = pair_of(a, gate, w[n:] if other is None else other, given)
            results = []
            for group, mode in ((8, Mode()), (-2, Mode(pdl=True)), (1, Mode(pdl=True, trigger_late=True))):
                config = PairConfig(instance, group, mode=mode)
                beta = float(other is not None)
                call = engine.bind(config, a, b.t(), None, given, "swiglu", 1.0, beta, more)
                results += [call().clone(), call().clone(), call()]
            what = (instance.name, rows, n, k, gap, given is not None, other is not None)
            assert close(results[0], wanted, allowed), what
            assert all(torch.equal(results[0], one) for one in results), what


@pytest.mark.parametrize("rows", [128, 256, 1024, 4096])
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_linear_in_a_graph(engine: Any, dtype: str, rows: int) -> None:
    import sassafras

    a, w, _, bias = operands(rows, 14336, 4096, 0, DTYPES[dtype], 3)
    gate, up = w.chunk(2)
    for given in (None, bias):

        def call(given: Any = given) -> Any:
            return sassafras.linear(a, w, given, "swiglu")

        call()
        api.settle()
        call()
        problem = api.status()["problems"][-1]
        assert problem["activation"] == "swiglu" and str(problem["config"]).startswith("persistent_pair"), (
            problem
        )
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = call()
        for seed in range(2):
            a.copy_(drawn(rows, 1, 4096, DTYPES[dtype], seed + 20)[0])
            graph.replay()
            wanted, allowed = pair_of(a, gate, up, given)
            assert close(out, wanted, allowed) and torch.equal(out, call())


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("merged", [True, False])
def test_a_compiled_model_has_the_pair(engine: Any, merged: bool, dtype: str) -> None:
    from torch._inductor.utils import run_and_get_code

    import sassafras

    torch.manual_seed(0)
    network = Feed(merged).to("cuda", DTYPES[dtype]).requires_grad_(False)
    double = copy.deepcopy(network).double()
    sassafras.accelerate(network, wait=True, tokens=(256,))
    torch._dynamo.reset()
    x = torch.randn(2, 128, 2048, device="cuda").to(DTYPES[dtype])
    run = torch.compile(network, fullgraph=True, dynamic=False)
    _, (code, *_) = run_and_get_code(run, x)
    assert code.count("torch.ops.sassafras.layer.into(") == 1 and "silu" not in code, code
    wanted, unit = double(x.double()), 2.0**-9 if dtype == "fp16" else 2.0**-6
    for _ in range(3):
        assert float((run(x) - wanted).abs().max()) <= unit * float(wanted.abs().max())
    torch._dynamo.reset()


@pytest.mark.parametrize("instance", EPILOGUE_INSTANCES, ids=lambda i: i.name)
def test_overlapping_launches_wait_for_what_they_read(engine: Any, instance: PairInstance) -> None:
    """Each pair's result is the next one's input: a stale read would bring NaN."""
    dtype = DTYPES[instance.dtype]
    x, w, _, bias = operands(256, 512, 512, 0, dtype, 2)
    w, bias, first = w * 0.5, bias * 0.5, None  # products of products stay small
    outs = [torch.empty_like(x) for _ in range(16)]
    for mode in (Mode(), Mode(pdl=True), Mode(pdl=True, trigger_late=True)):
        config = PairConfig(instance, mode=mode)
        calls = [
            engine.bind(config, before, w.t(), out, bias, "swiglu") for before, out in pairwise([x, *outs])
        ]
        for _ in range(20):
            for out in outs:
                out.fill_(float("nan"))
            for call in calls:
                call()
            now = torch.stack(outs)
            first = now if first is None else first
            assert torch.equal(first, now), mode
    assert first is not None and bool(first.isfinite().all())


def test_a_row_has_the_same_bits_in_every_tile(engine: Any) -> None:
    """A row's sums do not depend on the tile that has it, which tails and orders of tiles move."""
    instance = EPILOGUE_INSTANCES[0]
    a, w, _, bias = operands(300, 1016, 520, 0, DTYPES[instance.dtype], 1)
    results = [
        engine.bind(PairConfig(one), a, w.t(), None, bias, "swiglu", 1.0, 0.0, None)().clone()
        for one in (instance, *(replace(i, dtype=instance.dtype) for i in EPILOGUE_INSTANCES[1:4]))
    ]
    assert all(torch.equal(results[0], one) for one in results)

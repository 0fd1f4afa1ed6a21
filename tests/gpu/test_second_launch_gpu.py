"""k split by two launches, on a GPU: right in every mode, back to back, with equal bits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("layout", ["tn", "nn"])
def test_pairs_are_right_in_every_mode(layout: str) -> None:
    torch = pytest.importorskip("torch")
    from sassafras.gemm.bench.contestants import Contestants
    from sassafras.gemm.bench.operands import Operands
    from sassafras.gemm.configs.registry import legal
    from sassafras.gemm.problem.shape import Shape

    tools, shape = Contestants(), Shape(264, 136, 4104)  # tiles that reach beyond C, a k tile that ends early
    operands = Operands(shape, 3)
    operands.calibrate(tools.gemm_ex("nn", operands, strict=True))
    found = [config for config in legal(shape, layouts=(layout,)) if len(config.instances) == 2]
    pairs = [mode for pair in found[::3] for mode in pair.in_modes()]
    assert pairs
    for pair in pairs:
        call = tools.ours(pair, operands)
        assert operands.check(call).why == "", pair.name
        once = operands.c.view(torch.int16).clone()
        operands.poison()
        operands.poison()
        for _ in range(8):
            call()
        assert torch.equal(once, operands.c.view(torch.int16)), pair.name


@pytest.fixture
def room() -> Iterator[Any]:
    """sassafras.matmul, with nothing chosen yet."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available() or torch.cuda.get_device_capability(0) != (9, 0):
        pytest.skip("needs a Hopper GPU")
    from sassafras.gemm.matmul import api

    if api._engine is None:
        api._set_up()
    api.settle()
    yield api
    api._engine.forget()


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("split_k_two_pass_nn_64x128_s8q1/p8+ol", (256, 512, 8192)),
        ("split_k_two_pass_tn_64x128_s8q1/p7+o", (264, 520, 7168)),
        ("split_k_two_pass_tn_64x64_s12q1/p2", (72, 136, 1032)),
        ("split_k_two_pass_nn_128x64_s8q1/p14+o", (1024, 64, 16384)),
    ],
)
def test_matmul_with_two_launches(room: Any, name: str, shape: tuple[int, int, int]) -> None:
    """Through the front door: out, gaps, graphs on two streams at once, many calls back to back."""
    import torch

    from sassafras.gemm.configs.names import parse
    from sassafras.gemm.problem.shape import Shape
    from sassafras.gemm.select.selector import Selector
    from sassafras.gemm.select.table import TableRow, TunedTable

    (m, n, k), config = shape, parse(name)
    room._engine.forget()
    chooser = Selector(TunedTable({}, [TableRow(Shape(m, n, k), config.layout, ((config, 1.0),), 10.0)]))
    room._engine.gpu(0).chooser = chooser

    def inputs(seed: int, gap: int = 0) -> tuple[Any, Any]:
        generator = torch.Generator(device="cuda")
        generator.manual_seed(seed)
        rows, columns = (k, n) if config.layout == "nn" else (n, k)
        a, b = (
            torch.randn(x, y + gap, generator=generator, device="cuda").half()[:, :y]
            for x, y in ((m, k), (rows, columns))
        )
        return a, b if config.layout == "nn" else b.t()

    def right(c: Any, a: Any, b: Any) -> bool:
        exact = a.double() @ b.double()
        return bool(((c.double() - exact).abs() <= 2.0**-10 * exact.abs() + 2e-4 * k**0.5).all())

    a, b = inputs(1)
    room.matmul(a, b)
    room.settle()
    first = room.matmul(a, b)
    (problem,) = room.status()["problems"]
    assert (problem["member"], problem["config"]) == ("ours", name), room.status()
    assert right(first, a, b)
    whole = torch.full((m, n + 24), float("nan"), device="cuda", dtype=torch.float16)
    for pair in ((a, b), inputs(2, gap=8)):
        room.matmul(*pair, whole[:, :n])
        whole[:, :n] = float("nan")
        room.matmul(*pair, whole[:, :n])
        assert right(whole[:, :n], *pair) and bool(whole[:, n:].isnan().all())
    assert {p["member"] for p in room.status()["problems"]} == {"ours"}, room.status()
    # back to back, a consumer that is no kernel of ours behind each
    total = torch.zeros_like(first, dtype=torch.float64)
    for _ in range(50):
        total += room.matmul(a, b)
    assert torch.equal(total, 50 * first.double())
    # graphs of two calls each, on two streams at once
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    pairs, graphs, outs = [inputs(3), inputs(4)], [], []
    for (x, y), stream in zip(pairs, streams, strict=True):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            outs.append((room.matmul(x, y), room.matmul(x, y)))
        graphs.append(graph)
    for _ in range(100):
        for graph, stream in zip(graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
    torch.cuda.synchronize()
    for (one, other), pair in zip(outs, pairs, strict=True):
        assert right(one, *pair) and torch.equal(one, other)
    # and eager calls on two streams at once
    wanted = [one.clone() for one, _ in outs]
    for _ in range(100):
        for stream, (x, y), exact in zip(streams, pairs, wanted, strict=True):
            with torch.cuda.stream(stream):
                assert torch.equal(room.matmul(x, y), exact)

"""Products that share their rows on a GPU: bits of launches of their own, early weights, compiled models."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import sassafras  # noqa: E402
from sassafras.gemm.configs import joined  # noqa: E402
from sassafras.gemm.configs.base import Mode  # noqa: E402
from sassafras.gemm.configs.split_k_early import EarlyInstance, EarlySplitKConfig  # noqa: E402
from sassafras.gemm.configs.stream import StreamConfig, StreamInstance  # noqa: E402
from sassafras.gemm.matmul import api, joined_op, layers  # noqa: E402
from sassafras.gemm.matmul.joined_problem import JoinedCall, read_joined  # noqa: E402
from sassafras.gemm.problem.shape import Shape  # noqa: E402
from tests.gpu.test_layer_gpu import same_bits_in_replays  # noqa: E402
from tests.gpu.test_stream_gpu import DTYPES, drawn, engine  # noqa: E402

__all__ = ["engine"]  # a fixture
pytestmark = pytest.mark.gpu
STREAMS = [i for i in joined.INSTANCES if isinstance(i, StreamInstance)]
TILES = [i for i in joined.INSTANCES if isinstance(i, EarlyInstance)]


def apart(config: Any) -> Any:
    """The same kernel for one product."""
    instance = config.instance
    kind = StreamInstance if isinstance(instance, StreamInstance) else EarlyInstance
    one = kind(**{field.name: getattr(instance, field.name) for field in fields(instance)})
    return replace(config, instance=one)


def launcher(engine: Any, config: Any, call: JoinedCall, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A call that this configuration serves, and its result, written again by every call."""
    out = call.a.new_empty((*call.a.shape[:-1], sum(w.shape[1] for w in call.weights)))
    problem, _ = read_joined(call, out) or (None, None)
    assert problem is not None
    engine._made(config.instance)
    engine.launcher.remove(tuple(problem))
    with monkeypatch.context() as patch:
        patch.setattr(joined, "chosen", lambda *given: config)
        assert engine.serve_rows(tuple(problem))
    asked = *call[:8], out, *call[8:]

    def launch() -> Any:
        assert engine.launcher.joined(*asked) is True
        return out

    return launch


def compare(
    engine: Any, config: Any, sizes: tuple[int, ...], k: int, rows: int, patch: pytest.MonkeyPatch
) -> None:
    """Bitwise as apart: with biases and without, weights early or not, eager and in a graph."""
    instance = config.instance
    dtype, shape = DTYPES[instance.dtype], Shape(rows, sum(sizes), k)
    a = drawn(rows, 1, k, dtype, 1)[0]
    weights = [(drawn(1, n, k, dtype, n + i)[1] * k**-0.5).t() for i, n in enumerate(sizes)]
    given = [drawn(1, 1, n, dtype, n + i + 9)[0][0] for i, n in enumerate(sizes)]
    norm = (1 + 0.2 * drawn(1, 1, k, dtype, 3)[0][0]).contiguous() if instance.norm else None
    none = [None] * (3 - len(sizes))
    for biases in (given, [None, *given[1:]], [None] * len(sizes)):
        for constant in (False, True):
            call = JoinedCall(a, *weights, *none, *biases, *none, norm, 1e-5, constant)
            launch = launcher(engine, config, call, patch)
            wanted = torch.cat(
                [
                    engine.bind(
                        apart(config), a, w, None, bias, None, 1.0, 0.0, None, norm, 1e-5, constant
                    )().clone()
                    for w, bias in zip(weights, biases, strict=True)
                ],
                -1,
            )
            exact = a.double() if norm is None else None
            if exact is not None:
                inner = torch.cat([exact @ w.double() for w in weights], -1)
                inner += torch.cat(
                    [torch.zeros_like(g) if b is None else b for b, g in zip(biases, given, strict=True)]
                ).double()
                unit = 2.0**-11 if dtype == torch.float16 else 2.0**-8
                assert bool(((wanted.double() - inner).abs() <= inner.abs() * unit + 3e-5 * 2).all())
            what = (instance.name, str(shape), sizes, constant)
            for _ in range(3):
                assert torch.equal(launch().clone(), wanted), what
            torch.cuda.synchronize()
            graph, copy = torch.cuda.CUDAGraph(), torch.empty_like(wanted)
            with torch.cuda.graph(graph):
                for _ in range(4):
                    copy.copy_(launch())
            copy.zero_()
            graph.replay()
            torch.cuda.synchronize()
            assert torch.equal(copy, wanted), what


@pytest.mark.parametrize("pdl", [False, True], ids=["plain", "pdl"])
@pytest.mark.parametrize("instance", STREAMS, ids=lambda i: i.name)
def test_every_ring(engine: Any, instance: Any, pdl: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    config = StreamConfig(instance, mode=Mode(pdl=pdl))
    for rows, sizes, k in (
        (1, (4096, 1024, 1024), 4096),
        (4, (3584, 512, 512), 3584),
        (7, (16, 4000, 48), 1032),
        (3, (2048, 256), 2048),
    ):
        compare(engine, config, sizes, k, rows, monkeypatch)


@pytest.mark.parametrize("pdl", [False, True], ids=["plain", "pdl"])
@pytest.mark.parametrize("instance", TILES, ids=lambda i: i.name)
def test_every_tile(engine: Any, instance: Any, pdl: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = instance.tile_m if instance.swap_ab else instance.tile_n
    few = (
        (instance.tile_n, (4096, 1024, 1024), 4096),
        (9, (lines, 512, 2 * lines), 3584),
        (5, (784, 272), 1032),
    )
    for rows, sizes, k in few:
        for slices in (1, 2, 3):
            config = EarlySplitKConfig(instance, slices, mode=Mode(pdl=pdl))
            if config.why_illegal(Shape(rows, sum(sizes), k)) is None:
                compare(engine, config, sizes, k, rows, monkeypatch)


class Attends(torch.nn.Module):
    """A decoder layer without attention, gate and up apart."""

    def __init__(self, hidden: int, narrow: int, bias: bool) -> None:
        super().__init__()
        self.norm, self.second = (torch.nn.RMSNorm(hidden, eps=1e-5) for _ in range(2))
        self.q, self.k, self.v = (torch.nn.Linear(hidden, n, bias=bias) for n in (hidden, narrow, narrow))
        self.o = torch.nn.Linear(hidden, hidden, bias=False)
        self.gate, self.up = (torch.nn.Linear(hidden, 2 * hidden, bias=False) for _ in range(2))
        self.down = torch.nn.Linear(2 * hidden, hidden, bias=False)

    def forward(self, x: Any) -> Any:
        y = self.norm(x)
        q, k, v = self.q(y), self.k(y), self.v(y)
        heads = q.unflatten(-1, (-1, k.shape[-1])) * torch.tanh(k).unsqueeze(-2) + v.unsqueeze(-2)
        x = x + self.o(torch.tanh(heads).flatten(-2))
        y = self.second(x)
        return x + self.down(torch.nn.functional.silu(self.gate(y)) * self.up(y))


@pytest.mark.parametrize("bias", [False, True], ids=["", "biases"])
@pytest.mark.parametrize("rows", [1, 4, 8, 16, 33, 64])
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_compiled_layers_are_joined(
    engine: Any, dtype: str, rows: int, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right, and the same bits in 200 replays of a graph and without one; weights stay where they are."""
    torch.manual_seed(3)
    torch._dynamo.reset()
    network = torch.nn.Sequential(*(Attends(4096, 1024, bias) for _ in range(3))).cuda().requires_grad_(False)
    for parameter in network.parameters():
        if parameter.dim() == 2:
            parameter.normal_(std=parameter.shape[1] ** -0.5)
    network = network.to(DTYPES[dtype])
    x = torch.randn(rows, 1, 4096, device="cuda").to(DTYPES[dtype])
    wanted = network.double()(x.double())
    plain = network.to(DTYPES[dtype])(x).double()
    places = [parameter.data_ptr() for parameter in network.parameters()]
    compiled = torch.compile(sassafras.accelerate(network), fullgraph=True, dynamic=False)
    served: list[bool] = []
    real = joined_op._launched
    monkeypatch.setattr(joined_op, "_launched", lambda *call: served.append(real(*call)) or served[-1])
    compiled(x)
    api.settle()
    served.clear()
    first = compiled(x).clone()
    # behind a product; gate and up where no kernel has both, and their product
    pairs = 3 * (rows > engine.gpu(0).chooser.streamed.compiled)
    assert len(served) >= 2 + pairs and all(served), "kernels of ours"
    assert places == [parameter.data_ptr() for parameter in network.parameters()]
    error, others = ((y.double() - wanted).square().mean().sqrt() for y in (first, plain))
    assert float(error) <= 1.5 * float(others)
    same_bits_in_replays(compiled, x, first)
    layers.restore(network)

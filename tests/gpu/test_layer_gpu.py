"""A linear layer with what surrounds it on a GPU: normalised rows, weights read early, compiled blocks."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import sassafras  # noqa: E402
from sassafras.gemm.configs import stream  # noqa: E402
from sassafras.gemm.configs.base import Mode  # noqa: E402
from sassafras.gemm.configs.stream import StreamConfig  # noqa: E402
from sassafras.gemm.matmul import api, layers  # noqa: E402
from tests.gpu.test_stream_gpu import DTYPES, drawn, engine  # noqa: E402

__all__ = ["engine"]  # a fixture
pytestmark = pytest.mark.gpu
NORMED = [i for i in stream.EPILOGUE_INSTANCES if i.norm]
silu = torch.nn.functional.silu


def normalised(a: Any, norm: Any, eps: float) -> Any:
    """In FP64; products with the weight are rounded to the type, at a scale where none overflows."""
    wide = a.double()
    scale = 2.0 ** -(wide.abs().amax(-1, keepdim=True).log2().floor())
    rounded = (wide * scale * norm.double()).to(a.dtype).double() / scale
    return rounded * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)


@pytest.mark.parametrize("size", [1.0, 2.0**13, 2.0**-12], ids=["usual", "large", "small"])
@pytest.mark.parametrize("instance", NORMED, ids=lambda i: i.name)
def test_every_instance_normalises_rows(engine: Any, instance: stream.StreamInstance, size: float) -> None:
    """With and without bias, residual, pair, PDL and early weights; products that overflow FP16 too."""
    dtype = DTYPES[instance.dtype]
    for turn, (rows, n, k) in enumerate(((1, 4096, 4096), (7, 1024, 1032), (4, 4100, 2048), (3, 16, 8))):
        a, w = drawn(rows, n, k, dtype, turn)
        a = a * size
        w, norm = w * k**-0.5, (8 * drawn(1, 1, k, dtype, turn + 3)[0][0]).contiguous()
        bias, residual = drawn(1, 1, n, dtype, turn + 9)[0][0], drawn(rows, 1, n, dtype, turn + 5)[0]
        eps = 1e-6 * size * size
        x = normalised(a, norm, eps)
        for given, added, activation in (
            (None, None, None),
            (bias, residual, "silu"),
            (bias, None, "swiglu"),
        ):
            if activation == "swiglu" and n % 16:
                continue
            inner = x @ w.double().t()
            inner = inner if given is None else inner + given.double()
            inner = inner if added is None else inner + added.double()
            if activation == "swiglu":
                gate, up = inner.chunk(2, -1)
                wanted, spread = silu(gate) * up, 1 + gate.abs() + up.abs()
            else:
                wanted, spread = (silu(inner) if activation else inner), 1 + inner.abs()
            unit = 2.0**-11 if dtype == torch.float16 else 2.0**-8
            allowed = wanted.abs() * unit + 3e-5 * spread
            results = []
            for pdl in (False, True):
                config, more = StreamConfig(instance, mode=Mode(pdl=pdl)), (norm, eps, pdl)
                call = engine.bind(
                    config, a, w.t(), None, given, activation, 1.0, float(added is not None), added, *more
                )
                results += [call().clone(), call().clone()]
            what = (config.name, rows, n, k, activation)
            assert bool(((results[0].double() - wanted).abs() <= allowed).all()), what
            assert all(torch.equal(results[0], one) for one in results), what


@pytest.mark.parametrize("norm", [False, True], ids=["plain", "normed"])
@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
def test_weights_written_before_the_launch_ahead_are_read_whole(engine: Any, graph: bool, norm: bool) -> None:
    """10,000 rounds: a weight is written, a launch comes between, and weights are read early: bitwise as when
    everything is at rest. The launch between is an ordinary kernel or one of ours, plain or overlapping."""
    n, k, count, dtype = 2048, 1024, 5, torch.float16
    x, _ = drawn(4, 1, k, dtype, 1)
    weights = [drawn(1, n, k, dtype, seed)[1] * k**-0.5 for seed in range(count)]
    gammas = [drawn(1, 1, k, dtype, seed + 40)[0][0].contiguous() for seed in range(count)]
    weight, gamma, square = weights[0].clone(), gammas[0].clone(), drawn(1, k, k, dtype, 9)[1] * k**-0.5
    instances = [i for i in stream.EPILOGUE_INSTANCES if i.norm == norm and i.dtype == "fp16"]
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    turns = []
    for number, instance in enumerate(instances):
        config = StreamConfig(instance, mode=Mode(pdl=True))
        ahead = StreamConfig(stream.INSTANCES[0], mode=Mode(pdl=bool(number % 2)))
        between = engine.bind(ahead, x, square.t())
        fresh = between()

        def read(constant: bool, config: Any = config, y: Any = fresh) -> Any:
            more = (gamma, 1e-6) if norm else (None, 0.0)
            return engine.bind(config, y, weight.t(), None, None, None, 1.0, 0.0, None, *more, constant)

        wanted = []
        for index in range(count):
            weight.copy_(weights[index])
            gamma.copy_(gammas[index])
            between()
            torch.cuda.synchronize()
            wanted.append(read(False)().clone())
        reader = read(True)

        def turn(index: int, reader: Any = reader, wanted: Any = wanted, between: Any = between) -> None:
            weight.copy_(weights[index])
            gamma.copy_(gammas[index])
            between()
            wrong.add_((reader() != wanted[index]).sum())

        turns.append(turn)
    rounds = 10_000 // (count * len(turns))
    if not graph:
        for _ in range(rounds):
            for turn in turns:
                for index in range(count):
                    turn(index)
    else:
        torch.cuda.synchronize()
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            for turn in turns:
                for index in range(count):
                    turn(index)
        for _ in range(rounds):
            captured.replay()
    assert int(wrong) == 0


class Block(torch.nn.Module):
    """A decoder layer's halves without attention."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.first, self.second = (torch.nn.RMSNorm(hidden, eps=1e-5) for _ in range(2))
        self.qkv = torch.nn.Linear(hidden, hidden, bias=True)
        self.o = torch.nn.Linear(hidden, hidden, bias=False)
        self.up = torch.nn.Linear(hidden, 2 * inner, bias=False)
        self.down = torch.nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Any) -> Any:
        x = x + self.o(torch.tanh(self.qkv(self.first(x))))
        gate, up = self.up(self.second(x)).chunk(2, -1)
        return x + self.down(silu(gate) * up)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_compiled_blocks_are_chains_of_launches(engine: Any, dtype: str) -> None:
    """Right, and the same bits in 200 replays of a graph and without one."""
    torch.manual_seed(3)
    torch._dynamo.reset()
    network = torch.nn.Sequential(*(Block(2048, 8192) for _ in range(3))).cuda().requires_grad_(False)
    for parameter in network.parameters():
        if parameter.dim() == 2:
            parameter.normal_(std=parameter.shape[1] ** -0.5)
    network = network.to(DTYPES[dtype])
    x = torch.randn(4, 1, 2048, device="cuda").to(DTYPES[dtype])
    wanted = network.double()(x.double())
    plain = network.to(DTYPES[dtype])(x).double()
    compiled = torch.compile(sassafras.accelerate(network), fullgraph=True, dynamic=False)
    first = compiled(x)
    api.settle()
    first = compiled(x).clone()
    pairs = [str(p["config"]) for p in api.status()["problems"] if p["shape"] == "4x16384x2048"]
    assert pairs and pairs[-1].endswith("en/c1+o"), pairs
    error, others = ((y.double() - wanted).square().mean().sqrt() for y in (first, plain))
    assert float(error) <= 1.5 * float(others)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        out = compiled(x)
    for _ in range(200):
        out.zero_()
        captured.replay()
        assert torch.equal(out, first)
    layers.restore(network)

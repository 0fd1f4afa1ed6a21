"""sassafras.linear and accelerated models on a GPU: right, in graphs, compiled, with weights that change."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")

import sassafras  # noqa: E402
from sassafras.gemm.configs.epilogue import ACTIVATIONS, Batch  # noqa: E402
from sassafras.gemm.problem.shape import Shape  # noqa: E402
from tests.gpu.test_matmul_epilogue import built, configs, exact, names, normal, right, served  # noqa: E402

__all__ = ["built"]  # a fixture
DTYPES = (torch.float16, torch.bfloat16)
nn = torch.nn


@pytest.fixture
def room(built: Any) -> Iterator[Any]:
    """Ours serve whatever any of them can run."""
    built._engine.forget()
    built._engine.everything = True
    with torch.no_grad():
        yield built
    built._engine.everything = False
    built._engine.forget()


def called(room: Any, call: Callable[[], Any]) -> Any:
    """The result of a call with its kernels built."""
    call()
    room.settle()
    return call()


def exact_linear(x: Any, weight: Any, bias: Any, activation: Any, residual: Any) -> Any:
    return exact(x, weight.t(), residual, bias, activation, 1.0, 1.0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_against_fp64(room: Any, activation: str | None, dtype: Any) -> None:
    before, count = served(room), 0
    for number, (m, n, k) in enumerate(((1, 512, 256), (3, 64, 1024), (17, 264, 520), (200, 1032, 136))):
        x, weight = normal(m, k, seed=number, dtype=dtype), normal(n, k, seed=number + 1, dtype=dtype)
        bias, residual = normal(n, seed=number + 2, dtype=dtype), normal(m, n, seed=number + 3, dtype=dtype)
        kept = residual.clone()
        for given, added in ((bias, residual), (None, residual), (bias, None), (None, None)):

            def call(given: Any = given, added: Any = added, x: Any = x, weight: Any = weight) -> Any:
                return sassafras.linear(x, weight, given, activation, added)

            result, count = called(room, call), count + 1
            what = (m, n, k, given is not None, added is not None, room.status()["problems"][-1])
            assert right(result, exact_linear(x, weight, given, activation, added), k), what
            assert torch.equal(result, call()) and torch.equal(residual, kept), what
    assert served(room) >= before + 2 * count, room.status()["problems"]


@pytest.mark.parametrize("name", names())
def test_every_instance_reads_a_residual_of_its_own(room: Any, name: str) -> None:
    """As it adds to C in place: the same bits."""
    from sassafras.gemm.configs import registry

    instance = registry.parse_instance(name)
    dtype = torch.bfloat16 if getattr(instance, "dtype", "fp16") == "bf16" else torch.float16
    for m, n, k in ((64, 64, 64), (137, 264, 520), (8, 1032, 2056)):
        a, bias = normal(m, k, dtype=dtype), normal(n, seed=1, dtype=dtype)
        b = normal(n, k, seed=2, dtype=dtype).t() if instance.layout == "tn" else normal(k, n, dtype=dtype)
        residual = normal(m, n, seed=3, dtype=dtype)
        for config in configs(instance, Shape(m, n, k), Batch()):
            fresh = room._engine.bind(config, a, b, None, bias, "silu", 1.0, 1.0, residual)()
            place = residual.clone()
            room._engine.bind(config, a, b, place, bias, "silu", 1.0, 1.0)()
            assert torch.equal(fresh, place), f"{config.name} {m}x{n}x{k}"
            assert right(fresh, exact(a, b, residual, bias, "silu", 1.0, 1.0), k), config.name


def test_in_a_graph(room: Any) -> None:
    x, weight, bias, residual = normal(64, 256), normal(128, 256), normal(128), normal(64, 128)

    def call() -> Any:
        return sassafras.linear(x, weight, bias, "relu", residual)

    called(room, call)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()
    for seed in range(3, 6):
        for tensor in (x, weight, bias, residual):
            tensor.copy_(normal(*tensor.shape, seed=seed))
        graph.replay()
        assert right(out, exact_linear(x, weight, bias, "relu", residual), 256)


# --- weights that are written in place --------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("writer", ["copy", "gemm"])
@pytest.mark.parametrize("between", [0, 1])
def test_a_weight_written_in_place(room: Any, dtype: Any, writer: str, between: int) -> None:
    """1,000 rounds, eager and in a replayed graph, with overlapping launches and without.

    The weight is written one or two launches before it is read, by an ordinary kernel or by one of ours; the
    results have the bits of calls with weights at rest.
    """
    from sassafras.gemm.configs import epilogue, registry
    from sassafras.gemm.configs.base import PLAIN, Mode

    m, n, k, count = 16, 256, 256, 8
    short = "bf16" if dtype == torch.bfloat16 else "fp16"
    found = [c for c in registry.epilogue_configurations() if c.layout == "tn" and c.dtype == short]
    found = [c for c in found if epilogue.why_illegal(c, Shape(m, n, k)) is None]
    one_an_instance = {c.instance: c for c in found}
    x, bias, other = normal(m, k, dtype=dtype), normal(n, dtype=dtype), normal(m, k, seed=7, dtype=dtype)
    weight, identity = torch.empty(n, k, dtype=dtype, device="cuda"), torch.eye(k, dtype=dtype, device="cuda")
    many = [normal(n, k, seed=seed, dtype=dtype) for seed in range(count)]
    for config in list(one_an_instance.values())[:: max(1, len(one_an_instance) // 5)]:
        for mode in (PLAIN, Mode(pdl=True)):
            config = replace(config, mode=mode)
            bind = room._engine.bind
            wanted = []
            for one in many:
                torch.cuda.synchronize()
                wanted.append(bind(config, x, one.t(), None, bias)().clone())
            reader = bind(config, x, weight.t(), None, bias)
            neighbour = bind(config, other, many[0].t(), None, bias)
            copies = [replace_by_product(room, one, identity, weight, mode) for one in many]
            wrong = torch.zeros((), dtype=torch.int64, device="cuda")

            def turn(index: int, copies: Any = copies, reader: Any = reader, neighbour: Any = neighbour,
                     wanted: Any = wanted, wrong: Any = wrong) -> None:  # fmt: skip
                if writer == "copy":
                    weight.copy_(many[index])
                else:
                    copies[index]()
                for _ in range(between):
                    neighbour()
                wrong.add_((reader() != wanted[index]).sum())

            for index in range(2 * count):
                turn(index % count)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for index in range(2 * count):
                    turn(index % count)
            for index in range(1000):
                turn(index % count)
            for _ in range(1000 // (2 * count)):
                graph.replay()
            assert int(wrong) == 0, f"{config.name}: {int(wrong)} elements differ"


def replace_by_product(room: Any, source: Any, identity: Any, weight: Any, mode: Any) -> Callable[[], Any]:
    """A launch of ours that writes `source` into the weight, exactly: source times the identity."""
    from sassafras.gemm.configs import registry

    legal = registry.legal(Shape(*source.shape, identity.shape[0]), layouts=("nn",))
    short = "bf16" if source.dtype == torch.bfloat16 else "fp16"
    config = next(found for c in legal if (found := registry.with_dtype(c, short)) is not None)
    modes = [c for c in config.in_modes() if c.mode == mode] or [config]
    return room._engine.bind(modes[0], source, identity, weight)


# --- models -----------------------------------------------------------------------------------------------


class Block(nn.Module):
    """A feed-forward block with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(256),
            nn.Linear(256, 512),
            nn.Linear(512, 256, bias=False),
        )

    def forward(self, x: Any) -> Any:
        return x + self.down(nn.functional.silu(self.up(self.norm(x))))


def model(dtype: Any) -> Any:
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block(), nn.Linear(256, 1024)).to("cuda", dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", ["eager", None, "reduce-overhead"])
def test_a_model(room: Any, dtype: Any, mode: str | None) -> None:
    torch._dynamo.reset()
    network = model(dtype)
    wanted = copy.deepcopy(network).double()
    sassafras.accelerate(network, wait=True, tokens=(1, 48))
    assert [layer.accelerated for layer in sassafras.layers(network)] == [True] * 5
    run = network if mode == "eager" else torch.compile(network, fullgraph=True, mode=mode)
    unit = 2.0**-6 if dtype == torch.bfloat16 else 2.0**-9
    for rows in (1, 48):
        for seed in range(4):
            x, before = normal(rows, 256, seed=seed, dtype=dtype), served(room)
            result = run(x).clone()
            double = wanted(x.double())
            assert float((result - double).abs().max()) <= 4 * unit * float(double.abs().max())
            assert mode == "reduce-overhead" or served(room) == before + 5, room.status()["problems"]
    sassafras.restore(network)
    before = served(room)
    network(x)
    assert served(room) == before
    torch._dynamo.reset()


def test_a_captured_model_sees_its_weights_change(room: Any) -> None:
    network, x = sassafras.accelerate(model(torch.float16), wait=True, tokens=(16,)), normal(16, 256)
    network(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = network(x)
    for seed in range(20):
        for number, parameter in enumerate(network.parameters()):
            parameter.copy_(0.05 * normal(*parameter.shape, seed=seed + number))
        graph.replay()
        assert torch.equal(out, network(x))


def test_training(room: Any) -> None:
    ours = sassafras.accelerate(model(torch.bfloat16), wait=True, tokens=(64,))
    torchs = sassafras.restore(copy.deepcopy(ours)).double()
    x, before = normal(64, 256, dtype=torch.bfloat16), served(room)
    with torch.enable_grad():
        for network, given in ((ours, x), (torchs, x.double())):
            network(given).square().mean().backward()
    assert served(room) >= before + 5
    for mine, other in zip(ours.parameters(), torchs.parameters(), strict=True):
        assert float((mine.grad - other.grad).abs().max()) <= 0.05 * float(other.grad.abs().max())


@pytest.mark.alone
def test_the_cost_of_a_call(room: Any) -> None:
    """Prints microseconds of the host; a call may cost one more than torch's."""
    x, weight, bias, times = normal(8, 64), normal(64, 64), normal(64), {}
    calls = {
        "torch": lambda: nn.functional.linear(x, weight, bias),
        "ours": lambda: sassafras.linear(x, weight, bias),
    }
    for name in ("torch", "ours", "torch", "ours"):
        called(room, calls[name])
        best = 1e9
        for _ in range(50):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(100):
                calls[name]()
            best = min(best, 1e4 * (time.perf_counter() - begin))
        times[name] = best
    print(f"microseconds a call: {times}", flush=True)
    assert times["ours"] < times["torch"] + 1.5

"""A linear layer with what surrounds it on a GPU: normalised rows, weights read early, compiled blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import sassafras  # noqa: E402
from sassafras.gemm.configs import split_k_early, stream  # noqa: E402
from sassafras.gemm.configs.base import Mode  # noqa: E402
from sassafras.gemm.configs.rows import GATED, LAYER_NORM, RMS_NORM  # noqa: E402
from sassafras.gemm.configs.split_k_early import EarlySplitKConfig  # noqa: E402
from sassafras.gemm.configs.stream import StreamConfig  # noqa: E402
from sassafras.gemm.matmul import api, layers, rows_op  # noqa: E402
from sassafras.gemm.problem.shape import Shape  # noqa: E402
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
    for turn, (rows, n, k) in enumerate(((1, 12288, 4096), (7, 1024, 1032), (4, 9004, 2048), (3, 16, 8))):
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


def same_bits_in_replays(compiled: Any, x: Any, first: Any) -> None:
    """200 replays of a captured call have the bits of `first`."""
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        out = compiled(x)
    for _ in range(200):
        out.zero_()
        captured.replay()
        assert torch.equal(out, first)


def early_config(rows: int, dtype: str, slices: int, pdl: bool) -> Any:
    """A kernel for so many rows that can read its weights early, split over k or not."""
    if rows <= 8:
        kinds = [i for i in stream.EPILOGUE_INSTANCES if not i.norm and i.dtype == dtype]
        return StreamConfig(kinds[slices], mode=Mode(pdl=pdl))
    tiles = (i for i in split_k_early.EPILOGUE_INSTANCES if i.dtype == dtype and i.tile_n >= rows)
    return EarlySplitKConfig(next(tiles), slices, mode=Mode(pdl=pdl))


def _compiled(call: Callable[..., object], *given: Any) -> None:
    """Torch serves a call until its kernel is compiled: wait for that."""
    call(*given)
    api.settle()


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_rows_between_products(engine: Any, dtype: str) -> None:
    """Against FP64: lines of all lengths, magnitudes, weights read early; the same bits again."""
    unit = 2.0**-11 if dtype == "fp16" else 2.0**-8
    ops = torch.ops.sassafras
    for turn, (rows, k) in enumerate(((8, 4096), (16, 2048), (33, 4104), (64, 14336), (1, 8), (9, 16384))):
        x, up = drawn(rows, rows, k, DTYPES[dtype], turn)
        norm = 1 + 0.2 * drawn(1, 1, k, DTYPES[dtype], turn + 7)[0][0]
        for size in (1.0, 2.0**10, 2.0**-10):
            a, eps = x * size, 1e-5 * size * size
            wide = a.double()
            wanted = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * norm.double()
            _compiled(ops.rms_norm, a, norm, eps, False)
            found = [ops.rms_norm(a, norm, eps, constant) for constant in (False, True, True)]
            assert bool(((found[0].double() - wanted).abs() <= (unit + 2e-6) * wanted.abs() + 2**-25).all())
            assert all(torch.equal(found[0], one) for one in found)
            a = a + 10 * size
            wide = a.double() - a.double().mean(-1, keepdim=True)
            exact = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * norm.double()
            for bias in (None, up[0].contiguous()):
                wanted = exact if bias is None else exact + bias.double()
                _compiled(ops.layer_norm, a, norm, bias, eps, False)
                found = [ops.layer_norm(a, norm, bias, eps, constant) for constant in (False, True, True)]
                allowed = unit * wanted.abs() + 2e-5 * (1 + exact.abs())
                assert bool(((found[0].double() - wanted).abs() <= allowed).all())
                assert all(torch.equal(found[0], one) for one in found)
        wanted = silu(x.double()) * up.double()
        _compiled(ops.gated, x, up)
        pairs = [ops.gated(x, up), ops.gated(torch.cat([x, up], -1))]
        assert bool(((pairs[0].double() - wanted).abs() <= (unit + 2e-6) * wanted.abs() + 2**-25).all())
        assert torch.equal(*pairs)
        for kind, other, bias in ((RMS_NORM, norm, None), (GATED, up, None), (LAYER_NORM, norm, norm)):
            asked = kind, x, other, bias, torch.empty_like(x), 1e-5, False
            assert engine.launcher.rows(*asked) is True, "ours ran"


@pytest.mark.parametrize("instance", split_k_early.EPILOGUE_INSTANCES, ids=lambda i: i.name)
def test_every_early_instance(engine: Any, instance: split_k_early.EarlyInstance) -> None:
    """With bias, residual and activation; k split or not; PDL and early weights: right, and the same bits."""
    dtype, most = DTYPES[instance.dtype], instance.tile_n
    unit = 2.0**-11 if instance.dtype == "fp16" else 2.0**-8
    for turn, (rows, n, k) in enumerate(((most, 4096, 4096), (most - 7, 1032, 1032), (9, 72, 4096))):
        a, w = drawn(rows, n, k, dtype, turn)
        w = w * k**-0.5
        bias, residual = drawn(1, 1, n, dtype, turn + 9)[0][0], drawn(rows, 1, n, dtype, turn + 5)[0]
        for slices in (1, 2, 5):
            for given, added, activation in (
                (None, None, None),
                (bias, residual, "silu"),
                (None, residual, None),
            ):
                inner = a.double() @ w.double().t()
                inner = inner if given is None else inner + given.double()
                inner = inner if added is None else inner + added.double()
                wanted = silu(inner) if activation else inner
                results = []
                for pdl in (False, True):
                    config = EarlySplitKConfig(instance, slices, mode=Mode(pdl=pdl))
                    if config.why_illegal(Shape(rows, n, k)):
                        continue
                    more = 1.0, float(added is not None), added, None, 0.0, pdl
                    call = engine.bind(config, a, w.t(), None, given, activation, *more)
                    results += [call().clone() for _ in range(3)]
                allowed = wanted.abs() * unit + 3e-5 * (1 + inner.abs())
                what = (instance.name, rows, n, k, slices, activation)
                assert all(torch.equal(results[0], one) for one in results), what
                assert not results or bool(((results[0].double() - wanted).abs() <= allowed).all()), what


@pytest.mark.parametrize("kind", ["product", "norm", "layer_norm", "gated"])
@pytest.mark.parametrize("rows", [8, 16, 33, 64])
@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
def test_weights_behind_rows_that_start_early_are_read_whole(
    engine: Any, graph: bool, rows: int, kind: str
) -> None:
    """10,000 rounds: weights are written; a product follows, then a kernel that lets the next start before
    its own wait, then a product that reads its weights early. Bitwise as when everything is at rest."""
    n, k, count, dtype = 2048, 1024, 5, torch.float16
    ops, x = torch.ops.sassafras, drawn(rows, 1, k, dtype, 1)[0]
    weights = [drawn(1, n, k, dtype, seed)[1] * k**-0.5 for seed in range(count)]
    gammas = [drawn(1, 1, k, dtype, seed + 40)[0][0].contiguous() for seed in range(count)]
    weight, gamma = weights[0].clone(), gammas[0].clone()
    square = drawn(1, (2 if kind == "gated" else 1) * k, k, dtype, 9)[1] * k**-0.5
    z = torch.empty(rows, k, dtype=dtype, device="cuda")
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    turns = []
    for number, slices in enumerate((1, 2)):
        ahead = engine.bind(early_config(rows, "fp16", slices, bool(number)), x, square.t())
        y = ahead()

        def middle(constant: bool, y: Any = y) -> None:
            if kind == "norm":
                ops.rms_norm.into(y, gamma, 1e-6, constant, out=z)
            elif kind == "layer_norm":
                ops.layer_norm.into(y, gamma, gamma, 1e-6, constant, out=z)
            elif kind == "gated":
                ops.gated.into(y, out=z)

        _compiled(middle, False)
        read_from = y if kind == "product" else z
        config = early_config(rows, "fp16", slices, True)

        def read(constant: bool, config: Any = config, read_from: Any = read_from) -> Any:
            more = None, None, None, 1.0, 0.0, None, None, 0.0, constant
            return engine.bind(config, read_from, weight.t(), *more)

        wanted = []
        for index in range(count):
            weight.copy_(weights[index])
            gamma.copy_(gammas[index])
            ahead()
            torch.cuda.synchronize()
            middle(False)
            torch.cuda.synchronize()
            wanted.append(read(False)().clone())
        reader = read(True)

        def turn(
            index: int, ahead: Any = ahead, middle: Any = middle, reader: Any = reader, wanted: Any = wanted
        ) -> None:
            weight.copy_(weights[index])
            gamma.copy_(gammas[index])
            ahead()
            middle(True)
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
    """A decoder layer's halves without attention; `plain`: with layer norms, biases and GELU."""

    def __init__(self, hidden: int, inner: int, plain: bool) -> None:
        super().__init__()
        norm = torch.nn.LayerNorm if plain else torch.nn.RMSNorm
        self.first, self.second = (norm(hidden, eps=1e-5) for _ in range(2))
        self.qkv = torch.nn.Linear(hidden, hidden, bias=True)
        self.o = torch.nn.Linear(hidden, hidden, bias=plain)
        self.up = torch.nn.Linear(hidden, inner if plain else 2 * inner, bias=plain)
        self.down = torch.nn.Linear(inner, hidden, bias=plain)
        self.plain = plain

    def forward(self, x: Any) -> Any:
        x = x + self.o(torch.tanh(self.qkv(self.first(x))))
        y = self.up(self.second(x))
        if self.plain:
            return x + self.down(torch.nn.functional.gelu(y, approximate="tanh"))
        gate, up = y.chunk(2, -1)
        return x + self.down(silu(gate) * up)


@pytest.mark.parametrize("rows", [4, 8, 16, 33, 64])
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("plain", [False, True], ids=["", "plain"])
def test_compiled_blocks_are_chains_of_launches(
    engine: Any, plain: bool, dtype: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right, and the same bits in 200 replays of a graph and without one."""
    torch.manual_seed(3)
    torch._dynamo.reset()
    network = torch.nn.Sequential(*(Block(2048, 8192, plain) for _ in range(3))).cuda().requires_grad_(False)
    for parameter in network.parameters():
        if parameter.dim() == 2:
            parameter.normal_(std=parameter.shape[1] ** -0.5)
    network = network.to(DTYPES[dtype])
    x = torch.randn(rows, 1, 2048, device="cuda").to(DTYPES[dtype])
    wanted = network.double()(x.double())
    torchs = network.to(DTYPES[dtype])(x).double()
    compiled = torch.compile(sassafras.accelerate(network), fullgraph=True, dynamic=False)
    launched: set[int] = set()
    real = rows_op._launched
    monkeypatch.setattr(rows_op, "_launched", lambda *call: launched.add(call[0]) or real(*call))
    first = compiled(x)
    api.settle()
    first = compiled(x).clone()
    layers_ = [p for p in api.status()["problems"] if p["shape"] == f"{rows}x{8192 if plain else 16384}x2048"]
    assert layers_ and layers_[-1]["member"] == "ours" and str(layers_[-1]["config"]).endswith("+o"), layers_
    fused = rows <= engine.gpu(0).chooser.streamed.compiled
    if plain:
        assert launched == {LAYER_NORM}
    else:
        assert launched == (({RMS_NORM} if rows == 8 else set()) if fused else {RMS_NORM, GATED})
    error, others = ((y.double() - wanted).square().mean().sqrt() for y in (first, torchs))
    assert float(error) <= 1.5 * float(others)
    same_bits_in_replays(compiled, x, first)
    layers.restore(network)

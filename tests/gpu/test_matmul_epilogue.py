"""Kernels with an epilogue and over batches on a GPU: right, reproducible, in graphs and streams."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")

from sassafras.gemm.configs.epilogue import ACTIVATIONS, Batch  # noqa: E402
from sassafras.gemm.problem.shape import Shape  # noqa: E402


@pytest.fixture(scope="module")
def built() -> Any:
    """The module, with kernels and launcher there."""
    if not (torch.cuda.is_available() and torch.cuda.get_device_capability(0) == (9, 0)):
        pytest.skip("needs a Hopper GPU")
    from sassafras.gemm.build import cubins
    from sassafras.gemm.configs import registry
    from sassafras.gemm.matmul import api

    cubins.build(registry.EPILOGUE_INSTANCES)
    if api._engine is None:
        api._set_up()
    api.settle()
    return api


@pytest.fixture
def room(built: Any) -> Iterator[Any]:
    yield built
    built._engine.forget()


def tell(room: Any, shape: Shape, layout: str = "tn") -> None:
    """Make torch slow at this shape, so that ours is chosen."""
    from sassafras.gemm.configs import registry
    from sassafras.gemm.select.selector import Selector
    from sassafras.gemm.select.table import TableRow, TunedTable

    config = next(c for c in registry.legal(shape, layouts=(layout,)))
    room._engine.forget()
    row = TableRow(shape, layout, ((config, 1.0),), 1e4)
    room._engine.gpu(0).chooser = Selector(TunedTable({}, [row]))


def served(room: Any) -> int:
    """Calls that ours have served."""
    return int(room._engine.launcher.counts()["ours"])


def normal(*shape: int, seed: int = 0, dtype: Any = torch.float16) -> Any:
    generator = torch.Generator(device="cuda")
    generator.manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cuda", dtype=torch.float32).to(dtype)


def exact(
    a: Any, b: Any, old: Any = None, bias: Any = None, activation: Any = None, alpha: float = 1.0,
    beta: float = 0.0,
) -> Any:  # fmt: skip
    from sassafras.gemm.matmul.composed import activated

    value = alpha * (a.double() @ b.double())
    value = value if old is None else value + beta * old.double()
    value = value if bias is None else value + bias.double()
    return activated(value, activation)


def right(result: Any, wanted: Any, k: int, alpha: float = 1.0) -> bool:
    unit = 2.0**-7 if result.dtype == torch.bfloat16 else 2.0**-10
    allowed = unit * wanted.abs() + 2e-4 * max(1.0, abs(alpha)) * k**0.5
    return bool(((result.double() - wanted).abs() <= allowed).all())


def laid(layout: str, *shape: int, seed: int, dtype: Any) -> Any:
    """B (..., k, n) as it lies in a layout."""
    if layout == "nn":
        return normal(*shape, seed=seed, dtype=dtype)
    return normal(*shape[:-2], shape[-1], shape[-2], seed=seed, dtype=dtype).mT


def configs(instance: Any, shape: Shape, batch: Batch) -> list[Any]:
    """Every way of splitting k, plain and overlapping; some of them."""
    from sassafras.gemm.configs import epilogue, registry

    legal = [
        c
        for c in registry.epilogue_configurations()
        if c.instance == instance and epilogue.why_illegal(c, shape, batch) is None
    ]
    return [mode for c in legal[:: max(1, len(legal) // 5)] for mode in c.in_modes()]


def few(instance: Any) -> bool:
    """Whether it runs at most 8 rows."""
    from sassafras.gemm.configs.stream import StreamInstance

    return isinstance(instance, StreamInstance)


def names() -> list[str]:
    from sassafras.gemm.configs import registry

    return [i.name for i in registry.EPILOGUE_INSTANCES if not apart(i)]


def apart(instance: Any) -> bool:
    """Whether it is tested in test_layer_gpu.py (rows are normalised) or test_persistent_pair_gpu.py."""
    from sassafras.gemm.configs.persistent_pair import PairInstance

    return isinstance(instance, PairInstance) or bool(getattr(instance, "norm", False))


@pytest.mark.parametrize("name", names())
def test_every_instance(room: Any, name: str) -> None:
    """Boundary and larger shapes, all activations, alpha and beta, gaps, batches; twice the same bits."""
    from sassafras.gemm.configs import registry

    instance = registry.parse_instance(name)
    dtype = torch.bfloat16 if getattr(instance, "dtype", "fp16") == "bf16" else torch.float16
    odd = getattr(instance, "align", 8) == 1
    layout = "nn" if instance.layout == "nn" else "tn"
    shapes = [Shape(64, 64, 64), Shape(1, 8, 8), Shape(137, 264, 520), Shape(300, 1032, 2056)]
    shapes.append(Shape(512, 256, 8192))
    if odd:
        shapes += [Shape(1, 3, 2), Shape(67, 129, 333), Shape(300, 1031, 257)]
    if few(instance):
        shapes = [
            Shape(m, n, k) for m in (1, 3, 8) for n, k in ((7, 8), (64, 520), (1031, 2056), (256, 8192))
        ]
    checked = 0
    for number, (shape, count) in enumerate((s, c) for s in shapes for c in (1, 3)):
        m, n, k = shape.m, shape.n, shape.k
        leading = () if count == 1 else (count,)
        a, bias = normal(*leading, m, k, seed=number, dtype=dtype), normal(n, seed=number + 1, dtype=dtype)
        b = laid(layout, *leading, k, n, seed=number + 2, dtype=dtype)
        old = normal(*leading, m, n, seed=number + 3, dtype=dtype)
        batch = Batch() if count == 1 else Batch(count, m * k, n * k, m * n)
        for index, config in enumerate(configs(instance, shape, batch)):
            activation = [*ACTIVATIONS][(number + index) % 5]
            alpha, beta = [(1.0, 0.0), (0.5, 0.0), (-1.0, 2.0)][index % 3]
            given = None if index % 4 == 3 else bias
            first = old.clone() if beta else torch.full_like(old, float("nan"))
            again = first.clone()
            for out in (first, again):
                room._engine.bind(config, a, b, out, given, activation, alpha, beta)()
            wanted = exact(a, b, old if beta else None, given, activation, alpha, beta)
            what = f"{config.name} {shape} x {count} {activation} {alpha} {beta}"
            assert right(first, wanted, k, alpha), what
            assert torch.equal(first, again), f"{what}: two launches differ"
            checked += 1
    assert checked > 20


@pytest.mark.parametrize("name", names())
def test_nan_propagates(room: Any, name: str) -> None:
    from sassafras.gemm.configs import registry

    instance = registry.parse_instance(name)
    dtype = torch.bfloat16 if getattr(instance, "dtype", "fp16") == "bf16" else torch.float16
    shape = Shape(8 if few(instance) else 64, 128, 512)
    a = normal(shape.m, 512, dtype=dtype)
    b = laid("nn" if instance.layout == "nn" else "tn", 512, 128, seed=1, dtype=dtype)
    a[5, 7] = float("nan")
    for activation in ACTIVATIONS:
        result = room._engine.bind(configs(instance, shape, Batch())[0], a, b, None, None, activation)()
        assert result[5].isnan().all() and not torch.cat([result[:5], result[6:]]).isnan().any()


@pytest.mark.slow
def test_random_calls_through_the_front_door(room: Any) -> None:
    rng = np.random.default_rng(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for turn in range(150):
            m, n, k = (int(2 ** rng.uniform(0, 10)) for _ in range(3))
            if rng.integers(4):
                n, k = -(-n // 8) * 8, -(-k // 8) * 8
            dtype = torch.float16 if rng.integers(3) else torch.bfloat16
            leading = [(), (), (3,), (2, 4)][int(rng.integers(4))]
            layout = ["nn", "tn"][int(rng.integers(2))]
            tell(room, Shape(128, 128, 128), layout)
            room._engine.gpu(0).chooser.settings = type(room._engine.gpu(0).chooser.settings)(reach=99.0)
            a = normal(*leading, m, k, seed=turn, dtype=dtype)
            b = laid(layout, *(leading if rng.integers(2) else ()), k, n, seed=turn + 1, dtype=dtype)
            bias = normal(n, seed=turn + 2, dtype=dtype) if rng.integers(2) else None
            activation = [*ACTIVATIONS][int(rng.integers(5))]
            alpha, beta = float(rng.choice([1.0, 0.5])), float(rng.choice([0.0, 1.0]))
            out = normal(*leading, m, n, seed=turn + 3, dtype=dtype)
            wanted = exact(a, b, out if beta else None, bias, activation, alpha, beta)
            room.matmul(a, b, out, bias=bias, activation=activation, alpha=alpha, beta=beta)
            known = room.status()["problems"]
            loose = 1.0
            if not known or known[-1]["member"] == "torch":  # it rounds after each operation
                loose = 16.0 if dtype == torch.bfloat16 else 4.0
            what = (m, n, k, leading, layout, activation, alpha, beta, known[-1:])
            assert right(out, wanted, int(k * loose**2), loose), what
    assert served(room) > 30


def test_graphs_side_by_side(room: Any) -> None:
    """Two graphs whose launches add up over clusters, replayed on two streams at once."""
    from sassafras.gemm.configs import epilogue, registry

    shape = Shape(128, 128, 8192)
    split = [
        c
        for c in registry.epilogue_configurations()
        if c.layout == "tn" and c.dtype == "fp16" and epilogue.why_illegal(c, shape) is None
        and c.ranges > 1
    ]  # fmt: skip
    bias = normal(128)
    for config in split[:: max(1, len(split) // 6)]:
        graphs, outs, wanted, streams = [], [], [], [torch.cuda.Stream(), torch.cuda.Stream()]
        kept = []  # a graph reads its operands where they were at capture
        for seed, stream in enumerate(streams):
            a, b = normal(128, 8192, seed=seed), normal(128, 8192, seed=seed + 9).t()
            call = room._engine.bind(config, a, b, None, bias, "gelu")
            call()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                outs.append(call())
            graphs.append(graph)
            kept.append((a, b, call))
            wanted.append(exact(a, b, None, bias, "gelu"))
        for _ in range(100):
            for graph, stream in zip(graphs, streams, strict=True):
                with torch.cuda.stream(stream):
                    graph.replay()
        torch.cuda.synchronize()
        assert all(right(out, w, 8192) for out, w in zip(outs, wanted, strict=True)), config.name


def test_overlapping_launches_wait_for_what_they_read(room: Any) -> None:
    """C accumulates over launches that may overlap, and each feeds the next: the bits of plain ones."""
    from sassafras.gemm.configs import registry
    from sassafras.gemm.configs.base import PLAIN, Mode

    bias = 0.01 * normal(256)
    for instance in registry.EPILOGUE_INSTANCES:
        if getattr(instance, "dtype", "fp16") == "bf16" or apart(instance):
            continue
        rows = 8 if few(instance) else 256
        found = configs(instance, Shape(rows, 256, 256), Batch())
        layout = "nn" if instance.layout == "nn" else "tn"
        b = 0.06 * laid(layout, 256, 256, seed=1, dtype=torch.float16)
        results = []
        for mode in (PLAIN, Mode(pdl=True)):
            x, y = normal(rows, 256, seed=2), normal(rows, 256, seed=3)
            config = replace(found[0], mode=mode)
            forth = room._engine.bind(config, x, b, y, bias, "silu", 0.5, 0.5)
            back = room._engine.bind(config, y, b, x, bias, "gelu_tanh", 0.5, 0.5)
            for _ in range(50):
                forth()
                back()
            torch.cuda.synchronize()
            results.append((x, y))
        for plain, overlapping in zip(*results, strict=True):
            assert torch.equal(plain, overlapping) and plain.isfinite().all(), instance.name


def test_gradients_and_compilation(room: Any) -> None:
    tell(room, Shape(64, 128, 256))
    x, w, bias = normal(64, 256), normal(128, 256) * 0.06, normal(128)

    def layer(x: Any, w: Any, bias: Any) -> Any:
        return room.matmul(x, w.t(), bias=bias, activation="gelu_tanh")

    wanted = exact(x, w.t(), None, bias, "gelu_tanh")
    assert right(layer(x, w, bias), wanted, 256)
    hits = served(room)
    for mode in (None, "reduce-overhead"):
        torch._dynamo.reset()
        compiled = torch.compile(layer, fullgraph=True, mode=mode)
        for _ in range(3):
            result = compiled(x, w, bias)
        assert right(result, wanted, 256)
    assert served(room) > hits
    ours = [t.clone().requires_grad_() for t in (x, w, bias)]
    torchs = [t.double().requires_grad_() for t in (x, w, bias)]
    grad = normal(64, 128, seed=5)
    layer(*ours).backward(grad)
    exact(torchs[0], torchs[1].t(), None, torchs[2], "gelu_tanh").backward(grad.double())
    for mine, other in zip(ours, torchs, strict=True):
        assert float((mine.grad.double() - other.grad).abs().max()) <= 0.02 * float(other.grad.abs().max())


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_what_torch_does_instead(room: Any, activation: str | None) -> None:
    """Also where it reaches cuBLASLt's own epilogues."""
    from sassafras.gemm.matmul.composed import composed

    for m in (1, 64, 300):
        a, b, bias = normal(m, 256), normal(128, 256, seed=1).t() * 0.06, normal(128, seed=2)
        for alpha in (1.0, 0.5):
            result = composed(a, b, None, bias, activation, alpha, 0.0)
            assert right(result, exact(a, b, None, bias, activation, alpha), 256 * 16)


def test_a_capture_through_the_front_door(room: Any) -> None:
    tell(room, Shape(192, 64, 512))
    a, b, bias = normal(192, 512), normal(64, 512).t(), normal(64)
    room.matmul(a, b, bias=bias, activation="relu")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = room.matmul(a, b, bias=bias, activation="relu")
    a.copy_(normal(192, 512, seed=7))
    graph.replay()
    torch.cuda.synchronize()
    assert right(out, exact(a, b, None, bias, "relu"), 512)
    assert room.status()["problems"][0]["member"] == "ours", room.status()

"""sassafras.matmul on a GPU: results, memory, graphs, streams, gradients, compilation, first calls."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.gpu

torch = pytest.importorskip("torch")


def _hopper() -> bool:
    return bool(torch.cuda.is_available()) and torch.cuda.get_device_capability(0) == (9, 0)


@pytest.fixture
def room() -> Iterator[Any]:
    """The module, with the compiled launcher built; what a test told the chooser is forgotten after it."""
    if not _hopper():
        pytest.skip("needs a Hopper GPU")
    from sassafras.gemm.matmul import api

    if api._engine is None:
        api._set_up()
    api.settle()
    yield api
    api._engine.forget()


def tell(room: Any, rows: Sequence[Any], **header: Any) -> None:
    """Let the chooser of every device know these rows only."""
    from sassafras.gemm.select.selector import Selector
    from sassafras.gemm.select.table import TunedTable

    engine = room._engine
    engine.forget()
    for ordinal in range(torch.cuda.device_count()):
        engine.gpu(ordinal).chooser = Selector(TunedTable(header, rows), lt_version=header.get("cublaslt"))


def ours_for(shape: Any, layout: str, index: int = 0) -> Any:
    """A row that makes one of our legal configurations the fastest."""
    from sassafras.gemm.configs import registry
    from sassafras.gemm.select.table import TableRow

    legal = [c for c in registry.legal(shape) if c.layout == layout]
    legal.sort(key=lambda c: (c.estimate_us(shape), c.name))
    return TableRow(shape, layout, ((legal[index % len(legal)], 1.0),), 10.0) if legal else None


def served(room: Any, *call: Any) -> Any:
    """The result, after whatever has to be built is there."""
    room.matmul(*call)
    room.settle()
    return room.matmul(*call)


def right(result: Any, a: Any, b: Any) -> bool:
    exact = a.double() @ b.double()
    allowed = 2.0**-10 * exact.abs() + 2e-4 * a.shape[-1] ** 0.5
    return bool(((result.double() - exact).abs() <= allowed).all())


def half(*shape: int, seed: int = 0, device: str = "cuda") -> Any:
    generator = torch.Generator(device=device)
    generator.manual_seed(seed)
    return torch.randn(shape, generator=generator, device=device, dtype=torch.float32).half()


@contextmanager
def full_precision() -> Iterator[None]:
    """torch may reduce in FP16 by default, beyond `right`'s bound. Ours never does: forbidding it changes
    torch's results alone (and leaves a cuBLASLt algorithm to torch)."""
    flags = torch.backends.cuda.matmul
    before = flags.allow_fp16_reduced_precision_reduction
    flags.allow_fp16_reduced_precision_reduction = False
    try:
        yield
    finally:
        flags.allow_fp16_reduced_precision_reduction = before


def who(room: Any, m: int, n: int, k: int) -> list[Any]:
    """What the room says of a shape; of strides that no kernel reads it says nothing, they are torch's."""
    return [p for p in room.status()["problems"] if p["shape"] == f"{m}x{n}x{k}"] or ["torch"]


def members(room: Any) -> list[str]:
    return [p["member"] for p in room.status()["problems"]]


def test_the_compiled_launcher_serves(room: Any) -> None:
    assert room.status()["launcher"] == "compiled", room.status()["notes"]


@pytest.mark.parametrize("layout", ["nn", "tn"])
def test_our_kernels_through_the_front_door(room: Any, layout: str) -> None:
    from sassafras.gemm.problem.shape import Shape

    for number, (m, n, k) in enumerate([(64, 64, 64), (256, 512, 1024), (17, 72, 136), (512, 64, 4096)]):
        row = ours_for(Shape(m, n, k), layout, number)
        tell(room, [row])
        a, b = half(m, k), half(k, n, seed=1) if layout == "nn" else half(n, k, seed=1).t()
        result = served(room, a, b)
        assert members(room)[-1] == "ours" and right(result, a, b)
        assert torch.equal(room.matmul(a, b), result), "the same bits"
        out = torch.full((m, n), float("nan"), device="cuda", dtype=torch.float16)
        assert room.matmul(a, b, out) is out and torch.equal(out, result)
        # gaps between lines, and a column-major result
        wide = half(m, k + 8)[:, :k]
        assert right(served(room, wide, b), wide, b)
        flipped = torch.empty(n, m, device="cuda", dtype=torch.float16).t()
        served(room, a, b, flipped)
        assert right(flipped, a, b)


def test_every_family_through_the_front_door(room: Any) -> None:
    """Tensor maps and workspaces as the compiled launcher passes them."""
    from sassafras.gemm.configs import registry
    from sassafras.gemm.problem.shape import Shape
    from sassafras.gemm.select.table import TableRow

    shape = Shape(512, 512, 2048)
    by_kind: dict[tuple, Any] = {}
    for config in registry.legal(shape):
        launch = config.launch(shape)
        kind = (type(config).__name__, config.layout, bool(launch.workspace_bytes))
        by_kind.setdefault(kind, config)
    a = half(512, 2048)
    b = {"nn": half(2048, 512, seed=1)}
    b["tn"] = b["nn"].t().contiguous().t()
    for kind, config in by_kind.items():
        if config.layout not in b:
            continue
        tell(room, [TableRow(shape, config.layout, ((config, 1.0),), 10.0)])
        result = served(room, a, b[config.layout])
        assert members(room)[-1] == "ours", (kind, room.status()["problems"], room.status()["notes"])
        assert right(result, a, b[config.layout]), kind
        for seed in range(6):  # addresses change, tensor maps follow
            other = half(512, 2048, seed=seed + 7)
            assert right(room.matmul(other, b[config.layout]), other, b[config.layout]), kind


def random_problem(rng: np.random.Generator) -> tuple[Any, Any]:
    m, n, k = (int(2 ** rng.uniform(0, 9.5)) for _ in range(3))
    if rng.integers(3):
        n, k = -(-n // 8) * 8, -(-k // 8) * 8
    a = half(k, m).t() if rng.integers(4) == 0 else half(m, k + int(rng.integers(2)) * 8)[:, :k]
    return a, half(k, n, seed=1) if rng.integers(2) else half(n, k, seed=1).t()


def test_random_problems(room: Any) -> None:
    """Twice: while torch still stands in for what is being compiled, and by whom the chooser wants."""
    with warnings.catch_warnings(), full_precision():
        warnings.simplefilter("ignore")
        for settled in (False, True):
            rng = np.random.default_rng(0)
            for _ in range(300):
                a, b = random_problem(rng)
                m, n, k = a.shape[0], b.shape[1], a.shape[1]
                assert right(room.matmul(a, b), a, b), (
                    m, n, k, a.stride(), b.stride(), settled, who(room, m, n, k),
                )  # fmt: skip
            room.settle()
    if room._engine.gpu(0).chooser is not None:
        assert "ours" in members(room), room.status()["notes"]


def test_nothing_is_copied(room: Any) -> None:
    from sassafras.gemm.problem.shape import Shape

    tell(room, [ours_for(Shape(256, 512, 1024), "tn")])
    a, b = half(256, 1024), half(512, 1024).t()
    served(room, a, b)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = room.matmul(a, b)
    torch.cuda.synchronize()
    from sassafras.gemm.configs import names

    name = room.status()["problems"][-1]["config"]
    config = names.parse(name)
    workspace = config.launch(Shape(256, 512, 1024)).workspace_bytes
    rounded = -(-workspace // 512) * 512
    assert torch.cuda.max_memory_allocated() - before <= result.numel() * 2 + rounded


def test_cuda_graphs_side_by_side(room: Any) -> None:
    """Two graphs with split-k workspaces replayed on two streams at once."""
    from sassafras.gemm.configs import registry
    from sassafras.gemm.problem.shape import Shape
    from sassafras.gemm.select.table import TableRow

    shape = Shape(128, 128, 8192)
    scratch = [c for c in registry.legal(shape) if c.layout == "tn" and c.launch(shape).workspace_bytes]
    row = TableRow(shape, "tn", ((scratch[0], 1.0),), 10.0) if scratch else ours_for(shape, "tn")
    tell(room, [row])
    inputs = [(half(128, 8192, seed=s), half(128, 8192, seed=s + 9).t()) for s in range(2)]
    served(room, *inputs[0])
    graphs, outs, streams = [], [], [torch.cuda.Stream(), torch.cuda.Stream()]
    for (a, b), stream in zip(inputs, streams, strict=True):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            outs.append(room.matmul(a, b))
        graphs.append(graph)
    for _ in range(200):
        for graph, stream in zip(graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
    torch.cuda.synchronize()
    assert all(right(out, *pair) for out, pair in zip(outs, inputs, strict=True))


def test_a_first_call_may_be_inside_a_capture(room: Any) -> None:
    from sassafras.gemm.problem.shape import Shape

    row = ours_for(Shape(192, 64, 512), "tn")
    tell(room, [row])
    a, b = half(192, 512), half(64, 512).t()
    torch.matmul(a, b)  # torch's own warm-up
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = room.matmul(a, b)
    graph.replay()
    torch.cuda.synchronize()
    assert right(out, a, b)


def test_streams_and_threads(room: Any) -> None:
    from sassafras.gemm.problem.shape import Shape

    tell(room, [ours_for(Shape(256, 256, 256), "nn")])
    a, b = half(256, 256), half(256, 256, seed=1)
    exact = served(room, a, b)
    faults: list[str] = []

    def work() -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(200):
                if not torch.equal(room.matmul(a, b), exact):
                    faults.append("differs")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults


@pytest.mark.several
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_several_gpus(room: Any) -> None:
    from sassafras.gemm.problem.shape import Shape

    tell(room, [ours_for(Shape(128, 128, 512), "tn")])
    for device in ("cuda:1", "cuda:0"):
        a, b = half(128, 512, device=device), half(128, 512, device=device).t()
        assert torch.cuda.current_device() == 0
        result = served(room, a, b)
        assert str(result.device) == device and right(result, a, b) and members(room)[-1] == "ours"


def test_gradients(room: Any) -> None:
    from sassafras.gemm.problem.shape import Shape

    tell(room, [ours_for(Shape(64, 128, 256), "tn"), ours_for(Shape(64, 256, 128), "nn")])
    x, w = half(64, 256).requires_grad_(), half(128, 256).requires_grad_()
    y, v = x.detach().clone().requires_grad_(), w.detach().clone().requires_grad_()
    grad = half(64, 128, seed=3)
    for _ in range(2):
        x.grad = w.grad = None
        room.matmul(x, w.t()).backward(grad)
        room.settle()
    torch.matmul(y, v.t()).backward(grad)
    for mine, torchs in ((x.grad, y.grad), (w.grad, v.grad)):
        assert torch.allclose(mine.float(), torchs.float(), rtol=2e-3, atol=2e-2)


def test_torch_compile_with_inductor(room: Any) -> None:
    from sassafras.gemm.problem.shape import Shape

    tell(room, [ours_for(Shape(64, 128, 256), "tn")])
    x, w = half(64, 256), half(128, 256)
    served(room, x, w.t())

    def layer(x: Any, w: Any) -> Any:
        return torch.relu(room.matmul(x, w.t()) + 1)

    hits = room._engine.launcher.counts()["hits"]
    for mode in (None, "reduce-overhead"):
        torch._dynamo.reset()
        compiled = torch.compile(layer, fullgraph=True, mode=mode)
        for _ in range(4):
            result = compiled(x, w)
        assert torch.equal(result, layer(x, w))
    assert room._engine.launcher.counts()["hits"] > hits


def test_cublaslt_member(room: Any) -> None:
    from sassafras.cuda.cublas import CublasLt
    from sassafras.gemm.problem.shape import Shape
    from sassafras.gemm.select.table import TableRow

    shape = Shape(512, 512, 512)
    lt = CublasLt(0, 0, 128 << 20)
    rows = []
    for layout in ("nn", "tn"):
        problem = lt.problem(shape, layout)
        algorithm = lt.candidates(problem)[-1]
        problem.close()
        rows.append(TableRow(shape, layout, (), 10.0, 1.0, algorithm.to_json()))
    tell(room, rows, cublaslt=lt.version)
    a = half(512, 512)
    for b in (half(512, 512, seed=1), half(512, 512, seed=1).t()):
        assert right(served(room, a, b), a, b) and members(room)[-1] == "lt"
    torch.use_deterministic_algorithms(True)
    try:
        assert right(room.matmul(a, b), a, b)
    finally:
        torch.use_deterministic_algorithms(False)


def test_nan_and_infinity_propagate(room: Any) -> None:
    from sassafras.gemm.problem.shape import Shape

    tell(room, [ours_for(Shape(64, 64, 256), "tn")])
    a, b = half(64, 256), half(64, 256).t()
    a[3, 7], a[5, 9] = float("nan"), float("inf")
    result, expected = served(room, a, b), torch.matmul(a, b)
    assert torch.equal(result.isnan(), expected.isnan()) and torch.equal(result.isinf(), expected.isinf())


def test_what_is_not_ours_is_torchs(room: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for a, b in (
            (half(64, 64).float(), half(64, 64).float()), (half(64, 64).bfloat16(), half(64, 64).bfloat16()),
            (half(4, 32, 64), half(4, 64, 32)), (half(0, 64), half(64, 8)), (half(8, 0), half(0, 8)),
            (half(64), half(64, 32)), (half(64, 128)[:, ::2], half(64, 32)),
            (half(61, 67).bfloat16(), half(67, 71).bfloat16()),  # (rows of any length have FP16 kernels)
        ):  # fmt: skip
            got, wanted = room.matmul(a, b), torch.matmul(a, b)
            assert torch.equal(got, wanted), (a.dtype, a.shape, b.shape, room.status()["problems"][-1:])


@pytest.mark.alone
def test_a_first_call_waits_for_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a fresh process with an empty cache: torch serves at once, ours once it is compiled."""
    if not _hopper():
        pytest.skip("needs a Hopper GPU")
    from sassafras.gemm.matmul.loading import load_table

    monkeypatch.setenv("SASSAFRAS_GEMM_CACHE", str(tmp_path))
    if load_table(name := torch.cuda.get_device_name(0)) is None:
        pytest.skip(f"nothing was tuned for {name}: torch serves every call, and nothing is compiled")
    program = """
import time, torch, sassafras
from sassafras.gemm.matmul import api as room
a = torch.randn(64, 4096, device="cuda").half(); b = torch.randn(64, 4096, device="cuda").half().t()
torch.matmul(a, b); torch.cuda.synchronize()
begin = time.perf_counter(); sassafras.matmul(a, b); torch.cuda.synchronize()
first = time.perf_counter() - begin
room.settle()
c = sassafras.matmul(a, b)
exact = a.double() @ b.double()
assert ((c - exact).abs() <= 2**-10 * exact.abs() + 0.02).all()
print(first, room.status()["launcher"], room.status()["problems"][-1]["member"], room.status()["notes"])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    first, launcher, member, *_ = done.stdout.split()
    assert float(first) < 0.5 and launcher == "compiled" and member == "ours", done.stdout


@pytest.mark.alone
def test_cpu_time_a_call(room: Any) -> None:
    """At most torch's and one microsecond; the benchmark (matmul_overhead.py) measures it carefully."""
    from sassafras.gemm.problem.shape import Shape

    tell(room, [ours_for(Shape(64, 64, 64), "nn")])
    a, b = half(64, 64), half(64, 64, seed=1)
    served(room, a, b)

    def per_call(function: Any) -> float:
        best = float("inf")
        for _ in range(30):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(100):
                function(a, b)
            best = min(best, (time.perf_counter() - begin) / 100)
        return 1e6 * best

    assert per_call(room.matmul) <= per_call(torch.matmul) + 1.0

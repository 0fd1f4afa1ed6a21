"""SwiGLU's pair in one kernel: the kernel on the CPU, `linear`, and what becomes of compiled models."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import sassafras  # noqa: E402
from sassafras.core import SassafrasError  # noqa: E402
from sassafras.gemm.configs import epilogue  # noqa: E402
from sassafras.gemm.configs.epilogue import Batch  # noqa: E402
from sassafras.gemm.configs.small import SmallConfig, SmallInstance  # noqa: E402
from sassafras.gemm.configs.stream import StreamConfig, StreamInstance  # noqa: E402
from sassafras.gemm.matmul import api as room  # noqa: E402
from sassafras.gemm.matmul import inductor_graph, swiglu  # noqa: E402
from sassafras.gemm.matmul.planner import Planner  # noqa: E402
from sassafras.gemm.problem.shape import Shape  # noqa: E402
from sassafras.gemm.select import epilogue_selector  # noqa: E402
from sassafras.gemm.select.epilogue_selector import Extra  # noqa: E402
from sassafras.gemm.select.selector import Selector  # noqa: E402
from sassafras.gemm.select.table import TunedTable, shipped_path  # noqa: E402

from .epilogue_launch import Case, build  # noqa: E402
from .hopper_launch import EAGER, LATE, RANDOM  # noqa: E402
from .test_matmul_fused import Install, cache, close, engine, half, install, launches, library  # noqa: E402

__all__ = ["cache", "engine", "install", "library"]  # fixtures
nn, silu = torch.nn, torch.nn.functional.silu
DTYPES = (torch.float16, torch.bfloat16)


def swiglu_layer(x: Any, gate: Any, up: Any = None, bias: Any = None) -> Any:
    return torch.ops.sassafras.layer(x, gate, up, bias, None, None, 0.0, "swiglu")


def exact(x: Any, weight: Any, bias: Any = None) -> Any:
    inner = x.double() @ weight.double().t()
    gate, up = (inner if bias is None else inner + bias.double()).chunk(2, -1)
    return silu(gate) * up


# --- the kernel -------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_every_path_is_right(shared: Path, tmp_path: Path) -> None:
    instances = [StreamInstance(2, 2, 64, epilogue=True), StreamInstance(4, 1, 64, "bf16", epilogue=True)]
    emulator = build(shared)
    cases = (
        Case(activation="swiglu", gap=8, policy=RANDOM, repeats=2),
        Case(activation="swiglu", bias=True, policy=LATE),
        Case(activation="swiglu", beta=1.0, apart=True, gap=16, policy=EAGER),
        Case(activation="swiglu", alpha=0.5, beta=1.0, apart=True, early=True),
    )
    for instance in instances:
        for turn, case in enumerate(cases):
            for text in ("1x16x8", "8x48x520", "3x112x712"):
                wrong = emulator.run(StreamConfig(instance), Shape.parse(text), case, tmp_path)
                assert wrong == "", f"{instance.name} for {text}, case {turn}"


def test_where_it_can_run_and_is_chosen() -> None:
    stream, small = (
        StreamConfig(StreamInstance(4, 2, 256, epilogue=True)),
        SmallConfig(SmallInstance("tn", 1, 2, 4, epilogue=True)),
    )
    assert epilogue.why_illegal(stream, Shape(8, 4096, 4096), pair=True) is None
    assert epilogue.why_illegal(stream, Shape(8, 4104, 4096), pair=True)
    assert "with each other" in str(epilogue.why_illegal(small, Shape(8, 4096, 4096), pair=True))
    chooser = Selector(TunedTable.load(shipped_path("NVIDIA H200")))

    def chosen(text: str, **more: Any) -> str:
        extra = Extra(activation="swiglu", **more)
        found, why = epilogue_selector.choose(chooser, Shape.parse(text), "tn", "bf16", extra=extra)
        return found.name if found else why

    for text in ("1x28672x4096", "8x37888x3584", "4x16384x2048"):
        assert chosen(text) == chosen(text, bias=True) == chosen(text, beta=True)
        assert chosen(text) == "stream_tn_bf16_w8s1k256e/c1+o"
    assert "torch" in chosen("9x28672x4096") and "torch" in chosen("8x1024x1024")
    batch, extra = Batch(2, 4096, 0, 4096), Extra(activation="swiglu")
    assert (
        epilogue_selector.choose(chooser, Shape(8, 28672, 4096), "tn", "fp16", batch, extra=extra)[0] is None
    )


# --- linear -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_launch(engine: Planner, library: Path, dtype: Any) -> None:
    engine.everything = True
    weight, bias, before = half(96, 64, dtype=dtype), half(96, seed=1, dtype=dtype), launches(library)
    wide = half(96, 72, dtype=dtype)[:, :64]
    calls = 0
    for leading in ((8,), (1,), (2, 3), (5, 1), (1, 1)):
        x = half(*leading, 64, seed=calls, dtype=dtype)
        for given, added in ((weight, None), (weight, bias), (wide, None)):
            for _ in range(2):
                result, calls = sassafras.linear(x, given, added, "swiglu"), calls + 1
                assert close(result, exact(x, given, added)) and result.is_contiguous()
    assert launches(library) == before + calls, room.status()["problems"]
    assert {p["activation"] for p in room.status()["problems"]} == {"swiglu"}


@pytest.mark.parametrize("dtype", DTYPES)
def test_two_weights(engine: Planner, library: Path, dtype: Any) -> None:
    engine.everything = True
    x, gate = half(3, 64, dtype=dtype), half(48, 64, seed=1, dtype=dtype)
    up = half(48, 64, seed=2, dtype=dtype)
    before, wanted = launches(library), exact(x, torch.cat([gate, up]))
    for _ in range(2):
        assert close(swiglu_layer(x, gate.t(), up.t()), wanted)
    assert launches(library) == before + 2, room.status()["problems"]
    apart = half(48, 72, seed=2, dtype=dtype)[:, :64]  # with gaps that the gate's weight has not
    assert close(swiglu_layer(x, gate.t(), apart.t()), exact(x, torch.cat([gate, apart])))
    assert launches(library) == before + 2


def test_what_no_kernel_serves_is_composed(engine: Planner, library: Path) -> None:
    """Of our product where one serves, and torch's operations."""
    engine.everything = True
    weight, bias, before = half(96, 64), half(96, seed=1), launches(library)
    assert close(sassafras.linear(half(64), weight, bias, "swiglu"), exact(half(64), weight, bias))
    odd = half(12, 64)  # 6 columns of each
    assert close(sassafras.linear(half(4, 64), odd, None, "swiglu"), exact(half(4, 64), odd))
    assert launches(library) == before + 2, room.status()["problems"]
    single = torch.randn(3, 64), torch.randn(32, 64)
    assert torch.equal(sassafras.linear(*single, None, "swiglu"), swiglu.gated(nn.functional.linear(*single)))


def test_gradients(engine: Planner) -> None:
    engine.everything = True
    given = [half(4, 64), half(32, 64, seed=1), half(32, seed=2)]
    ours = [t.clone().requires_grad_() for t in given]
    doubles = [t.double().requires_grad_() for t in given]
    sassafras.linear(*ours, "swiglu").sum().backward()
    exact(*doubles).sum().backward()

    def near() -> bool:
        return all(
            float((mine.grad - other.grad).abs().max()) <= 4e-3 * float(other.grad.abs().max())
            for mine, other in zip(ours, doubles, strict=True)
        )

    assert near()
    for mine in ours:
        mine.grad = None
    swiglu_layer(ours[0], ours[1].t(), bias=ours[2]).sum().backward()
    assert near()


def test_bad_input(engine: Planner) -> None:
    x, weight = half(4, 64), half(32, 64)
    with pytest.raises(SassafrasError, match="swiglu takes no residual"):
        sassafras.linear(x, weight, None, "swiglu", half(4, 16))
    with pytest.raises(SassafrasError, match=r"weight is \(33, 64\)"):
        sassafras.linear(x, half(33, 64), None, "swiglu")
    with pytest.raises(SassafrasError, match="no activation 'swiglu'"):
        sassafras.matmul(x, weight.t(), activation="swiglu")
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        sassafras.linear(half(4, 63), weight, None, "swiglu")


# --- compiled models ---------------------------------------------------------------------------------------


class Feed(nn.Module):
    """A feed-forward half: gate and up in one layer, or in two."""

    def __init__(self, merged: bool, bias: bool = False, cut: str = "chunk") -> None:
        super().__init__()
        self.cut = cut
        rows = (96,) if merged else (48, 48)
        self.inner = nn.ModuleList(nn.Linear(64, n, bias=bias) for n in rows)
        self.down = nn.Linear(48, 64, bias=False)

    def forward(self, x: Any) -> Any:
        parts = [layer(x) for layer in self.inner]
        if len(parts) == 2:
            gate, up = parts
        elif self.cut == "slice":
            gate, up = parts[0][..., :48], parts[0][..., 48:]
        elif self.cut == "sizes":
            gate, up = parts[0].split([48, 48], -1)
        else:
            gate, up = parts[0].chunk(2, -1)
        pair = up * silu(gate) if self.cut == "turned" else silu(gate) * up
        return x + self.down(pair)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch, shared: Path) -> Iterator[list[Any]]:
    """Graphs as the pass leaves them; caches give kernels of C++, and no graphs."""
    import torch._inductor.config as settings

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(shared / "inductor"))
    torch._dynamo.reset()
    seen: list[Any] = []
    real = inductor_graph.rewrite

    def watched(graph: Any) -> int:
        found = real(graph)
        seen.append((found, [n for n in graph.nodes if n.op == "call_function"]))
        return found

    monkeypatch.setattr(inductor_graph, "rewrite", watched)
    with settings.patch(fx_graph_cache=False, post_grad_custom_pre_pass=None):
        inductor_graph.install()
        yield seen
    torch._dynamo.reset()


def called(graphs: list[Any]) -> tuple[int, list[str]]:
    """How many places the last graph had, and its operators."""
    found, nodes = graphs[-1]
    return found, [str(node.target) for node in nodes]


@pytest.mark.parametrize(
    ("merged", "bias", "cut", "dtype", "every"),
    [  # Inductor takes seconds for each: all rows for one of them
        (True, False, "chunk", torch.float16, [(4, 1), (8,), (1, 2)]),
        (True, True, "slice", torch.bfloat16, [(4, 1)]),
        (False, False, "chunk", torch.bfloat16, [(1, 2)]),
        (True, False, "turned", torch.float16, [(8,)]),
        (True, False, "sizes", torch.float16, [(4, 1)]),
    ],
)
def test_a_compiled_model_has_the_operator(
    install: Install,
    library: Path,
    graphs: list[Any],
    merged: bool,
    bias: bool,
    cut: str,
    dtype: Any,
    every: list[tuple[int, ...]],
) -> None:
    from torch._inductor.utils import run_and_get_code

    install("compiled").everything = True
    torch.manual_seed(1)
    network = Feed(merged, bias, cut).to(dtype).requires_grad_(False)
    for rows in every:
        x, before = half(*rows, 64, dtype=dtype), launches(library)
        wanted = network.double()(x.double())
        network.to(dtype)
        compiled = torch.compile(sassafras.accelerate(network), fullgraph=True, dynamic=False)
        result, (code, *_) = run_and_get_code(compiled, x)
        found, names = called(graphs)
        assert found == 1 and names.count("sassafras.layer.default") == 1, names
        assert re.findall(r"torch\.ops\.sassafras\.\S+?\(", code) == [
            "torch.ops.sassafras.layer.into(", "torch.ops.sassafras.mm.into("
        ]  # fmt: skip
        assert not [n for n in names if re.search(r"exp|silu|sigmoid|split|slice", n)], names
        assert sum(n.startswith("sassafras.") for n in names) == 2, "the pair, and the layer behind it"
        assert close(result, wanted) and launches(library) == before + 2, room.status()["problems"]
        torch._dynamo.reset()


def test_what_a_graph_keeps(install: Install, graphs: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A product that something else reads, gradients, extents that are unknown, no kernels."""
    engine = install("compiled")
    watched = inductor_graph.rewrite

    def enough(graph: Any) -> None:
        watched(graph)
        raise RuntimeError("the graph was seen, and no program is needed")

    monkeypatch.setattr(inductor_graph, "rewrite", enough)
    engine.everything = True
    network = sassafras.accelerate(Feed(True).half())

    def both(x: Any) -> Any:
        inner = network.inner[0](x)
        return swiglu.gated(inner), inner

    def other(x: Any) -> Any:  # halves of one operator, but not a pair
        gate, up = network.inner[0](x).chunk(2, -1)
        return silu(gate) * gate + up

    def uneven(x: Any) -> Any:
        inner = network.inner[0](x)
        return silu(inner[..., :48:2]) * inner[..., 48::2]

    def rounded(x: Any) -> Any:
        gate, up = network.inner[0](x).chunk(2, -1)
        return silu(gate.int().half()) * up

    def outer(x: Any) -> Any:  # each row's gate with all rows
        gate, up = network.inner[0](x).chunk(2, -1)
        return silu(gate.reshape(-1, 1, 48)) * up.reshape(1, -1, 48)

    def wide(x: Any) -> Any:  # in FP32, which a kernel's result is not
        gate, up = network.inner[0](x).chunk(2, -1)
        return silu(gate.float()) * up

    def places(function: Any, x: Any, **options: Any) -> int:
        torch._dynamo.reset()
        graphs.clear()
        with pytest.raises(torch._dynamo.exc.TorchDynamoException, match="the graph was seen"):
            torch.compile(function, fullgraph=True, **{"dynamic": False, **options})(x)
        return int(graphs[-1][0])

    def asked(x: Any) -> Any:
        return sassafras.linear(x, network.inner[0].weight, None, "swiglu")

    with torch.no_grad():
        assert places(asked, half(4, 64)) == 1
        assert places(lambda x: wide(x).half(), half(4, 64)) == 1
        for function in (both, other, uneven, rounded, outer, wide):
            assert places(function, half(4, 64)) == 0, function
        assert places(network, half(4, 64), dynamic=True) == 0
        assert places(network, half(4, 64)) == 1
        engine.everything = False
        engine.forget()
        assert places(network, half(4, 64)) == 0, "the chooser has torch serve so small a product"
    engine.everything = True
    engine.forget()
    assert places(network, half(4, 64)) == 0, "what the backward pass reads is kept"


def test_the_pass_comes_behind_the_users(
    install: Install, graphs: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch._inductor.config as settings
    from torch._inductor.custom_graph_pass import CustomGraphPass

    engine = install("compiled")
    engine.everything = True
    ran: list[str] = []

    class Theirs(CustomGraphPass):
        def __call__(self, graph: Any) -> None:
            ran.extend(str(n.target) for n in graph.nodes)

        def uuid(self) -> Any:
            return b"theirs"

    network = sassafras.accelerate(Feed(True).half()).requires_grad_(False)
    with settings.patch(post_grad_custom_pre_pass=Theirs()):
        inductor_graph.install()
        inductor_graph.install()
        ours = settings.post_grad_custom_pre_pass
        assert ours.uuid()[2:] == (b"theirs",)
        was, path = ours.uuid(), tmp_path / "tuned.json"
        path.write_text('{"sassafras_hgemm_table": 2, "configs": [], "rows": []}')
        monkeypatch.setenv("SASSAFRAS_GEMM_TABLE", str(path))
        assert ours.uuid() == was, "tables are read once"
        engine.forget()
        assert ours.uuid() != was, "a cached graph has what other tables serve"
        torch.compile(network, fullgraph=True)(half(4, 64))
        assert "aten.exp.default" in ran and called(graphs)[0] == 1
    with settings.patch(post_grad_custom_pre_pass=ran.append):  # not cached, as without ours
        inductor_graph.install()
        assert settings.post_grad_custom_pre_pass.uuid() is None

"""A linear layer with what surrounds it in one launch: kernel on the CPU, operator, compiled models."""

from __future__ import annotations

import copy
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import sassafras  # noqa: E402
from sassafras.gemm.configs import epilogue, stream  # noqa: E402
from sassafras.gemm.configs.stream import StreamConfig, StreamInstance  # noqa: E402
from sassafras.gemm.matmul import api as room  # noqa: E402
from sassafras.gemm.matmul import inductor_graph  # noqa: E402
from sassafras.gemm.matmul.layer_op import LayerCall  # noqa: E402
from sassafras.gemm.matmul.plan import plan, why_illegal  # noqa: E402
from sassafras.gemm.matmul.planner import Planner  # noqa: E402
from sassafras.gemm.matmul.problem import CONSTANT, NORM, Problem  # noqa: E402
from sassafras.gemm.problem.shape import Product, Shape  # noqa: E402
from sassafras.gemm.select.selector import Choice  # noqa: E402

from . import spoilt  # noqa: E402
from .epilogue_launch import NORMED, Case, build  # noqa: E402
from .hopper_launch import EAGER, LATE, RANDOM  # noqa: E402
from .test_matmul_fused import Install, cache, close, engine, half, install, launches, library  # noqa: E402

__all__ = ["cache", "engine", "install", "library"]  # fixtures
nn, silu = torch.nn, torch.nn.functional.silu
DTYPES = (torch.float16, torch.bfloat16)

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

# --- the kernel -------------------------------------------------------------------------------------------

CASES = (
    Case(norm=True, gap=8, policy=RANDOM, repeats=2),
    Case(norm=True, early=True, bias=True, policy=LATE),
    Case(norm=True, early=True, activation="swiglu", beta=1.0, apart=True, policy=EAGER),
    Case(norm=True, early=True, beta=1.0, apart=True, alpha=0.5, activation="silu", policy=RANDOM),
    # products with the weight overflow FP16, or lose bits: once more
    Case(norm=True, size=2.0**14, gamma=16.0, policy=RANDOM, repeats=2),
    Case(norm=True, size=2.0**-13, policy=LATE, eps=1e-12),
)


@needs_compiler
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("few", [False, True], ids=["a tile a CTA", "tiles follow one another"])
def test_normalised_rows(
    shared: Path, tmp_path: Path, dtype: str, few: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if few:
        monkeypatch.setattr(stream, "MULTIPROCESSORS", 3)
        monkeypatch.setattr(stream.cost, "residents", lambda threads, shared: 1)
    emulator = build(shared)
    for instance in (one for one in NORMED if one.dtype == dtype):
        for turn, case in enumerate(CASES):
            for text in ("5x80x72", "3x112x712") if few else ("1x16x8", "7x48x520", "3x112x712"):
                wrong = emulator.run(StreamConfig(instance), Shape.parse(text), case, tmp_path)
                assert wrong == "", f"{instance.name} for {text}, case {turn}"


@needs_compiler
def test_what_reads_too_early_is_found(shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `early` weights wait as rows do."""
    emulator = spoilt.epilogue(shared)
    call = StreamConfig(NORMED[0]), Shape(1, 16, 520), Case(norm=True), tmp_path
    assert emulator.run(*call) == ""
    spoilt.ask(monkeypatch, "waits")
    assert "does not wait" in emulator.run(*call)


@needs_compiler
@pytest.mark.parametrize("case", CASES[-2:], ids=["overflow", "small"])
def test_a_line_is_done_once_more_where_that_is_needed(
    shared: Path, tmp_path: Path, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    emulator = spoilt.epilogue(shared)
    call = StreamConfig(NORMED[0]), Shape(3, 112, 712), case, tmp_path
    assert emulator.run(*call) == ""
    spoilt.ask(monkeypatch, "once")
    assert "wrong" in emulator.run(*call)


def test_where_it_can_run() -> None:
    plain, normed = StreamConfig(StreamInstance(4, 2, 256, epilogue=True)), StreamConfig(NORMED[0])
    assert epilogue.why_illegal(normed, Shape(7, 4096, 4096), norm=True) is None
    assert "7 are possible" in str(epilogue.why_illegal(normed, Shape(8, 4096, 4096), norm=True))
    assert "without normalised rows" in str(epilogue.why_illegal(plain, Shape(1, 4096, 4096), norm=True))
    assert "for normalised rows" in str(epilogue.why_illegal(normed, Shape(1, 4096, 4096)))


def test_a_problem_says_what_is_asked_for() -> None:
    product = Product(Shape(4, 4096, 4096), "tn", "fp16", False, "silu", True, False)
    problem = Problem.of(product)
    assert problem.product == product
    for extra in (CONSTANT, NORM):
        again = problem._replace(extra=problem.extra | extra)
        assert again.activation == "silu" and again.product is None
    config = StreamConfig(StreamInstance(4, 2, 256, epilogue=True))
    early = [
        [
            item
            for (name, _), item in zip(config.instance.parameters, launch.parameters, strict=True)
            if name == "early"
        ]
        for launch in (
            plan(config, problem).launches[0],
            plan(config, problem._replace(extra=problem.extra | CONSTANT)).launches[0],
        )
    ]
    assert early == [[("value", 0)], [("value", 1)]]


# --- the operator -----------------------------------------------------------------------------------------


def exact(
    x: Any, weight: Any, other: Any = None, bias: Any = None, residual: Any = None, norm: Any = None,
    eps: float = 0.0, activation: str = "none",
) -> Any:  # fmt: skip
    """In FP64, of the transposed weights; normalised rows are rounded once."""
    dtype, x, weight = x.dtype, x.double(), weight.double()
    if norm is not None:
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * norm.double()
        x = x.to(dtype).double()
    inner = x @ weight
    inner = inner if bias is None else inner + bias.double()
    if other is not None:
        return silu(inner) * (x @ other.double())
    inner = inner if residual is None else inner + residual.double()
    if activation == "swiglu":
        gate, up = inner.chunk(2, -1)
        return silu(gate) * up
    return {"none": lambda v: v, "silu": silu, "relu": torch.relu}[activation](inner)


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_launch(engine: Planner, library: Path, dtype: Any) -> None:
    engine.everything = True
    weight, other = half(96, 64, dtype=dtype).t(), half(96, 64, seed=1, dtype=dtype).t()
    bias, norm = half(96, seed=2, dtype=dtype), 1 + 0.1 * half(64, seed=3, dtype=dtype)
    before, calls = launches(library), 0
    for leading in ((7,), (1,), (2, 3), (5, 1)):
        x, residual = half(*leading, 64, dtype=dtype), half(*leading, 96, seed=4, dtype=dtype)
        for call in (
            (x, weight, None, None, None, norm, 1e-5, "none"),
            (x, weight, None, bias, residual, norm, 1e-2, "silu"),
            (x, weight, None, bias, None, norm, 1e-5, "swiglu"),
            (x, weight, other, None, None, norm, 1e-5, "swiglu"),
            (x, weight, None, None, residual, None, 0.0, "none"),
        ):
            for constant in (False, True):
                result, calls = torch.ops.sassafras.layer(*call, constant), calls + 1
                assert close(result, exact(*call)) and result.is_contiguous(), call[2:]
    assert launches(library) == before + calls, room.status()["problems"]


def test_into_a_given_result(engine: Planner, library: Path) -> None:
    """As Inductor's programs call it: the residual is another tensor than the result."""
    engine.everything = True
    x, weight, residual, norm = half(4, 64), half(96, 64).t(), half(4, 96, seed=1), half(64, seed=2)
    before, out = launches(library), torch.full((4, 96), float("nan")).half()
    torch.ops.sassafras.layer.into(x, weight, residual, norm, "rn", 1e-5, "none", True, out=out)
    assert close(out, exact(x, weight, None, None, residual, norm, 1e-5)) and launches(library) == before + 1
    wide = torch.full((4, 104), float("nan")).half()[:, :96]  # whose lines do not lie as the residual's
    torch.ops.sassafras.layer.into(x, weight, residual, "r", 0.0, "none", True, out=wide)
    assert close(wide, exact(x, weight, None, None, residual)) and launches(library) == before + 1


def test_what_no_kernel_serves_is_composed(engine: Planner, library: Path) -> None:
    engine.everything = True
    weight, norm, before = half(96, 64).t(), half(64, seed=1), launches(library)
    for x in (half(8, 64), half(3, 65)[:, :64]):  # eight normalised rows; lines that miss 16 bytes
        call = x, weight, None, None, None, norm, 1e-5, "none", False
        assert close(torch.ops.sassafras.layer(*call), exact(*call[:-1]))
    assert launches(library) == before, room.status()["problems"]
    single = torch.randn(3, 64), torch.randn(64, 32), None, None, torch.randn(3, 32)
    assert close(torch.ops.sassafras.layer(*single).half(), exact(*single))


def test_gradients(engine: Planner) -> None:
    engine.everything = True
    given = [half(4, 64), half(64, 32, seed=1), half(64, seed=2)]
    ours = [t.clone().requires_grad_() for t in given]
    doubles = [t.double().requires_grad_() for t in given]
    torch.ops.sassafras.layer(ours[0], ours[1], None, None, None, ours[2], 1e-5).sum().backward()
    exact(doubles[0], doubles[1], None, None, None, doubles[2], 1e-5).sum().backward()
    for mine, other in zip(ours, doubles, strict=True):
        assert float((mine.grad - other.grad).abs().max()) <= 1e-2 * float(other.grad.abs().max())


# --- compiled models ---------------------------------------------------------------------------------------


class Spelled(nn.Module):
    """An RMS norm as transformers spells it."""

    def __init__(self, k: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(k))

    def forward(self, x: Any) -> Any:
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.weight * wide.to(x.dtype)


class Block(nn.Module):
    """Two halves with a residual each: one layer behind a norm, or three that share it; SwiGLU's pair."""

    def __init__(self, norm: Any, parts: int = 1, bias: bool = False) -> None:
        super().__init__()
        self.first, self.second = norm(64), norm(64)
        self.qkv = nn.ModuleList(nn.Linear(64, 96 // parts, bias=bias) for _ in range(parts))
        self.o, self.up, self.down = (nn.Linear(k, n, bias=False) for k, n in ((96, 64), (64, 96), (48, 64)))

    def forward(self, x: Any) -> Any:
        normed = self.first(x)
        x = x + self.o(torch.tanh(torch.cat([layer(normed) for layer in self.qkv], -1)))
        gate, up = self.up(self.second(x)).chunk(2, -1)
        return x + self.down(silu(gate) * up)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch, shared: Path) -> Iterator[list[Any]]:
    """The layers' calls in graphs as the pass leaves them; caches give kernels of C++, and no graphs."""
    import torch._inductor.config as settings

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(shared / "inductor"))
    monkeypatch.setattr(inductor_graph, "LEAST_CONSTANT", 1)
    torch._dynamo.reset()
    seen: list[Any] = []
    real = inductor_graph.rewrite

    def watched(graph: Any) -> int:
        found = real(graph)
        seen.append([n for n in graph.nodes if n.op == "call_function"])
        return found

    monkeypatch.setattr(inductor_graph, "rewrite", watched)
    with settings.patch(fx_graph_cache=False, post_grad_custom_pre_pass=None):
        inductor_graph.install()
        yield seen
    torch._dynamo.reset()


def streams(engine: Planner) -> None:
    """Let the stream kernel serve what it can."""

    def choose(problem: Problem) -> Choice:
        every = map(StreamConfig, stream.EPILOGUE_INSTANCES)
        found = next((config for config in every if why_illegal(config, problem) is None), None)
        return Choice("ours" if found else "torch", found, None, 1.0, "asked for")

    engine.choose = choose  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("norm", "parts", "bias", "dtype", "rows"),
    [
        (lambda k: nn.RMSNorm(k, eps=1e-5), 1, True, torch.float16, (4, 1)),
        (Spelled, 3, False, torch.bfloat16, (1, 2)),
    ],
    ids=["one layer", "three layers"],
)
def test_a_block_is_a_chain_of_launches(
    install: Install,
    library: Path,
    graphs: list[Any],
    norm: Any,
    parts: int,
    bias: bool,
    dtype: Any,
    rows: Any,
) -> None:
    from torch._inductor.utils import run_and_get_code

    streams(install("compiled"))
    torch.manual_seed(1)
    network = Block(norm, parts, bias).to(dtype).requires_grad_(False)
    x, before = half(*rows, 64, dtype=dtype), launches(library)
    wanted = network.double()(x.double())
    network.to(dtype)
    compiled = torch.compile(sassafras.accelerate(network), fullgraph=True, dynamic=False)
    result, (code, *_) = run_and_get_code(compiled, x)
    calls = [n for n in graphs[-1] if n.target is torch.ops.sassafras.layer.default]
    asked = [(n.args[5] is not None, n.args[4] is not None, n.args[7], n.args[8]) for n in calls]
    several = [n.args for n in graphs[-1] if n.target is torch.ops.sassafras.joined.default]
    # behind an input, which a launch before the graph may write
    first = [(True, False, "none", False)] if parts == 1 else []
    assert [(a[3] is not None, a[7] is not None, a[9]) for a in several] == [(True, True, False)] * (
        parts > 1
    )
    assert asked == [
        *first,
        (False, True, "none", True),
        (True, False, "swiglu", True),
        (False, True, "none", True),
    ]
    names = " ".join(str(n.target) for n in graphs[-1])
    assert not re.search("rsqrt|mean|pow|exp", names), names
    assert len(re.findall(r"sassafras\.(?:layer|joined)\.into\(", code)) == 4
    assert close(result, wanted) and launches(library) == before + 4, room.status()["problems"]


@pytest.mark.parametrize("name", ["Llama", "Qwen2", "Phi3"])
def test_models_of_transformers_are_chains(
    install: Install, library: Path, graphs: list[Any], name: str
) -> None:
    """A token decoded with a static cache: as near to FP64 as torch's; norms, sums and pairs are inside."""
    transformers = pytest.importorskip("transformers")
    streams(install("compiled"))
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "vocab_size": 96}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    config = getattr(transformers, f"{name}Config")(**sizes, **heads, pad_token_id=0)
    torch.manual_seed(0)
    network = getattr(transformers, f"{name}ForCausalLM")(config).half().eval().requires_grad_(False)
    for parameter in network.parameters():
        if parameter.dim() == 2:
            parameter.normal_(std=parameter.shape[1] ** -0.5)
    tokens = torch.randint(1, 90, (2, 5))

    def decoded(model: Any, forward: Any) -> Any:
        given = {"past_key_values": transformers.StaticCache(config=model.config, max_cache_len=32)}
        with torch.no_grad():
            model(input_ids=tokens[:, :4], use_cache=True, **given)
            return forward(input_ids=tokens[:, 4:], use_cache=True, **given).logits.double()

    exact = copy.deepcopy(network).double()
    wanted, errors = decoded(exact, exact.forward), []
    for model in (network, sassafras.accelerate(network)):
        torch._dynamo.reset()
        before = launches(library)
        result = decoded(model, torch.compile(model.forward, dynamic=False))
        errors.append(float((result - wanted).square().mean().sqrt()))
    assert errors[1] < 1.5 * errors[0] < 0.01, errors
    calls = [LayerCall(*n.args) for n in graphs[-1] if n.target is torch.ops.sassafras.layer.default]
    assert sum(call.norm is not None and call.activation == "swiglu" for call in calls) == 2
    assert sum(call.residual is not None for call in calls) == 4
    assert sum(call.norm is not None for call in calls) == len(calls) - 4
    together = [n.args for n in graphs[-1] if n.target is torch.ops.sassafras.joined.default]
    assert len(together) == 2 * (name != "Phi3") and all(a[3] for a in together), "queries, keys, values"
    assert launches(library) >= before + len(calls) + len(together)


def test_what_a_graph_keeps(install: Install, graphs: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A norm that something else reads, more rows, weights that the graph writes, sums read twice."""
    streams(install("compiled"))
    network = sassafras.accelerate(Block(lambda k: nn.RMSNorm(k, eps=1e-5)).half()).requires_grad_(False)
    watched = inductor_graph.rewrite

    def enough(graph: Any) -> None:
        watched(graph)
        raise RuntimeError("the graph was seen, and no program is needed")

    monkeypatch.setattr(inductor_graph, "rewrite", enough)

    def calls(function: Any, x: Any) -> list[tuple[bool, bool, bool]]:
        """(norm, residual, constant) of each."""
        torch._dynamo.reset()
        graphs.clear()
        with pytest.raises(torch._dynamo.exc.TorchDynamoException, match="the graph was seen"):
            torch.compile(function, fullgraph=True, dynamic=False)(x)
        found = [n.args for n in graphs[-1] if n.target is torch.ops.sassafras.layer.default]
        return [(a[5] is not None, a[4] is not None, a[8]) for a in found]

    ones = half(4, 96), half(96)

    def ahead(x: Any) -> Any:  # a product, behind which weights may be read early
        return torch.tanh(network.down(torch.tanh(x)))

    def read_twice(x: Any) -> Any:
        normed = network.second(ahead(x))
        return network.up(normed) + normed.sum()

    def rounded(x: Any) -> Any:  # what is normalised, and what a norm has made
        y = network.up(network.second(ahead(x).int().half()))
        return y + network.up(network.second(ahead(x)).int().half()).sum()

    def written(x: Any) -> Any:
        network.o.weight.mul_(2)
        return network.o(torch.tanh(network.qkv[0](ahead(x))))

    def sum_twice(x: Any) -> Any:
        y = network.qkv[0](ahead(x))
        return (ones[0] + y) * y

    def broadcast(x: Any) -> Any:
        return network.qkv[0](ahead(x)) + ones[1]

    def first(x: Any) -> Any:  # no launch of the graph is ahead
        return network.o(x[:4])

    o_up_down = [(False, True, True), (True, False, True), (False, True, True)]
    assert calls(network, half(4, 64)) == [(True, False, False), *o_up_down]
    o_up_down[1] = (False, False, True)
    assert calls(network, half(8, 64)) == o_up_down
    assert calls(read_twice, half(4, 48)) == [(False, False, True)]
    assert not any(norm for norm, *_ in calls(rounded, half(4, 48)))
    assert calls(written, half(4, 48)) == [(False, False, True)]
    assert calls(first, half(8, 96)) == []
    assert calls(sum_twice, half(4, 48)) == [(False, False, True)]
    assert calls(broadcast, half(4, 48)) == [(False, False, True)]
    assert calls(network, half(9, 64)) == []

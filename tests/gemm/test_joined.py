"""Products that share their rows in one launch: kernels on the CPU, operator, launchers, compiled models."""

from __future__ import annotations

import shutil
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import sassafras  # noqa: E402
from sassafras.gemm.configs import joined, split_k_early, stream  # noqa: E402
from sassafras.gemm.configs.split_k_early import EarlyInstance, EarlySplitKConfig  # noqa: E402
from sassafras.gemm.configs.stream import StreamConfig, StreamInstance  # noqa: E402
from sassafras.gemm.matmul import api as room  # noqa: E402
from sassafras.gemm.matmul import inductor_graph  # noqa: E402
from sassafras.gemm.matmul.joined_problem import JoinedCall, read_joined  # noqa: E402
from sassafras.gemm.matmul.joined_problem import apart as apart_of  # noqa: E402
from sassafras.gemm.matmul.planner import Planner  # noqa: E402
from sassafras.gemm.matmul.problem import DTYPES, Problem  # noqa: E402
from sassafras.gemm.matmul.recorder import Recorder  # noqa: E402
from sassafras.gemm.problem.shape import Product, Shape  # noqa: E402
from sassafras.gemm.select.selector import Choice  # noqa: E402

from . import graph_alone, stand_in  # noqa: E402
from .epilogue_launch import JOINED, Case, Emulator, build  # noqa: E402
from .hopper_launch import EAGER, LATE, RANDOM  # noqa: E402
from .test_layer import exact, graphs, streams  # noqa: E402
from .test_matmul_fused import Install, cache, close, engine, half, install, launches, library  # noqa: E402
from .test_rows import early  # noqa: E402
from .together import accepted, together  # noqa: E402

__all__ = ["cache", "early", "engine", "graphs", "install", "library"]  # fixtures
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

# --- the stream kernel ------------------------------------------------------------------------------------

CASES = (
    Case(cuts=(64, 80), bias=True, policy=RANDOM, repeats=2),
    Case(cuts=(16,), early=True, gap=8, policy=LATE),
    Case(cuts=(32, 96), early=True, bias=True, without=1, policy=EAGER),
    Case(cuts=(80,), bias=True, without=0, policy=RANDOM),
)


def apart(config: Any) -> Any:
    """The same ring for one product."""
    instance = config.instance
    kind = StreamInstance if isinstance(instance, StreamInstance) else EarlyInstance
    ring = kind(**{field.name: getattr(instance, field.name) for field in fields(instance)})
    return replace(config, instance=ring)


def same_bits(emulator: Emulator, config: Any, shape: Shape, case: Case, folder: Path) -> str:
    """Launches products joined and apart; what is wrong, ``""`` when nothing is."""
    assert joined.why_illegal(shape, case.cuts) is None
    if wrong := emulator.run(config, shape, case, folder):
        return wrong
    whole, ends = found(folder, shape.m), (0, *case.cuts, shape.n)
    for part, columns in enumerate(pairwise(ends)):
        bias = case.bias and part != case.without
        if wrong := emulator.run(
            apart(config), shape, replace(case, cuts=(), columns=columns, without=-1, bias=bias), folder
        ):
            return f"part {part} alone: {wrong}"
        alone = found(folder, shape.m)[:, : columns[1] - columns[0]]
        if not np.array_equal(whole[:, slice(*columns)], alone):
            return f"part {part} has other bits alone"
    return ""


def found(folder: Path, rows: int) -> np.ndarray:
    """What was launched last wrote this."""
    return np.fromfile(folder / "c", np.uint16).reshape(rows, -1)


@pytest.fixture(scope="module")
def emulator(shared: Path) -> Emulator:
    return build(shared)


@needs_compiler
@pytest.mark.parametrize("few", [False, True], ids=["a tile a CTA", "tiles follow one another"])
@pytest.mark.parametrize("number", range(4), ids=lambda n: JOINED[n].name)
def test_joined_products_have_the_bits_of_their_own(
    emulator: Emulator, tmp_path: Path, number: int, few: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if few:
        monkeypatch.setattr(stream, "MULTIPROCESSORS", 3)
        monkeypatch.setattr(stream.cost, "residents", lambda threads, shared: 1)
    config = StreamConfig(JOINED[number])
    normed = config.instance.norm
    more = [Case(cuts=(64, 80), size=2.0**14, gamma=16.0)] * (normed and config.dtype == "fp16")  # once more
    for turn, one in enumerate((*CASES, *more)):
        case, shape = replace(one, norm=normed), Shape((1, 5, 7)[turn % 3], 112, (72, 520)[turn % 2])
        wrong = same_bits(emulator, config, shape, case, tmp_path)
        assert wrong == "", f"{config.instance.name} for {shape}, case {turn}"


#: rows, columns, where parts begin, elements of a line of A, slices; no part is smaller than a tile
TILED = (
    (9, 192, (64, 128), 520, 1),
    (16, 272, (192,), 1032, 2),
    (12, 304, (80, 224), 264, 1),
    (3, 128, (64,), 64, 1),
    (11, 192, (128,), 2056, 3),
    (5, 288, (96, 240), 520, 1),
    (64, 144, (96,), 520, 1),
)


@needs_compiler
@pytest.mark.parametrize("number", range(4, len(JOINED)), ids=lambda n: JOINED[n].name)
def test_joined_tiles_have_the_bits_of_their_own(emulator: Emulator, tmp_path: Path, number: int) -> None:
    ran = 0
    for m, n, cuts, k, slices in TILED:
        config, shape = EarlySplitKConfig(JOINED[number], slices), Shape(m, n, k)
        lines = config.tile[0] if config.swap_ab else config.tile[1]
        if min(end - begin for begin, end in pairwise((0, *cuts, n))) < lines or config.why_illegal(shape):
            continue
        for one in CASES:
            case, ran = replace(one, cuts=cuts), ran + 1
            wrong = same_bits(emulator, config, shape, case, tmp_path)
            assert wrong == "", f"{config.instance.name} for {shape}, {case}"
    assert ran >= 8


@needs_compiler
def test_a_part_at_another_place_is_found(emulator: Emulator, tmp_path: Path) -> None:
    """What is read of each part, and where it goes, is what the launch says."""
    config, shape, case = StreamConfig(JOINED[0]), Shape(3, 112, 72), Case(cuts=(64, 80), bias=True)
    real = joined.launch
    assert emulator.run(config, shape, case, tmp_path) == ""

    def moved(*given: Any) -> Any:
        made = real(*given)
        return replace(made, scalars={**made.scalars, "third_column": 96})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joined, "launch", moved)
        assert emulator.run(config, shape, case, tmp_path) != ""


COMPILED = joined.INSTANCES[0], joined.INSTANCES[12], joined.INSTANCES[16], joined.INSTANCES[-1]


@pytest.mark.parametrize("instance", COMPILED, ids=lambda i: i.name)
def test_sass(instance: Any, shared: Path) -> None:
    program = together(shared, COMPILED)
    opcodes = [i.opcode for i in program.function(instance.name).instructions]
    assert not [op for op in opcodes if op.startswith(("LDL", "STL"))], "no spills"
    accepted(program, instance.name)


def test_what_is_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    config = StreamConfig(stream.EPILOGUE_INSTANCES[0])
    shape = Shape(4, 6144, 4096)
    made = joined.chosen(config, shape, (4096, 5120))
    assert made is not None and made.instance.name == "js_tn_w4s2k256e"
    assert joined.chosen(StreamConfig(stream.INSTANCES[0]), shape, (4096,)) is not None
    assert joined.chosen(None, shape, (4096,)) is None
    assert joined.chosen(config, shape, ()) is None
    for cuts in ((4104,), (4096, 4096), (4096, 5120, 5632), (6144,)):
        assert joined.why_illegal(shape, cuts) is not None
        assert joined.chosen(config, shape, cuts) is None
    (thin, wide), chosen = (
        split_k_early.EPILOGUE_INSTANCES[:2],
        split_k_early.best(Shape(33, 6144, 4096), "bf16"),
    )
    for few, rows, cuts, name in (
        (EarlySplitKConfig(thin), 16, (4096, 5120), "je_tn_swapped_64x16_s10q2e"),
        (EarlySplitKConfig(wide), 32, (4096, 5120), "je_tn_swapped_64x32_s8q2e"),
        (chosen[0], 33, (4096, 5120), "je_tn_bf16_64x48_s7q2e"),
        (chosen[0], 33, (32,), "je_tn_bf16_64x32_s7q2e"),  # no tile is wider than a part
        (chosen[0], 33, (16,), None),
        (EarlySplitKConfig(thin), 16, (4112,), "je_tn_swapped_64x16_s10q2e"),
        (EarlySplitKConfig(thin), 16, (48,), None),
    ):
        other = joined.chosen(few, Shape(rows, 6144, 4096), cuts)
        assert (other and other.instance.name) == name, (few.name, cuts)
    i64 = next(i for i in split_k_early.EPILOGUE_INSTANCES if i.tile_n == 64)
    tiles = joined.chosen(chosen[0], Shape(33, 6144, 4096), (4096, 5120))
    assert joined.launch(tiles, Shape(33, 6144, 4096), (4096, 5120)).grid == (1, 86 + 22 + 22, 1)
    pair = Shape(33, 2 * 4240, 4096)
    assert joined.chosen(EarlySplitKConfig(i64), pair, (4240,)) is not None
    monkeypatch.setattr(joined, "_apart_us", lambda *given: 0.0)
    assert joined.chosen(EarlySplitKConfig(i64), pair, (4240,)) is None, "slower than apart"
    monkeypatch.undo()
    launch = joined.launch(made, shape, (4096,), early=True)
    assert [launch.scalars[name] for name in ("second_column", "third_column", "early")] == [4096, 6144, 1]


# --- operator and launchers -------------------------------------------------------------------------------


def wanted(x: Any, weights: Any, biases: Any = (None,) * 3, norm: Any = None, eps: float = 0.0) -> Any:
    """In FP64."""
    pairs = zip(weights, biases, strict=False)
    return torch.cat([exact(x, w, None, b, None, norm, eps) for w, b in pairs], -1)


def drawn(dtype: Any = torch.float16, k: int = 64) -> tuple[list[Any], list[Any], Any]:
    """Weights of three parts, their biases, a norm."""
    widths = 96, 32, 16
    weights = [half(n, k, seed=n, dtype=dtype).t() for n in widths]
    return weights, [half(n, seed=n + 1, dtype=dtype) for n in widths], 1 + 0.1 * half(k, seed=3, dtype=dtype)


@pytest.mark.parametrize("kind", ["python", "compiled"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_one_launch(install: Install, library: Path, kind: str, dtype: Any) -> None:
    streams(install(kind))
    weights, biases, norm = drawn(dtype)
    before, calls = launches(library), 0
    for leading in ((7,), (1,), (2, 3), (5, 1)):
        x = half(*leading, 64, dtype=dtype)
        for of, added, gamma, eps in (
            (weights, biases, norm, 1e-5),
            (weights, [None, biases[1], None], None, 0.0),
            (weights[1:], [None, None], norm, 1e-2),
            (weights[:2], biases[:2], None, 0.0),
        ):
            given = (*of, *[None] * (3 - len(of)), *added, *[None] * (3 - len(of)), gamma, eps)
            for constant in (False, True):
                result, calls = torch.ops.sassafras.joined(x, *given, constant), calls + 1
                assert close(result, wanted(x, of, added, gamma, eps)) and result.is_contiguous()
    assert launches(library) == before + calls, room.status()["problems"]
    said = room.status()["rows"]
    name = {torch.float16: "fp16", torch.bfloat16: "bf16"}[dtype]
    assert {(row["what"], row["dtype"]) for row in said} == {("joined", name)}
    assert {row["shape"] for row in said} >= {"7x144x64", "1x48x64", "5x128x64"}
    assert all(row["kernel"].startswith("js_tn") for row in said)


@pytest.mark.parametrize("kind", ["python", "compiled"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_one_launch_of_tiles(
    install: Install, library: Path, kind: str, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensor maps of three weights, and of two; straight and transposed tiles."""
    monkeypatch.setattr(split_k_early, "LEAST_CONSTANT", 1)
    engine, before, calls = install(kind), launches(library), 0

    def choose(problem: Problem) -> Choice:
        config = next(iter(split_k_early.best(problem.shape, DTYPES[problem.dtype])), None)
        return Choice("ours", config, None, 1.0, "asked for")

    monkeypatch.setattr(engine, "choose", choose)
    weights = [half(n, 72, seed=n, dtype=dtype).t() for n in (64, 128, 192)]
    biases = [half(n, seed=n + 1, dtype=dtype) for n in (64, 128, 192)]
    for rows in (3, 16, 30, 33, 64):
        x = half(rows, 72, dtype=dtype)
        for of, added in (
            (weights, biases),
            (weights[::-1], [None, None, biases[0]]),
            (weights[:2], [None, None]),
        ):
            absent = [None] * (3 - len(of))
            for constant in (False, True):
                result = torch.ops.sassafras.joined(x, *of, *absent, *added, *absent, None, 0.0, constant)
                calls += 1
                assert close(result, wanted(x, of, added))
                assert stand_in.state_of(library).overlap == 1
    assert launches(library) == before + calls, room.status()["notes"]


def test_into_a_given_result(
    install: Install, library: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    """As Inductor's programs call it; that torch serves is said once."""
    streams(install("compiled"))
    monkeypatch.setattr(room, "_warned", set())
    x, (weights, biases, norm) = half(4, 64), drawn()
    before, out = launches(library), torch.full((4, 144), float("nan")).half()
    more = weights[2], biases[0], biases[2], norm
    torch.ops.sassafras.joined.into(x, *weights[:2], *more, "tbhn", 1e-5, True, out=out)
    assert close(out, wanted(x, weights, [biases[0], None, biases[2]], norm, 1e-5))
    assert launches(library) == before + 1
    wide = torch.full((4, 152), float("nan")).half()[:, :144]  # with gaps
    assert not [w for w in recwarn if w.category is RuntimeWarning]
    for _ in range(2):
        torch.ops.sassafras.joined.into(x, *weights[:2], weights[2], "t", 0.0, True, out=wide)
        assert close(wide, wanted(x, weights)) and launches(library) == before + 1
    assert [str(w.message) for w in recwarn if w.category is RuntimeWarning] == [
        "sassafras.matmul: no kernel of ours served sassafras::joined in a compiled graph; torch runs instead"
    ]


def test_what_no_kernel_serves_is_composed(install: Install, library: Path) -> None:
    """Other types, lines that miss 16 bytes, more rows, a kernel that cannot be launched, no engine."""
    streams(install("compiled"))
    (weights, biases, norm), before = drawn(), launches(library)
    odd = [*weights[:2], half(17, 64).t()]
    for x, of in ((half(9, 64), weights), (half(3, 65)[:, :64], weights), (half(3, 64), odd)):
        given = (x, *of, None, None, None, norm, 1e-2)
        assert close(torch.ops.sassafras.joined(*given), wanted(x, of, norm=norm, eps=1e-2))
    single = torch.ops.sassafras.joined(torch.randn(3, 64), *(w.float() for w in weights))
    assert single.dtype == torch.float32 and launches(library) == before
    x = half(4, 64)
    stand_in.state_of(library).fail = 719
    try:
        with pytest.warns(RuntimeWarning, match="could not be launched .error 719"):
            assert close(torch.ops.sassafras.joined(x, *weights, *biases), wanted(x, weights, biases))
    finally:
        stand_in.state_of(library).fail = 0
    room.suspend(True)
    try:
        assert close(torch.ops.sassafras.joined(half(5, 64), *weights), wanted(half(5, 64), weights))
    finally:
        room.suspend(False)
    assert launches(library) == before


@pytest.mark.parametrize("kind", ["python", "compiled"])
def test_a_kernel_that_cannot_be_loaded_is_torchs(
    install: Install, library: Path, graphs: list[Any], kind: str
) -> None:
    """A GPU without memory left, a damaged file: calls are served, and compiled models too, as they were."""
    streams(engine := install(kind))
    (weights, _, norm), state = drawn(), stand_in.state_of(library)
    network = sassafras.accelerate(Attends(norm=False).half().requires_grad_(False))
    x, before = half(4, 64), launches(library)
    right = network(x).double()
    engine.forget()
    engine._functions.clear()
    state.fail_loading, ours = 2, launches(library)
    try:
        assert close(torch.ops.sassafras.joined(x, *weights), wanted(x, weights))
        normed = torch.nn.functional.rms_norm(x, (64,), norm, 1e-5).double()
        assert close(torch.ops.sassafras.rms_norm(x, norm, 1e-5), normed)
        torch._dynamo.reset()
        assert close(
            torch.compile(network, backend=graph_alone.backend, fullgraph=True, dynamic=False)(x), right
        )
    finally:
        state.fail_loading = 0
    assert before < ours == launches(library)
    put = {n.target for n in graphs[-1]} & inductor_graph._PUT
    assert graphs and not put, "what surrounds a product of torch's is Inductor's"
    assert any("cuModuleLoadData: CUDA error 2" in note for note in engine.notes)


def test_calls_are_recorded(install: Install) -> None:
    """As one product of all columns, which the chooser is asked for; behind a norm, or with weights that are
    read early, as others."""
    streams(install("compiled"))
    weights, biases, norm = drawn()
    try:
        room.watch(recorder := Recorder())
        torch.ops.sassafras.joined(half(2, 2, 64), *weights)
        out = half(4, 144)
        torch.ops.sassafras.joined.into(
            half(4, 64), *weights[:2], weights[2], biases[0], "tb", 0.0, False, out=out
        )
        torch.ops.sassafras.joined(half(4, 64), *weights, None, None, None, norm)
        torch.ops.sassafras.joined(half(4, 64), *weights, constant=True)
    finally:
        room.watch(None)
    products = [Product(Shape(4, 144, 64), "tn", "fp16", bias, None, False, False) for bias in (False, True)]
    assert recorder.calls == dict.fromkeys(products, 1) and recorder.others == 2


def test_both_launchers_read_alike(install: Install) -> None:
    """A call without a plan is told as a problem, as stand-ins without memory have it; or no plan can."""
    launchers_ = [install(kind).launcher for kind in ("python", "compiled")]
    weights, biases, norm = drawn()
    x, memory, wide = half(2, 3, 64), half(2000), half(112, 72)[:96, :64].t()
    out = memory[:864].view(2, 3, 144)
    none = [None] * 3
    calls: list[tuple[Any, ...]] = [
        (x, *weights, *biases, norm, out, 1e-5, True),
        (x, *weights, None, None, biases[2], None, out, 0.0, False),
        (x[0, 0], *weights[:2], None, *none, None, out[0, 0, :128], 0.0, True),
        (x, wide, wide, None, *none, None, half(2, 3, 192), 0.0, False),
        (x.bfloat16(), *(w.bfloat16() for w in weights), *none, None, out.bfloat16(), 0.0, True),
    ]
    for call in calls:
        problems = [launcher.joined(*call) for launcher in launchers_]
        asked = JoinedCall(*call[:8], *call[9:])
        problem, _ = read_joined(asked, None, "cpu") or (None, None)
        assert problems[0] == problems[1] == tuple(problem)  # type: ignore[arg-type]
        whole, cuts = apart_of(problem)  # type: ignore[arg-type]
        assert sum(w.shape[1] for w in asked.weights) == whole.n and whole.layout == "tn"
        assert cuts == tuple(np.cumsum([w.shape[1] for w in asked.weights])[:-1])

    def told(**changes: Any) -> tuple[Any, ...]:
        names = "a", "b", "second", "third", "bias", "second_bias", "third_bias", "norm", "out"
        given = dict(zip(names, calls[0], strict=False)) | changes
        return (*given.values(), 1e-5, True)

    thin = half(96 * 64).as_strided((64, 96), (1, 32))  # columns that overlap
    bad = [
        told(a=None),
        told(out=None),
        told(b=None),
        told(second=None),
        told(third=None),
        told(a=half(2, 3, 72)[..., :64]),
        told(a=x.float()),
        told(a=half(0, 3, 64), out=half(0, 3, 144)),
        told(b=weights[0].bfloat16()),
        told(b=weights[0].contiguous()),
        told(b=half(96, 72)[:, :64].t()),
        told(b=half(96, 56).t()),
        told(
            b=thin, second=thin, third=thin, bias=None, second_bias=None, third_bias=None, out=half(2, 3, 288)
        ),
        told(b=half(88, 64).t(), out=half(2, 3, 136)),
        told(b=half(96 * 64 + 1)[1:].view(96, 64).t()),
        told(b=half(2, 96, 64).mT),
        told(second_bias=half(16)),
        told(second_bias=half(64)[::2]),
        told(bias=half(97)[1:]),
        told(norm=half(32)),
        told(norm=half(128)[::2]),
        told(norm=half(65)[1:]),
        told(out=half(2, 3, 152)[..., :144]),
        told(out=half(6, 144)),
        told(out=half(2, 3, 128)),
        told(a=memory[800:1184].view(2, 3, 64)),
        told(third=memory[800:1824].view(16, 64).t()),
        told(third_bias=memory[848:864]),
        told(norm=memory[856:920]),
    ]
    for call in bad:
        assert [launcher.joined(*call) for launcher in launchers_] == [None, None], call


def test_gradients_are_torchs(install: Install) -> None:
    streams(install("compiled"))
    weights, biases, norm = drawn()
    given = [half(4, 64), *(w.contiguous() for w in weights), *biases, norm]
    ours = [t.clone().requires_grad_() for t in given]
    wide = [t.double().requires_grad_() for t in given]
    torch.ops.sassafras.joined(*ours, 1e-5).sum().backward()
    wanted(wide[0], wide[1:4], wide[4:7], wide[7], 1e-5).sum().backward()
    for mine, other in zip(ours, wide, strict=True):
        assert float((mine.grad - other.grad).abs().max()) <= 1e-2 * float(other.grad.abs().max())


# --- compiled models ---------------------------------------------------------------------------------------


class Reads(torch.nn.Module):
    """A layer ahead, and three that share their rows, read by one behind them."""

    def __init__(self, ahead: Any = torch.tanh) -> None:
        super().__init__()
        self.first, self.ahead = torch.nn.Linear(64, 64, bias=False), ahead
        self.q, self.k, self.v, self.o = (torch.nn.Linear(64, 64) for _ in range(4))

    def forward(self, x: Any) -> Any:
        y = self.ahead(self.first(x))
        return x + self.o(self.q(y) * self.k(y) + self.v(y).sin())


class Attends(torch.nn.Module):
    """A layer ahead, a norm or none, queries, keys and values that are read as attention does."""

    def __init__(self, norm: bool = True, bias: bool = False) -> None:
        super().__init__()
        self.first = torch.nn.Linear(64, 64, bias=False)
        self.norm = torch.nn.RMSNorm(64, eps=1e-5) if norm else torch.nn.Identity()
        self.q, self.k, self.v = (torch.nn.Linear(64, n, bias=bias) for n in (64, 32, 32))
        self.o = torch.nn.Linear(64, 64, bias=not norm)

    def forward(self, x: Any) -> Any:
        x = x + self.first(torch.tanh(x))
        y = self.norm(x)
        q, k, v = (layer(y).unflatten(-1, (-1, 16)).transpose(-3, -2) for layer in (self.q, self.k, self.v))
        k, v = (t.repeat_interleave(4 // t.shape[-3], -3) for t in (k, v))
        y = torch.softmax(q @ k.mT / 4, -1) @ v
        return x + self.o(y.transpose(-3, -2).flatten(-2))


def calls_of(graphs: list[Any]) -> list[JoinedCall]:
    return [JoinedCall(*n.args) for n in graphs[-1] if n.target is torch.ops.sassafras.joined.default]


@pytest.mark.parametrize(
    ("norm", "bias", "dtype"),
    [(True, False, torch.float16), (True, True, torch.bfloat16), (False, True, torch.float16)],
)
def test_queries_keys_and_values_are_one_launch(
    install: Install, library: Path, graphs: list[Any], norm: bool, bias: bool, dtype: Any
) -> None:
    from torch._inductor.utils import run_and_get_code

    streams(install("compiled"))
    torch.manual_seed(1)
    network = Attends(norm, bias).to(dtype).requires_grad_(False)
    x, before = half(2, 3, 64, dtype=dtype), launches(library)
    right = network.double()(x.double())
    network.to(dtype)
    places = [p.data_ptr() for p in network.parameters()]
    compiled = torch.compile(sassafras.accelerate(network), fullgraph=True, dynamic=False)
    result, (code, *_) = run_and_get_code(compiled, x)
    (call,) = calls_of(graphs)
    assert call.constant and (call.norm is not None) == norm and len(call.weights) == 3
    assert all((b is not None) == bias for b in call.biases)
    ops = [str(n.target).split(".")[1] for n in graphs[-1] if "sassafras" in str(n.target)]
    assert ops == ["layer", "joined", "layer"]
    assert code.count("sassafras.joined.into(") == 1
    assert close(result, right) and launches(library) == before + 3, room.status()["problems"]
    assert places == [p.data_ptr() for p in network.parameters()], "no weight was moved"


def test_weights_that_a_graph_views_later_are_viewed_sooner(
    install: Install, graphs: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A weight's view stands right ahead of its product; the graph's order stays right, gradients too."""
    streams(install("compiled"))
    rewrite = inductor_graph.rewrite
    monkeypatch.setattr(inductor_graph, "rewrite", lambda graph: (rewrite(graph), graph.lint())[0])
    network = sassafras.accelerate(Attends(norm=False, bias=True).half().requires_grad_(False))

    def parts(x: Any) -> Any:
        y = network.first(x)
        return torch.cat([2 * network.q(y), 3 * network.k(y), 4 * network.v(y)], -1)

    results = []
    for function in (parts, torch.compile(parts, backend=graph_alone.backend, fullgraph=True, dynamic=False)):
        x = half(5, 64).requires_grad_()
        y = function(x)
        y.sum().backward()
        results += [y, x.grad]
    y, grad, mine, my_grad = (t.detach().double() for t in results)
    assert close(mine, y) and float((my_grad - grad).abs().max()) <= 1e-2 * float(grad.abs().max())
    forward = [
        found for found in graphs if any(n.target is torch.ops.sassafras.joined.default for n in found)
    ]
    assert len(forward) == 1


def test_what_is_returned_lies_as_it_did(
    install: Install, graphs: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts of one result have the strides of tensors of their own where a caller sees them."""
    streams(install("compiled"))
    network = sassafras.accelerate(Attends().half().requires_grad_(False))

    def parts(x: Any) -> Any:
        y = network.first(torch.tanh(x))
        q, k, v = network.q(y), network.k(y), network.v(y).unflatten(-1, (2, 16)).transpose(0, 1)
        return q[:, ::2].sin(), k.cos(), v, v.split(1)[0], torch.as_strided(q, (4, 8), (8, 1), 3).sin()

    x = half(5, 64)
    given, found = parts(x), torch.compile(parts, fullgraph=True, dynamic=False)(x)
    assert calls_of(graphs) == []
    monkeypatch.setattr(inductor_graph, "laid_out", lambda node: False)
    torch._dynamo.reset()
    wrong = torch.compile(parts, fullgraph=True, dynamic=False)(x)
    assert calls_of(graphs) and any(a.stride() != b.stride() for a, b in zip(wrong, given, strict=True))
    for mine, other in zip(found, given, strict=True):
        assert close(mine, other.double()) and mine.stride() == other.stride()


@torch.library.custom_op("sassafras_test::read", mutates_args=())
def _read(x: torch.Tensor) -> torch.Tensor:
    return x.clone(memory_format=torch.contiguous_format)


@_read.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape)


def _changed(v: Any) -> Any:
    v[v > 0] = 1
    return v


@pytest.mark.parametrize(
    "seen", [_changed, lambda v: _read(v.unflatten(-1, (2, 16)))], ids=["changed in place", "read by others"]
)
def test_what_is_seen_otherwise_lies_as_it_did(install: Install, graphs: list[Any], seen: Any) -> None:
    """Inductor writes a scatter's result where its first argument lies; an operator that is no one's we know,
    behind a view, may expect lines without gaps."""
    streams(install("compiled"))
    network = sassafras.accelerate(Attends().half().requires_grad_(False))

    def parts(x: Any) -> Any:
        y = network.first(torch.tanh(x))
        q, k, v = network.q(y), network.k(y), network.v(y)
        return q.sin(), k.cos(), seen(v)

    x = half(5, 64)
    for mine, other in zip(torch.compile(parts, fullgraph=True, dynamic=False)(x), parts(x), strict=True):
        assert close(mine, other.double()) and mine.stride() == other.stride()
    assert [len(call.weights) for call in calls_of(graphs)] == [2]


def test_rows_are_no_part_of_a_larger_result(install: Install, library: Path, graphs: list[Any]) -> None:
    """Inductor computes what is concatenated within the result, with gaps, which no kernel reads there."""
    streams(install("compiled"))
    network = sassafras.accelerate(Attends(norm=False).half().requires_grad_(False))

    def joins(x: Any) -> Any:
        y, z = torch.tanh(network.first(x)), torch.cos(x)
        return torch.cat([z, y], -1), network.q(y).sin(), network.k(y).sin()

    def adds(x: Any) -> Any:
        y, z = torch.tanh(network.first(x)), torch.cos(x)
        return torch.cat([z, y], -1), network.o(z) + y

    for function in (joins, adds):
        for shape in ((5, 64), (2, 3, 64)):
            torch._dynamo.reset()
            x = half(*shape)
            right = [t.double() for t in function(x)]
            before = launches(library)
            found = torch.compile(function, fullgraph=True, dynamic=False)(x)
            assert all(map(close, found, right)) and launches(library) == before + 2


def test_what_a_graph_keeps(install: Install, graphs: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that the graph writes, lines of other lengths, activations, residuals, widths of no tile."""
    engine = install("compiled")
    streams(engine)
    network = sassafras.accelerate(Attends(norm=False, bias=True).half().requires_grad_(False))
    odd = sassafras.accelerate(torch.nn.Linear(64, 24).half().requires_grad_(False))
    wide = [sassafras.accelerate(torch.nn.Linear(64, 32).half().requires_grad_(False)) for _ in range(2)]
    gaps = half(32, 72)[:, :64]

    def joins(parts: Any, x: Any = None) -> list[tuple[int, bool, bool]]:
        """(parts, norm, constant) of each call; the result is right."""

        def function(x: Any) -> Any:
            return [part.sin() for part in parts(x)]

        torch._dynamo.reset()
        graphs.clear()
        x = half(4, 64) if x is None else x
        kept = [p.clone() for p in network.parameters()]
        right = function(x)
        for mine, before in zip(network.parameters(), kept, strict=True):
            mine.copy_(before)
        found = torch.compile(function, backend=graph_alone.backend, fullgraph=True, dynamic=False)(x)
        for mine, other in zip(found, right, strict=True):
            assert close(mine, other.double())
        for mine, before in zip(network.parameters(), kept, strict=True):
            mine.copy_(before)
        return [(len(c.weights), c.norm is not None, c.constant) for c in calls_of(graphs)]

    def ahead(x: Any) -> Any:  # a product, behind which weights may be read early
        return torch.tanh(network.first(torch.tanh(x)))

    def plain(x: Any) -> Any:
        y = ahead(x)
        return network.q(y), network.k(y), network.v(y)

    def first(x: Any) -> Any:  # no launch of the graph is ahead
        return network.q(x), network.k(x), network.v(x)

    def written(x: Any) -> Any:
        y = ahead(x)
        q, k = network.q(y), network.k(y)
        network.v.weight.mul_(2)
        return q, k, network.v(y)

    def bias_written(x: Any) -> Any:
        y = ahead(x)
        q, k = network.q(y), network.k(y)
        network.v.bias.mul_(2)
        return q, k, network.v(y)

    def of_one_more(x: Any) -> Any:
        y = ahead(x)
        return network.q(y), network.k(y), network.v(y), *(layer(y) for layer in wide)

    def of_others(x: Any) -> Any:
        y = ahead(x)
        return network.q(y), network.k(torch.tanh(y)), network.v(torch.sin(y))

    def of_a_width_that_no_tile_has(x: Any) -> Any:
        y = ahead(x)
        return network.q(y), odd(y)

    def activated(x: Any) -> Any:
        y = ahead(x)
        return sassafras.linear(y, wide[0].weight, activation="relu"), network.v(y)

    def with_a_residual(x: Any) -> Any:
        y = ahead(x)
        return network.k(y) + x[:, :32].contiguous(), network.v(y)

    def of_lines_apart(x: Any) -> Any:
        y = ahead(x)
        return sassafras.linear(y, gaps), network.k(y), network.v(y)

    def read_by_a_layer(x: Any) -> Any:  # whose kernel was chosen for lines without gaps
        y = ahead(x)
        return network.o(network.q(y)), network.k(y)

    def normed_and_read(x: Any) -> Any:  # the norm has another reader: it stays
        y = torch.nn.functional.rms_norm(ahead(x), (64,), network.o.bias, 1e-5)
        return network.q(y), network.k(y), y.sum()

    assert joins(plain) == [(3, False, True)]
    assert joins(first) == [(3, False, False)]
    assert joins(written) == joins(bias_written) == [(2, False, True)]
    assert joins(of_one_more) == [(3, False, True), (2, False, True)]
    assert joins(read_by_a_layer) == []
    assert joins(of_others) == joins(of_a_width_that_no_tile_has) == []
    assert joins(activated) == joins(with_a_residual) == []
    assert joins(of_lines_apart) == [(2, False, True)]
    assert joins(normed_and_read) == [(2, False, True)]
    assert joins(plain, half(9, 64)) == [], "rows that the kernel does not have"
    monkeypatch.setattr(joined, "MOST_ELEMENTS", 32 * 64)
    assert joins(plain) == [], "products that take long alone"


@pytest.mark.parametrize(("dtype", "rows"), [(torch.float16, 9), (torch.bfloat16, 32), (torch.bfloat16, 64)])
def test_more_rows_are_one_launch(
    early: Planner, library: Path, graphs: list[Any], dtype: Any, rows: int
) -> None:
    """Split-K tiles, each of one part."""
    torch.manual_seed(1)
    network = Reads(torch.nn.RMSNorm(64, eps=1e-5)).to(dtype).requires_grad_(False)
    x, before = half(rows, 64, dtype=dtype), launches(library)
    right = network.double()(x.double())
    network.to(dtype)
    result = torch.compile(sassafras.accelerate(network), fullgraph=True, dynamic=False)(x)
    (call,) = calls_of(graphs)
    assert call.constant and call.norm is None and len(call.weights) == 3
    assert all(b is not None for b in call.biases)
    ops = [str(n.target).split(".")[1] for n in graphs[-1] if "sassafras" in str(n.target)]
    assert ops == ["mm", "joined", "layer"]
    assert close(result, right) and launches(library) == before + 2, room.status()["problems"]


@pytest.mark.parametrize("rows", [8, 9])
def test_weights_wait_behind_kernels_that_are_not_ours(early: Planner, graphs: list[Any], rows: int) -> None:
    network = sassafras.accelerate(Reads(torch.tanh).half().requires_grad_(False))
    torch.compile(network, fullgraph=True, dynamic=False)(half(rows, 64))
    assert [call.constant for call in calls_of(graphs)] == [rows == 8]

"""What stands between a model's products: kernels on the CPU, operators, compiled models."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import sassafras  # noqa: E402
from sassafras.frontend._image import parameter_sizes  # noqa: E402
from sassafras.gemm.build.cubins import KERNELS  # noqa: E402
from sassafras.gemm.configs import few_rows, rows, split_k_early  # noqa: E402
from sassafras.gemm.configs.epilogue import bits  # noqa: E402
from sassafras.gemm.configs.rows import (  # noqa: E402
    GATED,
    LAYER_NORM,
    RMS_NORM,
    GatedInstance,
    LayerNormInstance,
    RmsNormInstance,
)
from sassafras.gemm.matmul import api as room  # noqa: E402
from sassafras.gemm.matmul.layer_op import LayerCall  # noqa: E402
from sassafras.gemm.matmul.planner import Planner  # noqa: E402
from sassafras.gemm.matmul.problem import Problem, read_rows  # noqa: E402
from sassafras.gemm.select.selector import Choice  # noqa: E402

from . import graph_alone, stand_in  # noqa: E402
from .hopper_launch import HERE, emulated, rounded, spoiling, values  # noqa: E402
from .test_layer import Block, Spelled, graphs  # noqa: E402
from .test_matmul_fused import Install, cache, close, engine, half, install, launches, library  # noqa: E402
from .together import accepted, together  # noqa: E402

__all__ = ["cache", "engine", "graphs", "install", "library"]  # fixtures
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
#: of one warp and more, of one vector a thread and more
INSTANCES: list[Any] = [
    RmsNormInstance("fp16", 64, 1),
    RmsNormInstance("bf16", 32, 4),
    RmsNormInstance("fp16", 128, 2),
    GatedInstance("fp16", 32),
    GatedInstance("bf16", 64),
    LayerNormInstance("fp16", 64, 1),
    LayerNormInstance("bf16", 32, 4),
]


#: what stands in the text; what it does where this fault is asked for; what is then found
FAULTS = (
    (
        "wait_for_predecessors();\n#pragma", "if (emulator::spoilt != 1) wait_for_predecessors();\n#pragma",
        "does not wait",
    ),
    # where it may not be read early
    ("if (p.early) {", "if (p.early || emulator::spoilt == 2) {", "does not wait"),
    (
        "if (column(i) >= p.k) break;", "if (emulator::spoilt != 3 && column(i) >= p.k) break;",
        "store outside",
    ),
    ("place[warp] = sum;", "place[warp] = (emulator::spoilt == 4 ? 1.1f : 1.0f) * sum;", "wrong"),
    # of a layer norm: zeros outside are no deviations; the bias
    (
        "if (CENTRED && column(i) >= p.k) continue;",
        "if (CENTRED && emulator::spoilt != 5 && column(i) >= p.k) continue;", "wrong",
    ),
    (
        "if (CENTRED) values[j] += added[j];",
        "if (CENTRED && emulator::spoilt != 6) values[j] += added[j];", "wrong",
    ),
)  # fmt: skip


def build(shared: Path) -> Path:
    """The emulator of the kernels, compiled once a run; they have a fault only where one is asked for."""
    names = ("epilogue", "sm90_rows")
    edit, changed = spoiling(*(texts[:2] for texts in FAULTS))
    files = {f"{name}.cuh": edit((KERNELS / f"{name}.cuh").read_text()) for name in names}
    assert sorted(changed) == sorted(before for before, *_ in FAULTS), "each text stands in one place"
    files["ptx_rows.cuh"] = (HERE / "rows_emulator.hpp").read_text()
    files["ptx_stream.cuh"] = (HERE / "stream_emulator.hpp").read_text()
    files["emulated_job.hpp"] = (HERE / "emulated_job.hpp").read_text()
    table = " ".join(f"X({n}, {i.template.replace(',', ' COMMA')})" for n, i in enumerate(INSTANCES))
    return emulated(shared, "emulated_rows.cpp", files, INSTANCES=table)


def run(program: Path, number: int, arrays: dict[str, Any], plan: Any, folder: Path, eps: float) -> Any:
    """C's patterns, or what is wrong."""
    for name, array in arrays.items():
        array.tofile(folder / name)
    instance = INSTANCES[number]
    words = [number, *plan.grid[:2], plan.threads, plan.shared_bytes]
    words += [name if name in arrays else "-" for name in ("a", "b", "norm", "bias", "c")]
    for name, kind in instance.parameters:
        if kind.startswith("*"):
            words.append(name)
        else:
            words += ["float", bits(eps)] if kind == "f32" else ["int", plan.scalars[name]]
    (folder / "job").write_text(" ".join(map(str, words)))
    command: Sequence[str] = [str(program), "job"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        return done.stderr.strip() or f"status {done.returncode}"
    if (np.fromfile(folder / "c.stores", np.uint8) != 1).any():
        return "an element was not stored once"
    return np.fromfile(folder / "c", np.uint16).reshape(arrays["c"].shape)


def right(found: Any, wanted: np.ndarray, dtype: str) -> str:
    """What is wrong, ``""`` when nothing is."""
    if isinstance(found, str):
        return found
    unit = 2.0**-8 if dtype == "bf16" else 2.0**-11
    wrong = ~(np.abs(values(found, dtype) - wanted) <= np.abs(wanted) * (unit + 2e-6) + 2.0**-25)
    return f"{wrong.sum()} of {wrong.size} wrong" if wrong.any() else ""


def normed(
    program: Path, number: int, folder: Path, m: int, k: int, *, early: bool = False, gap: int = 0,
    size: float = 1.0, eps: float = 1e-5, shift: float = 0.0, biased: bool = True,
) -> str:  # fmt: skip
    instance, rng = INSTANCES[number], np.random.default_rng(k)
    a = rounded(shift + size * rng.standard_normal((m, k + gap)), instance.dtype)
    norm = rounded(1 + 0.2 * rng.standard_normal(k), instance.dtype)
    x = values(a, instance.dtype)[:, :k]
    arrays, centred = {"a": a, "norm": norm}, isinstance(instance, LayerNormInstance)
    if centred:
        x = x - x.mean(-1, keepdims=True)
    wanted = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * values(norm, instance.dtype)
    if centred and biased:
        arrays["bias"] = rounded(rng.standard_normal(k), instance.dtype)
        wanted = wanted + values(arrays["bias"], instance.dtype)
    assert instance.why_illegal(m, k, k + gap) is None
    arrays["c"] = np.zeros((m, k), np.uint16)
    found = run(program, number, arrays, instance.launch(m, k, k + gap, early), folder, eps)
    return right(found, wanted, instance.dtype)


def multiplied(program: Path, number: int, folder: Path, m: int, n: int) -> str:
    instance, rng = INSTANCES[number], np.random.default_rng(n)
    gate, up = (rounded(2 * rng.standard_normal((m, n)), instance.dtype) for _ in range(2))
    x = values(gate, instance.dtype)
    wanted = x / (1 + np.exp(-x)) * values(up, instance.dtype)
    arrays = {"a": gate, "b": up, "c": np.zeros((m, n), np.uint16)}
    return right(run(program, number, arrays, instance.launch(m, n, n), folder, 0.0), wanted, instance.dtype)


@needs_compiler
def test_rows_are_normalised(shared: Path, tmp_path: Path) -> None:
    program = build(shared)
    for number, instance in enumerate(INSTANCES[:3]):
        for turn, (m, k) in enumerate(((1, 8), (3, 264), (2, instance.most))):
            found = normed(program, number, tmp_path, m, k, early=turn % 2 == 1, gap=8 * turn)
            assert found == "", f"{instance.name}, {m} x {k}"
    for size, eps in ((2.0**13, 1e-5), (2.0**-13, 1e-12)):
        assert normed(program, 0, tmp_path, 2, 512, size=size, eps=eps) == ""


@needs_compiler
def test_rows_are_centred(shared: Path, tmp_path: Path) -> None:
    """With a bias and without; a mean of a thousand deviations, which a difference of squares would lose."""
    program = build(shared)
    for number in (5, 6):
        instance = INSTANCES[number]
        for turn, (m, k) in enumerate(((1, 8), (3, 264), (2, instance.most))):
            found = normed(
                program, number, tmp_path, m, k, early=turn % 2 == 1, gap=8 * turn, biased=turn != 2
            )
            assert found == "", f"{instance.name}, {m} x {k}"
    assert normed(program, 5, tmp_path, 2, 512, shift=1000.0, eps=0.0, biased=False) == ""


@needs_compiler
def test_pairs_are_multiplied(shared: Path, tmp_path: Path) -> None:
    program = build(shared)
    for number in (3, 4):
        for m, n in ((1, 8), (3, 264), (2, 1024)):
            assert multiplied(program, number, tmp_path, m, n) == "", f"{INSTANCES[number].name}, {m} x {n}"


@needs_compiler
@pytest.mark.parametrize("fault", range(1, len(FAULTS) + 1))
def test_a_spoilt_norm_is_found(
    shared: Path, tmp_path: Path, fault: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = build(shared)
    number = 0 if fault < 5 else 5
    assert normed(program, number, tmp_path, 1, 264) == ""
    monkeypatch.setenv("SPOILT", str(fault))
    assert FAULTS[fault - 1][2] in normed(program, number, tmp_path, 1, 264)


@pytest.mark.parametrize("instance", rows.INSTANCES, ids=lambda i: i.name)
def test_sass(instance: Any, shared: Path) -> None:
    """The launch behind starts first; nothing but a constant weight is read before the wait."""
    program = together(shared, rows.INSTANCES)
    opcodes = [i.opcode for i in program.function(instance.name).instructions]
    assert opcodes.index("PREEXIT") < opcodes.index("ACQBULK")
    loads = [number for number, op in enumerate(opcodes) if op.startswith("LDG")]
    early = [number for number in loads if number < opcodes.index("ACQBULK")]
    each, centred = getattr(instance, "vectors", 0), isinstance(instance, LayerNormInstance)
    fixed = each * (1 + centred)  # read early or late
    assert len(early) == fixed and len(loads) == (each + 2 * fixed or 2), "128 bits each"
    assert all(".128" in opcodes[number] for number in loads)
    assert not [op for op in opcodes if op.startswith(("LDL", "STL"))], "no spills"
    accepted(program, instance.name)
    sizes = parameter_sizes(program.cubin.entries[instance.name])
    assert sizes == [8 if of.startswith("*") else 4 for _, of in instance.parameters]


def test_what_they_cannot_run() -> None:
    few, many = rows.RMS_NORMS[0], rows.RMS_NORMS[2]
    assert few.why_illegal(16, 4096, 4096) is None and many.why_illegal(64, 16384, 16384) is None
    assert "4096 are possible" in str(few.why_illegal(1, 4104, 4104))
    assert "16384 are possible" in str(many.why_illegal(1, 16392, 16392))
    assert "no multiples of 8" in str(few.why_illegal(1, 100, 100))
    assert "a grid takes" in str(rows.PAIRS[0].why_illegal(70_000, 64, 128))
    most = 2**31 - 2048
    assert rows.PAIRS[0].why_illegal(1, most, most) is None
    assert "32 bits" in str(rows.PAIRS[0].why_illegal(1, most + 8, most + 8))


# --- operators --------------------------------------------------------------------------------------------


def silu_of(gate: Any, up: Any) -> Any:
    return torch.nn.functional.silu(gate.double()) * up.double()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_operators_launch_a_kernel(engine: Planner, library: Path, dtype: Any) -> None:
    before, calls = launches(library), 0
    for leading, k in (((9,), 64), ((2, 5), 128), ((1,), 4104)):
        x, norm = half(*leading, k, dtype=dtype), half(k, seed=1, dtype=dtype)
        wanted = x.double() * torch.rsqrt(x.double().square().mean(-1, keepdim=True) + 1e-5) * norm.double()
        for constant in (False, True):
            assert close(torch.ops.sassafras.rms_norm(x, norm, 1e-5, constant), wanted)
            assert stand_in.state_of(library).overlap == 1
            for bias in (None, half(k, seed=3, dtype=dtype)):
                found = torch.ops.sassafras.layer_norm(x, norm, bias, 1e-5, constant)
                assert close(found, exact_norm(x, norm, 1e-5, bias, centred=True))
        up = half(*leading, k, seed=2, dtype=dtype)
        assert close(torch.ops.sassafras.gated(x, up), silu_of(x, up))
        assert close(torch.ops.sassafras.gated(torch.cat([x, up], -1)), silu_of(x, up))
        calls += 8
        assert launches(library) == before + calls


def test_what_no_kernel_takes_is_torchs(engine: Planner, library: Path) -> None:
    """Lines that are no multiples of 8, too long, or apart; other types; a kernel that cannot be launched."""
    before = launches(library)
    for k in (60, 16392):
        x, norm = half(3, k), half(k, seed=1)
        assert close(torch.ops.sassafras.rms_norm(x, norm, 1e-2), exact_norm(x, norm, 1e-2))
        found = torch.ops.sassafras.layer_norm(x, norm, norm, 1e-2)
        assert close(found, exact_norm(x, norm, 1e-2, norm, centred=True))
    x = half(9, 128)
    assert close(
        torch.ops.sassafras.rms_norm(x[:, :64], half(64), 1e-2), exact_norm(x[:, :64], half(64), 1e-2)
    )
    single = torch.randn(4, 64)
    assert torch.ops.sassafras.gated(single).dtype == torch.float32
    assert close(torch.ops.sassafras.gated(x.t().contiguous()[:, :6]), silu_of(*x.t()[:, :6].chunk(2, -1)))
    assert launches(library) == before
    stand_in.state_of(library).fail = 719
    try:
        with pytest.warns(RuntimeWarning, match="could not be launched .error 719"):
            assert close(torch.ops.sassafras.gated(x), silu_of(*x.chunk(2, -1)))
    finally:
        stand_in.state_of(library).fail = 0


def test_both_launchers_read_alike(install: Install) -> None:
    """What there is no plan for is told as a problem, as stand-ins without memory have it; or no plan can."""
    launchers_ = [install(kind).launcher for kind in ("python", "compiled")]
    x, wide = half(6, 64), half(2, 3, 128, dtype=torch.bfloat16)
    calls = [
        (RMS_NORM, x, half(64), None, torch.empty_like(x), True),
        (RMS_NORM, x, half(64), None, torch.empty_like(x), False),
        (RMS_NORM, x[0], half(64), None, half(64), False),
        (LAYER_NORM, x, half(64), half(64), torch.empty_like(x), True),
        (LAYER_NORM, x, half(64), None, torch.empty_like(x), False),
        (GATED, x, half(6, 64), None, torch.empty_like(x), False),
        (GATED, wide, None, None, half(2, 3, 64, dtype=torch.bfloat16), False),
    ]
    for kind, a, other, bias, out, constant in calls:
        found = [launcher.rows(kind, a, other, bias, out, 1e-5, constant) for launcher in launchers_]
        problem, _ = read_rows(kind, a, other, bias, None, constant, "cpu") or (None, None)
        assert found[0] == found[1] == tuple(problem)  # type: ignore[arg-type]
    odd = half(6, 65)[:, :64]  # apart, and its lines are not aligned
    result, tail = torch.empty_like(x), half(384)
    bad = [
        (RMS_NORM, x, half(32), None, result),
        (RMS_NORM, odd, half(64), None, result),
        (RMS_NORM, x, half(64), None, odd),
        (RMS_NORM, x, half(64, dtype=torch.bfloat16), None, result),
        (RMS_NORM, x, half(64), None, x),  # its own operand
        (RMS_NORM, half(385)[1:].view(6, 64), half(64), None, result),
        (RMS_NORM, x, half(64), half(64), result),  # which has no bias
        (LAYER_NORM, x, half(64), half(72), result),
        (LAYER_NORM, x, half(64), half(1, 64), result),
        (LAYER_NORM, x, half(64), half(64, dtype=torch.bfloat16), result),
        (LAYER_NORM, x, half(64), half(65)[1:], result),
        (LAYER_NORM, x, half(64), half(128)[::2], result),
        (LAYER_NORM, x, half(64), tail[-64:], tail.view(6, 64)),
        (GATED, x, half(6, 32), None, result),
        (GATED, x, half(5, 64), None, result),
        (GATED, x, None, None, result),
        (GATED, x, half(6, 64), half(64), result),
        (GATED, half(6, 7), None, None, half(6, 3)),
        (GATED, x.float(), None, None, half(6, 32).float()),
    ]
    for call in bad:
        assert [launcher.rows(*call, 1e-5, False) for launcher in launchers_] == [None, None], call


def exact_norm(x: Any, norm: Any, eps: float, bias: Any = None, centred: bool = False) -> Any:
    wide = x.double()
    wide = wide - wide.mean(-1, keepdim=True) if centred else wide
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * norm.double()
    return normed if bias is None else normed + bias.double()


def test_gradients_are_torchs(engine: Planner) -> None:
    x, norm = half(4, 64).requires_grad_(), half(64, seed=1).requires_grad_()
    wide, weight = (t.detach().double().requires_grad_() for t in (x, norm))
    torch.ops.sassafras.gated(torch.ops.sassafras.rms_norm(x, norm, 1e-5)).sum().backward()
    silu_of(*exact_norm(wide, weight, 1e-5).chunk(2, -1)).sum().backward()
    for mine, other in ((x, wide), (norm, weight)):
        assert float((mine.grad - other.grad).abs().max()) <= 1e-2 * float(other.grad.abs().max())


# --- compiled models --------------------------------------------------------------------------------------


class Pairs(torch.nn.Module):
    """`Block`'s second half with a gate and an up of their own."""

    def __init__(self, inner: int = 48) -> None:
        super().__init__()
        self.norm = torch.nn.RMSNorm(64, eps=1e-5)
        self.first, self.down = (torch.nn.Linear(k, 64, bias=False) for k in (64, inner))
        self.gate, self.up = (torch.nn.Linear(64, inner, bias=False) for _ in range(2))

    def forward(self, x: Any) -> Any:
        x = x + self.first(torch.tanh(self.first(x)))
        y = self.norm(x)
        return x + self.down(torch.nn.functional.silu(self.gate(y)) * self.up(y))


@pytest.fixture
def early(install: Install, monkeypatch: pytest.MonkeyPatch) -> Planner:
    """An engine whose early split-K kernels serve layers of compiled models, however small."""
    monkeypatch.setattr(split_k_early, "LEAST_CONSTANT", 1)
    monkeypatch.setattr(few_rows, "LEAST", 1)
    engine = install("compiled")
    real = engine.choose

    def choose(problem: Problem) -> Choice:
        return real(problem) if problem.extra else Choice("torch", None, None, 1.0, "as asked")

    monkeypatch.setattr(engine, "choose", choose)
    return engine


@pytest.mark.parametrize(
    ("network", "dtype", "rows_", "parts"),
    [
        (lambda: Block(lambda k: torch.nn.RMSNorm(k, eps=1e-5)), torch.float16, (16, 1), 1),
        (lambda: torch.nn.Sequential(Block(Spelled, 3), Block(Spelled, 3)), torch.bfloat16, (3, 11), 3),
        (Pairs, torch.float16, (9,), 1),
        (lambda: Pairs(64), torch.bfloat16, (3, 3), 1),
    ],
    ids=["one layer", "three layers", "gate and up", "gate and up in one"],
)
def test_a_block_is_a_chain_of_launches(
    early: Planner, library: Path, graphs: list[Any], network: Any, dtype: Any, rows_: Any, parts: int
) -> None:
    from torch._inductor.utils import run_and_get_code

    torch.manual_seed(1)
    made = network().to(dtype).requires_grad_(False)
    x = half(*rows_, 64, dtype=dtype)
    wanted = made.double()(x.double())
    made.to(dtype)
    compiled = torch.compile(sassafras.accelerate(made), fullgraph=True, dynamic=False)
    before = launches(library)
    result, (code, *_) = run_and_get_code(compiled, x)
    assert close(result, wanted), room.status()["problems"]
    ops = torch.ops.sassafras
    names = [str(n.target).split(".")[1] for n in graphs[-1] if "sassafras" in str(n.target)]
    half_block = ["layer", "rms_norm", "layer", "gated", "layer"]
    if isinstance(made, Pairs):
        products = ["joined"] if made.gate.out_features >= 64 else ["layer"] * 2  # a tile is of 64
        assert names == ["mm", "layer", "rms_norm", *products, "gated", "layer"]
    elif parts == 1:
        assert names == ["mm", *half_block]
    else:
        assert names == [*["mm"] * 3, *half_block, "rms_norm", "joined", *half_block]
    calls = [n for n in graphs[-1] if n.target is ops.layer.default]
    waits = [n.args[8] for n in calls].count(False)
    assert waits == names.count("gated"), "weights are read early but behind what Inductor computes"
    sums = [n.args[4] is not None for n in calls]
    assert sums.count(True) == names.count("gated") * 2, "residuals are added in the products ahead of norms"
    left = [str(n.target) for n in graphs[-1]]
    assert sum("rsqrt" in t for t in left) != isinstance(made, Pairs), "the first norm follows the input"
    ours = len(calls) + sum(names.count(name) for name in ("gated", "rms_norm", "joined"))
    assert launches(library) == before + ours
    assert len(re.findall(r"sassafras\.\w+\.into\(", code)) == len(names)


class Plain(torch.nn.Module):
    """The second half of a block with layer norms, biases and an activation, as GPT's and ViT's have it."""

    def __init__(self, activation: Any, bias: bool = True, inner: int = 128) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(64, bias=bias)
        self.first, self.up = (torch.nn.Linear(64, n, bias=bias) for n in (64, inner))
        self.down, self.activation = torch.nn.Linear(inner, 64, bias=bias), activation
        for vector in (self.norm.weight, self.norm.bias):
            if vector is not None:
                torch.nn.init.normal_(vector)

    def forward(self, x: Any) -> Any:
        x = x + self.first(torch.tanh(self.first(x)))
        return x + self.down(self.activation(self.up(self.norm(x))))


@pytest.mark.parametrize(
    ("activation", "name", "dtype", "bias", "lines"),
    [
        (torch.nn.GELU(), "gelu", torch.float16, True, (16, 1)),
        (torch.nn.GELU("tanh"), "gelu_tanh", torch.bfloat16, True, (3, 11)),
        (torch.nn.ReLU(), "relu", torch.float16, False, (9,)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_plain_block_is_a_chain_of_launches(
    early: Planner,
    library: Path,
    graphs: list[Any],
    activation: Any,
    name: str,
    dtype: Any,
    bias: bool,
    lines: Any,
) -> None:
    torch.manual_seed(1)
    made = Plain(activation, bias).to(dtype).requires_grad_(False)
    x = half(*lines, 64, dtype=dtype)
    wanted = made.double()(x.double())
    compiled = torch.compile(sassafras.accelerate(made.to(dtype)), fullgraph=True, dynamic=False)
    before = launches(library)
    assert close(compiled(x), wanted), room.status()["problems"]
    calls = [n for n in graphs[-1] if "sassafras" in str(n.target)]
    names = [str(n.target).split(".")[1] for n in calls]
    assert names == ["fused" if bias else "mm", "layer", "layer_norm", "layer", "layer"]
    layers = [LayerCall(*n.args) for n in calls if n.target is torch.ops.sassafras.layer.default]
    assert [call.activation for call in layers] == ["none", name, "none"]
    assert [n.args[-1] for n in calls[1:]] == [False, True, True, True], "behind launches of ours"
    assert launches(library) == before + 4 + bias
    left = {str(n.target) for n in graphs[-1]}
    assert not [t for t in left if any(word in t for word in ("var_mean", "erf", "relu", "sigmoid"))]
    assert sum("tanh" in str(n.target) for n in graphs[-1]) == 1, "the one ahead of the first layer"


@pytest.mark.parametrize(
    ("rows_", "constant", "found"),
    [
        (16, False, "layer"),
        (17, False, "kept"),
        (17, True, "layer"),
    ],
)
def test_activations_are_applied_where_that_pays(
    early: Planner, graphs: list[Any], rows_: int, constant: bool, found: str
) -> None:
    """Behind a launch of ours, or of few rows (`inductor_graph.MOST_WAITING`; many: `test_decoders`)."""
    network = sassafras.accelerate(Plain(torch.nn.GELU()).half().requires_grad_(False))

    def function(x: Any) -> Any:
        x = x + network.first(torch.tanh(network.first(x)))
        return network.activation(network.up(network.norm(x) if constant else torch.sin(x)))

    x = half(rows_, 64)
    compiled = torch.compile(function, backend=graph_alone.backend, fullgraph=True, dynamic=False)
    assert close(compiled(x), function(x).double())
    (applied,) = [n for n in graphs[-1] if "gelu" in n.args] or [None]
    assert found == (str(applied.target).split(".")[1] if applied else "kept")
    assert bool(applied) != any("erf" in str(n.target) for n in graphs[-1])


@pytest.mark.parametrize(
    ("between", "kept"),
    [
        (lambda net, x: (y := net.up(net.norm(x)), net.activation(y)), "erf"),  # what lies between is read
        (lambda net, x: net.activation(net.up(net.norm(x)).float()), "erf"),  # wider than a kernel's result
        (lambda net, x: torch.nn.functional.gelu(2 * net.up(net.norm(x))), "erf"),
        # a gated unit: both products may be one launch, and something multiplies them anyway
        (lambda net, x: net.activation(net.first(y := net.norm(x))) * net.up(y)[..., :64], "erf"),
        (lambda net, x: net.up(torch.nn.functional.layer_norm(x, (64,))), "var_mean"),
        (lambda net, x: net.up(torch.nn.functional.layer_norm(x, (2, 64)).flatten(0, 1)), "var_mean"),
        (lambda net, x: net.up((net.norm(x).float() + 1e-3).half()), "var_mean"),
    ],
)
def test_other_norms_and_activations_are_kept(
    early: Planner, graphs: list[Any], between: Any, kept: str
) -> None:
    torch.manual_seed(1)
    network = sassafras.accelerate(Plain(torch.nn.GELU()).half().requires_grad_(False))

    def function(x: Any) -> Any:
        first = network.first(x).relu()
        return between(network, x + network.first(first))

    x = half(2, 8, 2, 64)
    compiled = torch.compile(function, backend=graph_alone.backend, fullgraph=True, dynamic=False)
    for mine, torchs in zip(_both(compiled(x)), _both(function(x)), strict=True):
        assert mine.dtype == torchs.dtype and close(mine, torchs.double())
    assert [n for n in graphs[-1] if kept in str(n.target)]


@pytest.mark.parametrize("parallel", [False, True])
def test_weights_wait_behind_norms_of_inductors(early: Planner, graphs: list[Any], parallel: bool) -> None:
    """GPT-NeoX's and Phi's norms follow two sums, which no product of ours leaves to one."""
    network = sassafras.accelerate(Plain(torch.nn.GELU()).half().requires_grad_(False))

    def function(x: Any) -> Any:
        first = network.first(torch.tanh(network.first(x)))
        x = x + first + torch.sin(x) if parallel else x + first
        return network.down(torch.cos(network.up(network.norm(x))))

    x = half(17, 64)
    compiled = torch.compile(function, backend=graph_alone.backend, fullgraph=True, dynamic=False)
    assert close(compiled(x), function(x).double())
    names = [str(n.target).split(".")[1] for n in graphs[-1] if "sassafras" in str(n.target)]
    assert ("layer_norm" in names) != parallel
    (up,) = [n for n in graphs[-1] if "sassafras" in str(n.target) and "128" in str(n.meta["val"].shape)]
    assert (str(up.target) == "sassafras.layer.default" and up.args[-1] is True) != parallel


def _both(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


def test_what_a_graph_keeps(early: Planner, graphs: list[Any]) -> None:
    """More rows than 64, a norm of what Inductor computes, extents that are unknown."""
    network = sassafras.accelerate(Block(lambda k: torch.nn.RMSNorm(k, eps=1e-5)).half()).requires_grad_(
        False
    )

    def put(function: Any, x: Any, **options: Any) -> set[str]:
        torch._dynamo.reset()
        graphs.clear()
        result = torch.compile(function, backend=graph_alone.backend, fullgraph=True, **options)(x)
        assert close(result, function(x).double())
        return {str(n.target).split(".")[1] for n in graphs[-1] if "sassafras" in str(n.target)}

    assert put(network, half(64, 64), dynamic=False) == {"mm", "layer", "rms_norm", "gated"}
    assert put(network, half(65, 64), dynamic=False) == {"mm", "layer"}, "SwiGLU's pair, in one kernel"
    assert put(network, half(16, 64), dynamic=True) == {"mm"}

    def doubled(x: Any) -> Any:
        return network.up(network.second(2 * network.down(torch.tanh(x)).sin()))

    assert put(doubled, half(8, 48), dynamic=False) == {"mm", "layer"}
    assert put(doubled, half(16, 48), dynamic=False) == {"mm"}, "of more rows they wait"


def test_the_report_has_layers_that_a_graph_changed(early: Planner, graphs: list[Any]) -> None:
    """With a residual, or joined; calls of layers with the same extents may differ."""
    torch.manual_seed(1)
    made = sassafras.accelerate(Pairs(128).half().requires_grad_(False))
    torch.compile(made, backend=graph_alone.backend, dynamic=False)(half(3, 64))
    served = {layer.name: layer.served for layer in sassafras.layers(made)}
    assert served == {"first": {3: "ours or torch"}, **{name: {3: "ours"} for name in ("gate", "up", "down")}}
    # a pair has the columns of both
    pair = LayerCall(half(5, 64), half(128, 64).t(), half(128, 64).t(), activation="swiglu").product
    problem = Problem(0, 0, 5, 256, 64, 1, 64, 64, 128, 1, extra=pair.extra)
    early.served[problem] = Choice("ours", None, None, 1.0, "as asked")
    served = {layer.name: layer.served for layer in sassafras.layers(made)}
    assert served["gate"][5] == served["up"][5] == "ours" and 5 not in {**served["first"], **served["down"]}

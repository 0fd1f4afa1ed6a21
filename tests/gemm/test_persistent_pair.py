"""SwiGLU's pair of many rows in one kernel: on the emulator, by the chooser, from `sassafras.linear`."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import sassafras  # noqa: E402
from sassafras.gemm.configs import epilogue, persistent  # noqa: E402
from sassafras.gemm.configs.epilogue import NUMBERS, Batch, Lines  # noqa: E402
from sassafras.gemm.configs.persistent import PersistentConfig, PersistentInstance  # noqa: E402
from sassafras.gemm.configs.persistent_pair import EPILOGUE_INSTANCES, PairConfig, PairInstance  # noqa: E402
from sassafras.gemm.configs.stream import StreamConfig  # noqa: E402
from sassafras.gemm.matmul import api as room  # noqa: E402
from sassafras.gemm.matmul.planner import Planner  # noqa: E402
from sassafras.gemm.matmul.problem import CONSTANT, Problem  # noqa: E402
from sassafras.gemm.problem.shape import Shape  # noqa: E402
from sassafras.gemm.select.table import TunedTable, shipped_path  # noqa: E402

from . import spoilt  # noqa: E402
from .epilogue_launch import PAIRS, Case, build  # noqa: E402
from .hopper_launch import EAGER, LATE, RANDOM  # noqa: E402
from .test_matmul_fused import Install, cache, close, engine, half, install, launches, library  # noqa: E402
from .test_swiglu import DTYPES, Feed, called, exact, graphs, swiglu_layer  # noqa: E402

__all__ = ["cache", "engine", "graphs", "install", "library"]  # fixtures
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
CASES = (
    Case(activation="swiglu", gap=8, policy=RANDOM, repeats=2),
    Case(activation="swiglu", bias=True, policy=LATE),
    Case(activation="swiglu", beta=1.0, apart=True, gap=16, policy=EAGER),
    Case(activation="swiglu", alpha=0.5, bias=True, policy=RANDOM),
)
#: tails in m, n and k; several tiles a CTA; a weight with fewer rows than a tile
SHAPES = ("40x48x200", "300x272x264", "136x800x72", "1x16x8")


@pytest.fixture
def few_multiprocessors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(persistent, "AT_ONCE", (4,) * 8)


@needs_compiler
@pytest.mark.parametrize("instance", PAIRS, ids=lambda i: i.name)
def test_every_path_is_right(
    shared: Path, tmp_path: Path, few_multiprocessors: None, instance: PairInstance
) -> None:
    emulator = build(shared)
    for turn, case in enumerate(CASES):
        for number, text in enumerate(SHAPES):
            config = PairConfig(instance, (1, -2)[(turn + number) % 2])
            wrong = emulator.run(config, Shape.parse(text), replace(case, seed=number), tmp_path)
            assert wrong == "", f"{config.name} for {text}, case {turn}"


@needs_compiler
@pytest.mark.parametrize(("fault", "case"), [("gate", 0), ("bias", 1), ("batch", 2)])
def test_a_fault_is_noticed(
    shared: Path, tmp_path: Path, fault: str, case: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = spoilt.epilogue(shared)
    call = PairConfig(PAIRS[0]), Shape(40, 48, 200), CASES[case], tmp_path
    assert kernels.run(*call) == ""
    spoilt.ask(monkeypatch, fault)
    assert kernels.run(*call)


# --- the host's side ----------------------------------------------------------------------------------------


def test_what_can_run() -> None:
    config, shape = PairConfig(EPILOGUE_INSTANCES[0]), Shape(256, 4096, 4096)
    assert epilogue.why_illegal(config, shape, pair=True) is None
    assert "multiplies columns" in str(epilogue.why_illegal(config, shape))
    for wrong in (Shape(256, 4104, 4096), Shape(256, 4096, 4092)):
        assert epilogue.why_illegal(config, wrong, pair=True)
    assert "no batches" in str(epilogue.why_illegal(config, shape, Batch(2, 8, 0, 8), pair=True))
    plain = PersistentInstance("tn", 128, 128, 2, True, 4, epilogue=True)
    assert "with each other" in str(epilogue.why_illegal(PersistentConfig(plain), shape, pair=True))
    nn, bare = (
        PairInstance("nn", 128, 128, 2, True, 4, epilogue=True),
        PairInstance("tn", 128, 128, 2, True, 4),
    )
    assert all("n x k" in str(one.why_illegal()) for one in (nn, bare))


@pytest.mark.parametrize("rows", [1, 300])
def test_a_launch_says_where_both_weights_lie(rows: int) -> None:
    shape, i = Shape(rows, 1040, 4096), EPILOGUE_INSTANCES[1]
    lines = Lines(4096, 4104, 520)
    for beta in (0.0, 1.0):
        made = epilogue.launch(PairConfig(i), shape, beta=beta, activation="swiglu", lines=lines)
        gate, up, c = (made.tensor_maps[f"map_{name}"] for name in ("b", "up", "c"))
        assert all(described.why_illegal() is None for described in (gate, up, c))
        assert gate.dims == (4096, 520, 1) and gate.box == (64, 64, 1) and gate.operand == "b"
        assert (up.operand, up.dims[2], made.scalars["batch_b"]) == (
            ("addend", 1, 0) if beta else ("b", 2, 1)
        )
        assert up.strides == gate.strides == (2 * 4104, 2 * 4104 * 520)
        assert c.dims == (520, rows, 1) and c.strides[0] == 2 * 520
        assert made.scalars["last_column"] == 520 - 128
        assert made.scalars["stage_bytes"] == 128 * (min(rows, 128) + 256)


def asked(rows: int, n: int, k: int, dtype: int = 0) -> Problem:
    """A pair of weights in one matrix, tight and aligned."""
    return Problem(0, dtype, rows, n, k, 1, k, k, n // 2, 1, extra=NUMBERS["swiglu"] << 3)


def test_it_is_chosen(install: Install) -> None:
    engine = install(table=TunedTable.load(shipped_path("NVIDIA H200")))
    many = [asked(rows, 28672, 4096, dtype) for rows in (128, 256, 1024, 4096) for dtype in (0, 1)]
    for problem in many:
        choice = engine.choose(problem)
        assert isinstance(choice.config, PairConfig) and "predicted" in choice.why, choice
        assert choice.config.dtype == ("bf16" if problem.dtype else "fp16")
        assert choice.config.instance.tile_n == (224 if problem.m <= 256 else 160), choice.config.name
    for rows in (1, 8):
        assert isinstance(engine.choose(asked(rows, 28672, 4096)).config, StreamConfig)
    tiles = {128: (128, 160), 192: (192, 144), 256: (128, 192)}  # 148 of (128, 256) would be two waves of 132
    for rows, tile in tiles.items():
        pair = asked(rows, 37888, 3584, 1)
        for extra in (0, CONSTANT):
            i = engine.choose(pair._replace(extra=pair.extra | extra)).config.instance
            assert (i.tile_m, i.tile_n) == tile, i.name
    moved = asked(256, 28672, 4096)._replace(aligned=0)
    for problem in (asked(64, 28672, 4096), asked(8, 1024, 1024), moved):
        assert not isinstance(engine.choose(problem).config, PairConfig), problem


def test_half_of_the_product_is_stored() -> None:
    shape = Shape(4096, 28672, 64)  # stores take longer than products
    pair = PairConfig(EPILOGUE_INSTANCES[2])
    i = pair.instance
    same = PersistentInstance("tn", 128, 128, 2, True, i.stages, cluster_m=2, epilogue=True)
    assert pair.estimate_us(shape) < 0.95 * PersistentConfig(same, pair.group).estimate_us(shape)


@pytest.mark.parametrize("dtype", DTYPES)
def test_linear_is_one_launch(engine: Planner, library: Path, dtype: Any) -> None:
    """One weight with a bias or without, and lines apart; two weights."""
    engine.everything = True
    weight, bias = half(96, 64, dtype=dtype), half(96, seed=1, dtype=dtype)
    wide, up = half(96, 72, dtype=dtype)[:, :64], half(48, 64, seed=2, dtype=dtype)
    before, calls = launches(library), 0
    for leading in ((9,), (2, 17), (300,)):
        x = half(*leading, 64, seed=calls, dtype=dtype)
        for given, added in ((weight, None), (weight, bias), (wide, None)):
            for _ in range(2):
                result, calls = sassafras.linear(x, given, added, "swiglu"), calls + 1
                assert close(result, exact(x, given, added)) and result.is_contiguous()
        for _ in range(2):
            result, calls = swiglu_layer(x, weight[:48].t(), up.t()), calls + 1
            assert close(result, exact(x, torch.cat([weight[:48], up])))
    assert launches(library) == before + calls, room.status()["problems"]
    assert {str(p["config"]).partition("_tn")[0] for p in room.status()["problems"]} == {"persistent_pair"}


@pytest.mark.parametrize("merged", [True, False])
def test_a_compiled_model_has_the_operator(
    install: Install, library: Path, graphs: list[Any], merged: bool
) -> None:
    engine, dtype = install("compiled"), torch.bfloat16 if merged else torch.float16
    engine.everything = True
    torch.manual_seed(1)
    network = Feed(merged).to(dtype).requires_grad_(False)
    x, before = half(2, 17, 64, dtype=dtype), launches(library)
    wanted = network.double()(x.double())
    network.to(dtype)
    compiled = torch.compile(sassafras.accelerate(network), fullgraph=True, dynamic=False)
    result, (found, names) = compiled(x), called(graphs)
    assert found == 1 and names.count("sassafras.layer.default") == 1, names
    assert not [n for n in names if "sigmoid" in n or "exp" in n or "silu" in n], names
    assert close(result, wanted) and launches(library) == before + 2, room.status()["problems"]

"""Few rows by tensor copies: its source on the CPU, what it cannot run. Nothing chooses it yet."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from sassafras.core import ToolMissing
from sassafras.gemm.build.cubins import cubin
from sassafras.gemm.configs import cost, epilogue, names, skinny
from sassafras.gemm.configs.skinny import SkinnyConfig, SkinnyInstance
from sassafras.gemm.problem.launch import SHARED_LIMIT
from sassafras.gemm.problem.shape import Shape
from sassafras.gemm.select import epilogue_selector
from sassafras.gemm.select.epilogue_selector import Extra
from sassafras.gemm.select.selector import Selector
from sassafras.gemm.select.table import TunedTable, shipped_path
from sassafras.sass import Program
from sassafras.sass.program import parameters
from sassafras.validate import Validator

from .epilogue_launch import SKINNY, Case, Emulator, build
from .hopper_launch import EAGER, LATE, RANDOM

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
PLAIN = (
    Case(bias=True, activation="gelu", gap=8, policy=RANDOM, repeats=2),
    Case(beta=0.5, alpha=2.0, early=True, policy=LATE),
    Case(beta=1.0, apart=True, activation="silu", policy=EAGER),
    Case(activation="swiglu", gap=16, policy=RANDOM),
    Case(activation="swiglu", bias=True, early=True, policy=LATE),
    Case(activation="swiglu", beta=1.0, apart=True, early=True, policy=EAGER),
)
NORMED = (
    Case(norm=True, gap=8, policy=RANDOM, repeats=2),
    Case(norm=True, early=True, bias=True, activation="swiglu", policy=LATE),
    Case(norm=True, size=2.0**14, gamma=16.0, policy=EAGER),
    Case(norm=True, size=2.0**-13, eps=1e-12, beta=1.0, apart=True, policy=RANDOM),
)


@pytest.fixture(scope="module")
def emulator(shared: Path) -> Emulator:
    return build(shared)


@needs_compiler
@pytest.mark.parametrize("instance", SKINNY, ids=lambda i: i.name)
def test_every_path_is_right(
    emulator: Emulator, tmp_path: Path, instance: SkinnyInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tiles that follow one another in a ring, k that ends in a block, rows that no tile fills."""
    monkeypatch.setattr(skinny, "MULTIPROCESSORS", 2)
    monkeypatch.setattr(cost, "residents", lambda threads, shared: 1)
    config = SkinnyConfig(instance)
    for turn, case in enumerate(NORMED if instance.norm else PLAIN):
        for text in ("1x16x8", "8x176x520", "3x208x328"):
            wrong = emulator.run(config, Shape.parse(text), case, tmp_path)
            assert wrong == "", f"{config.name} for {text}, case {turn}"


@pytest.mark.parametrize("norm", [False, True], ids=["plain", "normed"])
def test_sass(norm: bool, tmp_path: Path) -> None:
    instance = SkinnyInstance(32, 5, "bf16", norm=norm)
    try:
        data = cubin(instance, tmp_path)
        program = Program.parse(data)
    except ToolMissing as missing:
        pytest.skip(str(missing))
    opcodes = [i.opcode for i in program.function(instance.name).instructions]
    assert {op for op in opcodes if "MMA" in op} == {"HMMA.16816.F32.BF16"}, "FP32 accumulators only"
    assert not [op for op in opcodes if op.startswith(("LDL", "STL"))], "no spills"
    assert {op for op in opcodes if op.startswith("UTMALDG")} == {"UTMALDG.3D"}, "a layer: of up's weight"
    report = Validator(data, instance.name).check(data)
    assert report.ok, f"the validator refuses what ptxas made: {report}"
    sizes = [p.size for p in parameters(program.cubin, instance.name)]
    bytes_of = {"tensormap": 128, "i32": 4, "f32": 4}
    assert sizes == [bytes_of.get(kind, 8) for _, kind in instance.parameters]


def test_where_it_can_run() -> None:
    config = names.parse("skinny_tn_r32s5e/c1+o")
    assert isinstance(config, SkinnyConfig) and names.parse(config.name) == config
    assert epilogue.why_illegal(config, Shape(8, 4099, 4096)) is None
    assert "9 rows of A" in str(config.why_illegal(Shape(9, 4096, 4096)))
    assert "not a multiple of 8" in str(config.why_illegal(Shape(1, 4096, 4100)))
    for instance in skinny.EPILOGUE_INSTANCES:
        assert instance.shared_bytes <= SHARED_LIMIT
        assert cost.residents(instance.threads, instance.shared_bytes) == (1 if instance.rows == 64 else 2)
    for text, rows in (("1x4096x4096", 32), ("1x6144x4096", 48), ("8x28672x4096", 32), ("1x2048x8192", 16)):
        assert skinny.best(Shape.parse(text), "bf16")[0].instance.rows == rows
    chooser = Selector(TunedTable.load(shipped_path("NVIDIA H200")))
    assert not chooser.streamed.skinny, "no GPU has run it"
    chooser.streamed = replace(chooser.streamed, skinny=True)
    for extra in (Extra(constant=True), Extra(norm=True), Extra(activation="swiglu", constant=True)):
        found, _ = epilogue_selector.choose(chooser, Shape(8, 4096, 4096), "tn", "bf16", extra=extra)
        assert isinstance(found, SkinnyConfig) and found.instance.norm == extra.norm and found.mode.pdl
        other, _ = epilogue_selector.choose(chooser, Shape(9, 4096, 4096), "tn", "bf16", extra=extra)
        assert not isinstance(other, SkinnyConfig)
    chosen = epilogue.configurations(Shape(1, 4096, 4096), "tn", "fp16")
    assert chosen and not any(isinstance(config, SkinnyConfig) for config in chosen)

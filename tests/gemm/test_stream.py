"""The stream kernel: its source on the CPU, what it cannot run, where it is chosen."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from sassafras.frontend._image import parameter_sizes
from sassafras.gemm.configs import names, registry, stream
from sassafras.gemm.configs.epilogue import Lines
from sassafras.gemm.configs.stream import StreamConfig, StreamInstance
from sassafras.gemm.matmul.plan import why_illegal
from sassafras.gemm.matmul.problem import Problem
from sassafras.gemm.problem.launch import ceil_div
from sassafras.gemm.problem.shape import Shape
from sassafras.gemm.select import epilogue_selector
from sassafras.gemm.select.epilogue_selector import Extra
from sassafras.gemm.select.selector import Selector
from sassafras.gemm.select.table import TunedTable, shipped_path

from . import spoilt
from .hopper_launch import EAGER, LATE, RANDOM, Emulator, build
from .hopper_launch import STREAM as INSTANCES
from .together import accepted, together

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

SHAPES = ("1x16x8", "8x40x520", "3x23x712", "5x7x264")


@pytest.fixture(scope="module")
def emulator(shared: Path) -> Emulator:
    return build(shared)


@needs_compiler
@pytest.mark.parametrize("number", range(len(INSTANCES)), ids=lambda n: INSTANCES[n].name)
def test_every_path_is_right(number: int, emulator: Emulator, tmp_path: Path) -> None:
    config = StreamConfig(INSTANCES[number])
    for turn, text in enumerate(SHAPES):
        policy = (LATE, RANDOM, EAGER)[(turn + number) % 3]
        wrong = emulator.run(config, Shape.parse(text), tmp_path, policy=policy, seed=turn, repeats=2)
        assert wrong == "", f"{config.name} for {text}"


@needs_compiler
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_tiles_follow_one_another(
    emulator: Emulator, tmp_path: Path, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rings go on from tile to tile, also where a warp has one chunk of a tile, or none."""
    monkeypatch.setattr(stream, "MULTIPROCESSORS", 3)
    monkeypatch.setattr(stream.cost, "residents", lambda threads, shared: 1)
    instances = [i for i in INSTANCES if i.dtype == dtype and not i.epilogue]
    assert instances
    for turn, instance in enumerate(instances):
        config = StreamConfig(instance)
        for shape in (Shape(3, 180, 520), Shape(8, 200, 72), Shape(1, 130, 1032)):
            assert config.launch(shape).grid[0] == 3 < ceil_div(shape.n, stream.ROWS)
            policy = (LATE, RANDOM, EAGER)[turn % 3]
            wrong = emulator.run(config, shape, tmp_path, policy=policy, seed=turn, repeats=2)
            assert wrong == "", f"{config.name} for {shape}"


@needs_compiler
@pytest.mark.parametrize("fault", ["behind", "phase"])
def test_a_spoilt_kernel_is_found(
    shared: Path, tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, shapes = StreamConfig(INSTANCES[0]), [Shape.parse(text) for text in SHAPES]
    kernels = spoilt.hopper(shared)
    assert not any(kernels.run(config, shape, tmp_path) for shape in shapes)
    spoilt.ask(monkeypatch, fault)
    assert any(kernels.run(config, shape, tmp_path) for shape in shapes)


COMPILED = stream.INSTANCES[0], stream.OTHER_INSTANCES[1]


@pytest.mark.parametrize("instance", COMPILED, ids=lambda i: i.name)
def test_sass(instance: StreamInstance, shared: Path) -> None:
    program = together(shared, COMPILED)
    opcodes = [i.opcode for i in program.function(instance.name).instructions]
    kind = ".BF16" if instance.dtype == "bf16" else ""
    products = [op for op in opcodes if "MMA" in op]
    assert set(products) == {f"HMMA.16816.F32{kind}"}, "FP32 accumulators only"
    assert len(products) == instance.k_chunk // 16 + 2, "two of each 32 k, and a loop for the last chunk"
    assert not [op for op in opcodes if op.startswith(("LDL", "STL"))], "no spills"
    assert not [op for op in opcodes if op.startswith(("LDG", "RED", "ATOM"))], "operands come by bulk copies"
    copies = [number for number, op in enumerate(opcodes) if op.startswith("UBLKCP")]
    assert copies and opcodes.index("ACQBULK") < copies[0], "waits for the launch before it"
    assert opcodes.index("ACQBULK") < opcodes.index("PREEXIT"), "and lets the next one start only then"
    accepted(program, instance.name)
    sizes = parameter_sizes(program.cubin.entries[instance.name])
    assert sizes == [8 if of.startswith("*") else 4 for _, of in instance.parameters]


def test_what_it_cannot_run() -> None:
    config = names.parse("stream_tn_w4s2k256/c1+o")
    assert config.mode.pdl and config.tiles(Shape(1, 4100, 4096)) == (1, 257)
    assert config.why_illegal(Shape(1, 4100, 4096)) is None
    assert "9 rows of A" in str(config.why_illegal(Shape(9, 4096, 4096)))
    assert "not a multiple of 8" in str(config.why_illegal(Shape(1, 4096, 4100)))
    apart = Problem(0, 0, 2, 4096, 4096, 1, 4104, 4096, 4096, 1)
    assert why_illegal(config, apart) is None, "gaps between lines are told to it"
    assert why_illegal(config, apart._replace(lda=4100)), "rows begin at multiples of 16 bytes"
    assert why_illegal(config, apart._replace(n=4099, ldc=4099)) is None, "lines of C begin anywhere"
    assert registry.with_dtype(config, "bf16") == names.parse("stream_tn_bf16_w4s2k256/c1+o")


def test_it_is_chosen_for_few_rows_of_a_large_matrix() -> None:
    chooser = Selector(TunedTable.load(shipped_path("NVIDIA H100 80GB HBM3")))

    def chosen(text: str, layout: str = "tn") -> str:
        def legal(config: object) -> bool:
            return config.layout == layout and not config.why_illegal(shape)  # type: ignore[attr-defined]

        shape = Shape.parse(text)
        found = chooser.choose(shape, layout, legal)
        return found.config.name if found.config else found.member

    for text in ("1x28672x4096", "2x37888x3584"):
        assert chosen(text) == "stream_tn_w8s1k256/c1+o"
    assert chosen("2x6144x4096") == "stream_tn_w4s2k128/c1+o"
    assert chosen("1x4096x14336") == chosen("1x4096x4096") == "stream_tn_w4s2k256/c1+o"
    for text in ("3x28672x4096", "8x28672x4096", "1x2048x2048"):
        assert not chosen(text).startswith("stream")
    assert not chosen("1x28672x4096", "nn").startswith("stream")
    assert stream.best(Shape(1, 4096, 4096)) and not stream.best(Shape(1, 2048, 2048))


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_with_an_epilogue_it_is_chosen_where_the_plain_product_is(dtype: str) -> None:
    of_h100, of_h200 = (
        Selector(TunedTable.load(shipped_path(gpu))) for gpu in ("NVIDIA H100 80GB HBM3", "NVIDIA H200")
    )
    kind = "_bf16" * (dtype == "bf16")

    def chosen(
        text: str, extra: Extra, layout: str = "tn", lines: Lines | None = None, chooser: Selector = of_h100
    ) -> str:
        shape = Shape.parse(text)
        found, _ = epilogue_selector.choose(chooser, shape, layout, dtype, lines=lines, extra=extra)
        return found.name if found else "torch"

    for extra in (Extra(True), Extra(activation="silu"), Extra(beta=True), Extra(True, "gelu", True)):
        assert chosen("2x28672x4096", extra) == f"stream_tn{kind}_w8s1k256e/c1+o"
        assert chosen("2x6144x4096", extra) == f"stream_tn{kind}_w4s2k128e/c1+o"
        assert chosen("1x4099x14336", extra) == f"stream_tn{kind}_w4s2k256e/c1+o"
        for text, by in (("8x28672x4096", of_h100), ("1x6144x4096", of_h200)):
            assert chosen(text, extra, chooser=by).startswith(f"split_k_early_tn_swapped{kind}_64x16_")
        compiled = replace(extra, constant=True)
        assert chosen("8x28672x4096", compiled) == f"stream_tn{kind}_w8s1k256e/c1+o"
        for text, name in (
            ("1x6144x4096", f"stream_tn{kind}_w8s2k256e/c1+o"),
            ("1x4096x14336", f"split_k_early_tn_swapped{kind}_64x16_s10q2e/c2+o"),
            ("4x28672x4096", f"split_k_early_tn_swapped{kind}_64x16_s10q2e/c1+o"),
            (
                "1x37888x3584",
                f"split_k_early_tn_swapped{kind}_64x16_s10q2e/c1+o",
            ),  # 14 chunks of k for 8 warps
            ("8x28672x4096", f"split_k_early_tn_swapped{kind}_64x16_s10q2e/c1+o"),
        ):
            assert chosen(text, compiled, chooser=of_h200) == name
        for text in ("9x28672x4096", "1x2048x2048"):
            assert not chosen(text, extra).startswith("stream")
        assert not chosen("1x28672x4096", extra, "nn").startswith("stream")
        assert not chosen("2x28672x4096", extra, lines=Lines(4100, 4096, 28672)).startswith("stream")

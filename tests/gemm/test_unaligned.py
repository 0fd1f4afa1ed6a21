"""The kernels for rows of any length, on the CPU: every kind of row, tails, splits; and their SASS."""

from __future__ import annotations

import math
import re
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from sassafras.core import SassafrasError
from sassafras.frontend._image import parameter_sizes
from sassafras.gemm.configs import names, unaligned
from sassafras.gemm.configs.base import Mode
from sassafras.gemm.configs.registry import parse_instance
from sassafras.gemm.configs.unaligned import (
    EPILOGUE_INSTANCES,
    UnalignedConfig,
    UnalignedInstance,
    kinds,
)
from sassafras.gemm.matmul.plan import plan, why_illegal
from sassafras.gemm.matmul.problem import Problem
from sassafras.gemm.problem.shape import Shape

from . import hopper_launch, spoilt
from .hopper_launch import EAGER, LATE, RANDOM, Emulator, build
from .together import accepted, together

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

_I = UnalignedInstance
INSTANCES = hopper_launch.UNALIGNED


@pytest.fixture(scope="module")
def emulator(shared: Path) -> Emulator:
    return build(shared)


@needs_compiler
@pytest.mark.parametrize("number", range(len(INSTANCES)), ids=lambda n: INSTANCES[n].name)
def test_every_kind_of_row_is_right(number: int, emulator: Emulator, tmp_path: Path) -> None:
    instance = INSTANCES[number]
    rows, columns = instance.tile_m, instance.tile_n
    launched = 0
    for shape in (
        Shape(rows, columns, 64), Shape(1, 1, 9), Shape(7, 5, 130), Shape(rows + 1, columns + 3, 321),
        Shape(61, 67, 71), Shape(9, 2 * columns + 6, 66), Shape(2 * rows - 2, 33, 572),
    ):  # fmt: skip
        for slices in (1, 2, 3, 8):
            config = UnalignedConfig(instance, slices, mode=Mode(trigger_late=launched % 2 == 1))
            if config.why_illegal(shape) is None:
                wrong = emulator.run(config, shape, tmp_path, policy=(LATE, RANDOM, EAGER)[launched % 3],
                                     seed=launched, repeats=1 + (slices > 1))  # fmt: skip
                assert wrong == "", f"{config.name} for {shape}"
                launched += 1
    assert launched >= 10


@needs_compiler
@pytest.mark.parametrize("number", range(len(INSTANCES)), ids=lambda n: INSTANCES[n].name)
def test_bands_are_right(number: int, emulator: Emulator, tmp_path: Path) -> None:
    """Rows of tiles that fill the last band, and that do not; a C of fewer rows than a band."""
    instance = INSTANCES[number]
    rows, columns = instance.tile_m, instance.tile_n
    launched = 0
    for shape in (
        Shape(2 * rows, 2 * columns, 64), Shape(2 * rows + 7, 2 * columns + 3, 131),
        Shape(5, columns + 1, 73), Shape(4 * rows + 1, 61, 66),
    ):  # fmt: skip
        for band in (2, 4, 8):
            config = UnalignedConfig(instance, band=band, mode=Mode(trigger_late=launched % 2 == 1))
            assert config.why_illegal(shape) is None
            wrong = emulator.run(
                config, shape, tmp_path, policy=(LATE, RANDOM, EAGER)[launched % 3], seed=launched
            )
            assert wrong == "", f"{config.name} for {shape}"
            launched += 1
    assert launched == 12


def test_every_tile_is_somebodys_once() -> None:
    """As the kernel computes them from its CTA's number; without a band row after row, as ever."""
    rng = np.random.default_rng(11)
    bands: Counter[int] = Counter()
    for _ in range(300):
        instance = INSTANCES[int(rng.integers(len(INSTANCES)))]
        shape = Shape(*(int(rng.integers(1, most)) for most in (1500, 1500, 700)))
        config = UnalignedConfig(instance, band=int(rng.choice([0, 2, 4, 8])))
        assert config.why_illegal(shape) is None
        launch, (down, across) = config.launch(shape), config.tiles(shape)
        x, y, z = launch.grid
        assert x == 1 == math.prod(launch.cluster)
        log2 = launch.scalars["log2_band"]
        places = [((k << log2) + (j & ((1 << log2) - 1)), j >> log2) for k in range(z) for j in range(y)]
        wanted = [p for p in places if p[0] < down]
        assert sorted(wanted) == [(row, column) for row in range(down) for column in range(across)]
        assert len(set(places)) == len(places) < (down + max(1, config.band)) * across
        if not config.band:
            assert wanted == sorted(wanted) and launch.grid == (1, across, down)
        elif down >= config.band:  # down a band's columns
            assert (
                wanted[: 2 * config.band]
                == [(row, column) for column in range(2) for row in range(config.band)][: len(wanted)]
                or across == 1
            )
        bands[config.band] += 1
    assert set(bands) == {0, 2, 4, 8}


def test_bands_have_names_and_are_refused_where_they_are_of_no_use() -> None:
    shape = Shape(511, 1023, 4095)
    config = names.parse("unaligned_tn_64x64_s6/c1g4+ol")
    assert isinstance(config, UnalignedConfig) and (config.ranges, config.band) == (1, 4)
    assert config.name == "unaligned_tn_64x64_s6/c1g4+ol" and config.why_illegal(
        shape
    ) is None is config.dominated(shape)
    assert names.parse("unaligned_tn_64x64_s6/c3").name == "unaligned_tn_64x64_s6/c3"
    for name, why in (
        ("unaligned_tn_64x64_s6/c2g4", "bands of 4: for CTAs that multiply all of k"),
        ("unaligned_tn_64x128_s8e/c1g4", "without an epilogue"),
        ("unaligned_tn_64x64_s6/c1g3", "bands of 3: 2, 4, 8 are possible"),
    ):
        assert why in (names.parse(name).why_illegal(shape) or ""), name
    wide = names.parse("unaligned_tn_64x64_s6/c1g8")
    assert wide.dominated(shape) is None, "two CTAs a multiprocessor"
    assert "tiles, a grid takes" in (wide.why_illegal(Shape(65, 64 * 65535 // 8 + 1, 65)) or "")
    for name, other, why in (
        ("unaligned_tn_64x128_s8/c1g8", Shape(511, 2047, 4095), "holds one CTA"),
        ("unaligned_tn_64x64_s6/c1g2", shape, "bands of 2 for 8 rows"),
        ("unaligned_tn_64x64_s6/c1g4", Shape(257, 1023, 99), "bands of 4 for 5 x 16"),
        ("unaligned_tn_64x64_s6/c1g4", Shape(255, 600, 99), "order is of no matter"),
    ):
        assert why in (names.parse(name).dominated(other) or ""), name
    for stem in ("any_tn_64x64_s6/c1g", "any_tn_64x64_s6/c1g0", "any_tn_64x64_s6", "any_tn_64x64_s6/cg4"):
        with pytest.raises(SassafrasError, match=r"no such choices at launch|no kernel has"):
            names.parse(stem)
    every = list(UnalignedConfig.every(unaligned.INSTANCES))
    assert len(every) == len(set(every)) == 4 * (8 + 3)
    assert not any(c.band for c in UnalignedConfig.every(EPILOGUE_INSTANCES))


@needs_compiler
def test_random_launches_are_right(emulator: Emulator, tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    tried = 0
    while tried < 12:
        instance = INSTANCES[int(rng.integers(len(INSTANCES)))]
        shape = Shape(*(int(rng.integers(1, most)) for most in (200, 300, 700)))
        config = UnalignedConfig(instance, int(rng.integers(1, 9)))
        if rng.random() < 0.3:
            config = UnalignedConfig(instance, band=int(rng.choice([2, 4, 8])))
        if config.why_illegal(shape) is None:
            wrong = emulator.run(config, shape, tmp_path, policy=int(rng.integers(3)), seed=tried)
            assert wrong == "", f"{config.name} {shape}"
            tried += 1


@needs_compiler
def test_what_lies_behind_a_row_stays_out(
    emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NaN in a row of A and a column of B: the last k tile reaches into the next row, and NaN * 0 is NaN."""
    shape, row, column = Shape(21, 37, 67), 9, 12
    honest = hopper_launch.operands

    def spoilt(config: UnalignedConfig, shape: Shape, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        a, b, exact = honest(config, shape, seed)
        a[row] = 0x7E00
        b[column] = 0x7E00
        return a, b, exact

    monkeypatch.setattr(hopper_launch, "operands", spoilt)
    wrong = emulator.run(UnalignedConfig(INSTANCES[0], 1), shape, tmp_path)
    expected = shape.m + shape.n - 1
    assert wrong == f"{expected} of {shape.m * shape.n} wrong, first at 0, {column}"


@needs_compiler
@pytest.mark.parametrize(
    ("fault", "what", "number"),
    [
        (1, "overwrites a stage that products still read|two copies to one place|more arrivals", 0),
        (2, "has not landed|overwrites a stage|in use is overwritten", 0),
        (3, "wait for each other forever", 1),
        (6, "overwrites a stage|two copies|change while|wrong", 1),
        (8, "wrong|range_check|outside of shared memory", 1),
        (10, "without a fence", 1),
    ],
)
def test_planted_faults_are_noticed(
    number: int, fault: int, what: str, emulator: Emulator, tmp_path: Path
) -> None:
    config = UnalignedConfig(INSTANCES[number], 1)
    wrong = "".join(
        emulator.run(config, Shape(65, 67, 647), tmp_path, policy=policy, seed=1, fault=fault)
        for policy in (LATE, EAGER, RANDOM)
    )
    assert re.search(what, wrong), wrong


@needs_compiler
def test_copies_that_begin_anywhere_are_refused_as_by_the_hardware(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the kernels were at first: right where rows are multiples of 8, an illegal instruction elsewhere."""
    kernels, config = spoilt.hopper(shared), UnalignedConfig(INSTANCES[0], 1)
    spoilt.ask(monkeypatch, "anywhere")
    for shape in (Shape(64, 64, 64), Shape(64, 64, 512), Shape(1, 1, 9)):
        assert kernels.run(config, shape, tmp_path) == ""
    for shape in (Shape(65, 67, 521), Shape(67, 129, 333)):
        assert "multiple of 16 bytes" in kernels.run(config, shape, tmp_path)


def test_maps_reach_every_row_and_no_further() -> None:
    rng = np.random.default_rng(3)
    for _ in range(200):
        rows, length = (int(rng.integers(1, 200)) for _ in range(2))
        gap = int(rng.integers(0, 9))
        more, less = (m.spread(length, length + gap) for m in kinds("a", rows, length, (64, 8), "fp16"))
        leading = length + gap
        reached = set()
        for kind in range(min(rows, 8)):
            tensor = more if kind < rows % 8 else less
            assert tensor.why_illegal() is None and tensor.strides == (16 * leading,)
            # what a copy of this kind may touch: from its first element to the extent's end
            assert kind * leading + length <= tensor.dims[0]
            for i in range(tensor.dims[1]):
                assert (8 * i) * leading + tensor.dims[0] <= (rows - 1) * leading + length
                reached.add(8 * i + kind)
        assert reached == set(range(rows))


def test_what_serves_odd_rows_with_gaps() -> None:
    config = UnalignedConfig(_I("tn", 64, 64, 6), 1)
    problem = Problem(0, 0, 61, 67, 71, 1, 75, 90, 69, 1)
    assert why_illegal(config, problem) is None
    assert "16 bytes" in (why_illegal(config, problem._replace(aligned=0)) or "")
    made = plan(config, problem)
    maps = [item for item in made.launches[0].parameters if item[0] == "map"]
    assert [m[3] for m in maps] == [(4 * 75 + 71, 8), (7 * 75 + 71, 7), (2 * 90 + 71, 9), (7 * 90 + 71, 8)]
    assert [m[4] for m in maps] == [(16 * 75,), (16 * 75,), (16 * 90,), (16 * 90,)]


COMPILED = "any_tn_64x64_s6", "any_tn_128x128_s6", "any_tn_128x256_s4"


@pytest.mark.parametrize("name", COMPILED)
def test_sass(name: str, shared: Path) -> None:
    instance = parse_instance(name)
    assert isinstance(instance, UnalignedInstance)
    program = together(shared, map(parse_instance, COMPILED))
    function = program.function(name)
    opcodes = [i.opcode for i in function.instructions]
    products = [op for op in opcodes if "MMA" in op]
    assert products == [f"HGMMA.64x{instance.tile_n}x16.F32"] * 4
    assert not [op for op in opcodes if op.startswith(("LDL", "STL", "HADD2", "HFMA2", "RED", "ATOM"))]
    assert opcodes.count("UTMALDG.2D") == 4, "kinds w and w + 4 of A and of B"
    # the compiler serialises nothing: one fence and one wait a k tile, and a wait at the end
    assert len([op for op in opcodes if op.startswith("WARPGROUP")]) == 3
    loads = [number for number, op in enumerate(opcodes) if op.startswith("UTMALDG")]
    assert opcodes.index("ACQBULK") < loads[0], "waits for the launch before it"
    assert any(op.startswith("STG.E.64") for op in opcodes) and any(
        op.startswith("STG.E.U16") for op in opcodes
    )
    text = " ".join(instruction.text for instruction in function.instructions)
    assert max(int(number) for number in re.findall(r"\bR(\d+)\b", text)) < 65536 // instance.threads
    accepted(program, name)
    sizes = parameter_sizes(program.cubin.entries[name])
    assert sizes == [{"tensormap": 128, "i32": 4}.get(kind, 8) for _, kind in instance.parameters]

"""Products that share their rows in one launch: kernels on the CPU, operator, launchers, compiled models."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sassafras.gemm.configs import joined, stream
from sassafras.gemm.configs.joined import JoinedStreamInstance
from sassafras.gemm.configs.stream import StreamConfig, StreamInstance
from sassafras.gemm.problem.shape import Shape

from .epilogue_launch import JOINED, Case, Emulator, build
from .hopper_launch import EAGER, LATE, RANDOM
from .together import accepted, together

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

# --- the stream kernel ------------------------------------------------------------------------------------

CASES = (
    Case(cuts=(64, 80), bias=True, policy=RANDOM, repeats=2),
    Case(cuts=(16,), early=True, gap=8, policy=LATE),
    Case(cuts=(32, 96), early=True, bias=True, without=1, policy=EAGER),
    Case(cuts=(80,), bias=True, without=0, policy=RANDOM),
)


def apart(config: StreamConfig) -> StreamConfig:
    """The same ring for one product."""
    i = config.instance
    ring = StreamInstance(i.warps, i.stages, i.k_chunk, i.dtype, i.epilogue, i.norm)
    return replace(config, instance=ring)


def found(folder: Path, rows: int) -> np.ndarray:
    """What was launched last wrote this."""
    return np.fromfile(folder / "c", np.uint16).reshape(rows, -1)


@pytest.fixture(scope="module")
def emulator(shared: Path) -> Emulator:
    more = [apart(StreamConfig(instance)).instance for instance in JOINED]
    return build(shared, (*JOINED, *more))


@needs_compiler
@pytest.mark.parametrize("few", [False, True], ids=["a tile a CTA", "tiles follow one another"])
@pytest.mark.parametrize("number", range(len(JOINED)), ids=lambda n: JOINED[n].name)
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
        assert joined.why_illegal(shape, case.cuts) is None
        wrong = emulator.run(config, shape, case, tmp_path)
        assert wrong == "", f"{config.instance.name} for {shape}, case {turn}"
        whole, ends = found(tmp_path, shape.m), (0, *case.cuts, shape.n)
        whole = whole[:, : shape.n]
        for part in range(len(ends) - 1):
            columns = ends[part], ends[part + 1]
            own = replace(case, cuts=(), columns=columns, without=-1, bias=case.bias and part != case.without)
            assert emulator.run(apart(config), shape, own, tmp_path) == ""
            alone = found(tmp_path, shape.m)[:, : columns[1] - columns[0]]
            assert np.array_equal(whole[:, slice(*columns)], alone), f"{shape}, case {turn}, part {part}"


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


COMPILED = joined.INSTANCES[0], joined.INSTANCES[-1]


@pytest.mark.parametrize("instance", COMPILED, ids=lambda i: i.name)
def test_sass(instance: JoinedStreamInstance, shared: Path) -> None:
    program = together(shared, COMPILED)
    opcodes = [i.opcode for i in program.function(instance.name).instructions]
    assert not [op for op in opcodes if op.startswith(("LDL", "STL"))], "no spills"
    accepted(program, instance.name)


def test_what_is_joined() -> None:
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
    launch = joined.launch(made, shape, (4096,), early=True)
    assert [launch.scalars[name] for name in ("second_column", "third_column", "early")] == [4096, 6144, 1]

"""The split-K kernel that reads weights before the launch ahead has ended: emulated, its SASS, its choice."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from sassafras.gemm.configs import epilogue, names, registry, split_k_early
from sassafras.gemm.configs.split_k_early import EarlyInstance, EarlySplitKConfig
from sassafras.gemm.matmul.plan import plan
from sassafras.gemm.matmul.problem import CONSTANT, Problem
from sassafras.gemm.problem.shape import Shape
from sassafras.gemm.select import epilogue_selector
from sassafras.gemm.select.epilogue_selector import Extra
from sassafras.gemm.select.selector import Selector
from sassafras.gemm.select.table import TunedTable, shipped_path

from . import spoilt
from .epilogue_launch import EARLY as INSTANCES
from .epilogue_launch import Case, build
from .hopper_launch import EAGER, LATE, RANDOM
from .together import accepted, together

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
CASES = (
    Case(early=True, policy=RANDOM, repeats=2),
    Case(early=True, bias=True, beta=1.0, apart=True, policy=LATE),
    Case(early=True, activation="silu", alpha=0.5, gap=8, policy=EAGER),
    Case(bias=True, policy=RANDOM, repeats=2),
)
#: of a slice: one stage, as many as there are, more
SHAPES = (("3x64x64", 1), ("16x136x192", 1), ("9x72x1032", 1), ("11x136x520", 2), ("16x64x2056", 3))


@needs_compiler
@pytest.mark.parametrize("number", range(len(INSTANCES)), ids=lambda n: INSTANCES[n].name)
def test_weights_come_first(shared: Path, tmp_path: Path, number: int) -> None:
    emulator = build(shared)
    for case in CASES:
        for text, slices in SHAPES:
            config = EarlySplitKConfig(INSTANCES[number], slices)
            if config.why_illegal(Shape.parse(text)):
                continue
            wrong = emulator.run(config, Shape.parse(text), case, tmp_path)
            assert wrong == "", f"{config.name} for {text}, {case}"


@needs_compiler
@pytest.mark.parametrize(
    ("fault", "early", "said"),
    [
        ("early", False, "does not wait"),
        ("operand", True, "does not wait"),
        ("parity", True, ""),
        ("goes_on", True, ""),
    ],
)
def test_a_spoilt_kernel_is_found(
    shared: Path, tmp_path: Path, fault: str, early: bool, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = spoilt.epilogue(shared)
    call = EarlySplitKConfig(INSTANCES[0]), Shape(9, 72, 1032), Case(early=early), tmp_path
    assert kernels.run(*call) == ""
    spoilt.ask(monkeypatch, fault)
    wrong = kernels.run(*call)
    assert wrong and said in wrong


COMPILED = split_k_early.EPILOGUE_INSTANCES[:4]


@pytest.mark.parametrize("instance", COMPILED, ids=lambda i: i.name)
def test_sass(instance: EarlyInstance, shared: Path) -> None:
    program = together(shared, COMPILED)
    opcodes = [i.opcode for i in program.function(instance.name).instructions]
    # the multiplying warps wait for bias and addend; the loading one copies weights, waits, copies A
    found = [op.partition(".")[0] for op in opcodes if op.startswith(("UTMALDG", "ACQBULK"))]
    assert found == ["ACQBULK", *["UTMALDG"] * 2, "ACQBULK", *["UTMALDG"] * 10]
    accepted(program, instance.name)
    assert not [op for op in opcodes if op.startswith(("LDL", "STL"))], "no spills"


def test_it_is_chosen_for_layers_of_compiled_models() -> None:
    chooser = Selector(TunedTable.load(shipped_path("NVIDIA H200")))

    def chosen(text: str, extra: Extra, dtype: str = "fp16", layout: str = "tn") -> str:
        found, _ = epilogue_selector.choose(chooser, Shape.parse(text), layout, dtype, extra=extra)
        return found.name if found else "torch"

    for extra in (Extra(constant=True), Extra(True, "silu", True, constant=True)):
        for rows, tile in (
            (9, "swapped{}_64x16"),
            (17, "swapped{}_64x32"),
            (33, "{}_64x48"),
            (64, "{}_64x48"),
        ):
            for dtype, kind in (("fp16", ""), ("bf16", "_bf16")):
                name, wanted = chosen(f"{rows}x6144x4096", extra, dtype), tile.format(kind).removeprefix("_")
                assert name.startswith(f"split_k_early_tn_{wanted}_") and name.endswith("+o")
        for text in ("1x6144x4096", "65x6144x4096", "16x512x512"):
            assert "early" not in chosen(text, extra)
        assert "early" not in chosen("16x6144x4096", extra, layout="nn")
        # behind other kernels, too: the same tiles, whose weights wait as well
        assert chosen("16x6144x4096", replace(extra, constant=False)) == chosen("16x6144x4096", extra)
        assert (
            chosen("16x4608x4608", replace(extra, constant=False))
            == chosen("16x4608x4608", extra)[:-4] + "c1+o"
        )
        assert "early" not in chosen("16x3072x4096", replace(extra, constant=False)), "it may be in the L2"
    for extra, rows in (
        (Extra(True), 32),
        (Extra(True, "relu"), 32),
        (Extra(beta=True), 64),
        (Extra(True, "silu"), 64),
    ):
        assert "early" in chosen(f"{rows}x6144x4096", extra) and "early" not in chosen(
            f"{rows + 1}x6144x4096", extra
        )


@pytest.mark.parametrize(
    ("text", "slices"),
    [
        ("16x4096x14336", 2),  # of one CTA a multiprocessor: all of them
        ("16x5120x13824", 4),  # 80 tiles: 14 pairs of multiprocessors would have two, which read half as fast
        ("4x4608x18432", 3),
        ("16x6144x4096", 1),
        ("16x28672x4096", 1),
        ("1x2048x2048", 3),
    ],
)
def test_k_is_cut_where_pairs_of_multiprocessors_would_wait(text: str, slices: int) -> None:
    shape = Shape.parse(text)
    best = split_k_early.best(shape, "bf16")
    assert best[0].cluster_split_k == slices
    costs = [split_k_early.cost_us(config, shape) for config in best]
    least_us = shape.n * shape.k * 2e-6 / 4.8
    assert costs == sorted(costs) and least_us < costs[0] < 1.3 * least_us + 2


def test_names_and_plans() -> None:
    config = names.parse("split_k_early_tn_swapped_64x16_s10q2e/c2+o")
    assert isinstance(config, EarlySplitKConfig) and config.mode.pdl and config.ranges == 2
    assert names.parse(config.name) == config
    assert registry.parse_instance("ce_tn_swapped_64x16_s10q2e") == config.instance
    problem = Problem(0, 0, 16, 6144, 4096, 1, 4096, 4096, 6144, 1, extra=CONSTANT)
    place = [name for name, _ in config.instance.parameters].index("early")
    for extra, early in ((CONSTANT, 1), (1, 0)):
        launch = plan(config, problem._replace(extra=extra)).launches[0]
        assert launch.parameters[place] == ("value", early) and launch.overlap
    assert "of the layout tn" in str(EarlyInstance("nn", 64, 16, 4, epilogue=True).why_illegal())


def test_ordinary_calls_have_the_configurations_that_they_had() -> None:
    """Early ones, which may waste less, leave none out."""
    for m, n, k in ((16, 24, 64), (7, 9, 40), (64, 4096, 4096)):
        for dtype in ("fp16", "bf16"):
            found = epilogue.configurations(Shape(m, n, k), "tn", dtype)
            assert not any(isinstance(config, EarlySplitKConfig) for config in found)
            assert found or (n % 8 and dtype == "bf16")

"""Split k in two launches: both kernels' own source on the CPU, and their SASS."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sassafras.frontend._image import parameter_sizes
from sassafras.gemm.build.cubins import KERNELS
from sassafras.gemm.configs.base import Mode
from sassafras.gemm.configs.split_k import SplitKInstance
from sassafras.gemm.configs.split_k_two_pass import (
    INSTANCES,
    PartialsInstance,
    ReductionInstance,
    TwoPassSplitKConfig,
    terms_of,
)
from sassafras.gemm.problem.shape import Shape
from sassafras.sass import Program

from .hopper_launch import EAGER, HERE, LATE, RANDOM, emulated, operands, values
from .together import accepted, together

ROOT = Path(__file__).parents[2]
_L = PartialsInstance
#: layouts, one and two multiplying warpgroups, two blocks a stage, swapped, BF16
FIRST = (
    _L("nn", 64, 64, 3),
    _L("tn", 128, 128, 2),
    _L("tn", 64, 32, 2, swap_ab=True, k_blocks=2),
    _L("tn", 64, 80, 3, dtype="bf16"),
)
SECOND = (
    ReductionInstance(2), ReductionInstance(5), ReductionInstance(9), ReductionInstance(2, swap_ab=True),
    ReductionInstance(3, dtype="bf16"),
)  # fmt: skip


#: what the second kernel does, and what it does when this fault is planted; what is then noticed
FAULTS = (
    ("if (!waited) {", "if (!waited && planted != 1) {", "does not wait for the launch"),
    ("part < parts;", "part < parts - (planted == 2 ? TERMS : 0);", "wrong"),
    ("if (r < (SWAPPED ? p.n : p.m)", "if ((planted == 3 || r < (SWAPPED ? p.n : p.m))", "store outside"),
    ("unit / across, tile", "unit / (planted == 4 ? down : across), tile", "is stored twice|was not stored"),
    ("bool waited = false", "if (planted == 5) start_successors(); bool waited = false", "may start before"),
)  # fmt: skip


def build(shared: Path) -> Path:
    """The emulator of both kernels, compiled once a run."""
    names = ("hopper_tile", "epilogue", "sm90_gemm_split_k")
    files = {f"{name}.cuh": (KERNELS / f"{name}.cuh").read_text() for name in names}
    second = (KERNELS / "sm90_gemm_split_k_reduce.cuh").read_text()
    for before, after, _ in FAULTS:
        assert second.count(before) == 1, f"the text has no {before!r}"
        second = second.replace(before, after)
    files["sm90_gemm_split_k_reduce.cuh"] = second
    files["ptx_sums.cuh"] = (HERE / "sums_emulator.hpp").read_text()

    def table(instances: tuple[Any, ...]) -> str:
        return " ".join(f"X({n}, {i.template.replace(',', ' COMMA')})" for n, i in enumerate(instances))

    tables = {"FIRST_KERNELS": table(FIRST), "SECOND_KERNELS": table(SECOND)}
    return emulated(shared, "emulated_second.cpp", files, **tables)


@pytest.fixture(scope="module")
def emulator(shared: Path) -> Path:
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    return build(shared)


def run(
    program: Path, pair: TwoPassSplitKConfig, shape: Shape, folder: Path, *, policy: int = LATE,
    repeats: int = 1, fault: int = 0, ctas: int = 3,
) -> str:  # fmt: skip
    """Both launches, the second on at most `ctas` CTAs, compared with FP64; ``""`` when nothing is wrong."""
    a, b, exact = operands(pair, shape, 5)
    a.tofile(folder / "a")
    b.tofile(folder / "b")
    np.zeros((shape.m, shape.n), np.uint16).tofile(folder / "c")
    first = pair.launch(shape)
    assert first.then is not None
    second = first.then.launch
    if ctas:
        second = replace(second, grid=(min(ctas, second.grid[0]), 1, 1))
    words: list[Any] = [FIRST.index(pair.instance), *first.grid, *first.cluster, first.threads]
    words += [first.shared_bytes, SECOND.index(pair.adding), second.grid[0], second.threads]
    words += [second.shared_bytes, policy, 7, repeats, fault]
    for named, plan in ((pair.instance.parameters, first), (pair.adding.parameters, second)):
        numbers = [plan.scalars[name] for name, kind in named if kind == "i32"]
        words += [len(numbers), *numbers]
    place = {"a": 1, "b": 0} if pair.swap_ab else {"a": 0, "b": 1}
    for name in ("map_a", "map_b"):
        tensor = first.tensor_maps[name]
        words += [place[tensor.operand], *tensor.dims, *tensor.strides, *tensor.box, tensor.swizzle]
    assert second.workspace_bytes == first.workspace_bytes
    words += [first.workspace_bytes, "a", "b", "c"]
    (folder / "job").write_text(" ".join(map(str, words)))
    done = subprocess.run(
        [str(program), "job"], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode:
        return done.stderr.strip() or f"status {done.returncode}"
    c = values(np.fromfile(folder / "c", np.uint16).reshape(shape.m, shape.n), pair.dtype)
    unit = 2.0**-8 if pair.dtype == "bf16" else 2.0**-11
    allowed = np.abs(exact) * unit + 1e-5 * np.sqrt(shape.k) + 2.0**-25
    wrong = ~(np.abs(c - exact) <= allowed)
    return f"{wrong.sum()} of {wrong.size} wrong" if wrong.any() else ""


def pair_of(number: int, parts: int) -> TwoPassSplitKConfig:
    return TwoPassSplitKConfig(FIRST[number], split_k=parts, mode=Mode(trigger_late=number % 2 == 0))


@pytest.mark.parametrize(
    ("pair", "shape", "ctas"),
    [
        (pair_of(0, 2), Shape(136, 72, 264), 3),
        (pair_of(0, 5), Shape(64, 64, 320), 1),
        (pair_of(0, 18), Shape(72, 136, 1152), 3),  # nine and nine
        (pair_of(1, 5), Shape(264, 136, 640), 3),
        (pair_of(1, 2), Shape(136, 72, 328), 200),
        (pair_of(2, 2), Shape(24, 200, 392), 3),
        (pair_of(3, 3), Shape(72, 168, 264), 3),
    ],
    ids=str,
)
def test_two_launches_are_right(
    pair: TwoPassSplitKConfig, shape: Shape, ctas: int, emulator: Path, tmp_path: Path
) -> None:
    assert pair.why_illegal(shape) is None
    assert run(emulator, pair, shape, tmp_path, policy=RANDOM, repeats=2, ctas=ctas) == ""
    assert run(emulator, pair, shape, tmp_path, policy=EAGER, ctas=ctas) == ""


@pytest.mark.parametrize("fault", range(1, len(FAULTS) + 1))
def test_faults_of_the_second_kernel_are_noticed(fault: int, emulator: Path, tmp_path: Path) -> None:
    pair, shape = pair_of(3, 3), Shape(40, 168, 264)  # a tile has rows outside
    assert run(emulator, pair, shape, tmp_path) == ""
    assert re.search(FAULTS[fault - 1][2], run(emulator, pair, shape, tmp_path, fault=fault))


COMPILED = INSTANCES[::2], [ReductionInstance(terms) for terms in (2, 8, 16)]


def program(instance: Any, shared: Path) -> tuple[Program, list[str]]:
    found = together(shared, chain(*COMPILED))
    bytes_of = {"tensormap": 128, "i32": 4}
    sizes = parameter_sizes(found.cubin.entries[instance.name])
    assert sizes == [bytes_of.get(kind, 8) for _, kind in instance.parameters]
    accepted(found, instance.name)
    return found, [i.opcode for i in found.function(instance.name).instructions]


@pytest.mark.parametrize("instance", COMPILED[0], ids=lambda i: i.name)
def test_sass_of_the_first(instance: PartialsInstance, shared: Path) -> None:
    _, opcodes = program(instance, shared)
    products = [op for op in opcodes if "MMA" in op]
    assert products == [f"HGMMA.64x{instance.tile_n}x16.F32"] * 4
    assert len([op for op in opcodes if op.startswith("WARPGROUP.DEPBAR")]) <= 3
    assert not [op for op in opcodes if op.startswith(("LDL", "STL", "ATOM", "RED", "LDG", "F2F"))]
    # nothing but the sums is stored: 16 bytes for each four of a thread
    stores = [op for op in opcodes if op.startswith("STG")]
    assert stores == ["STG.E.128.STRONG.GPU"] * (instance.tile_n // 8)
    loads = [number for number, op in enumerate(opcodes) if op.startswith("UTMALDG")]
    assert opcodes.index("ACQBULK") < loads[0]
    assert "PREEXIT" in opcodes[opcodes.index("ACQBULK") : loads[0]]


@pytest.mark.parametrize("instance", COMPILED[1], ids=lambda i: i.name)
def test_sass_of_the_second(instance: ReductionInstance, shared: Path) -> None:
    found, opcodes = program(instance, shared)
    assert not [op for op in opcodes if op.startswith(("LDL", "STL", "ATOM"))]
    order = "".join({"LDG": "L", "FAD": "+", "STG": "S"}.get(op[:3], "") for op in opcodes)
    # all parts' loads before the first addition
    assert order == "L" * (2 * instance.terms) + "+" * (8 * instance.terms) + "S"
    assert {op for op in opcodes if op.startswith("LDG")} == {"LDG.E.128.STRONG.GPU"}
    assert opcodes.index("ACQBULK") < opcodes.index("PREEXIT") < opcodes.index("LDG.E.128.STRONG.GPU")
    text = " ".join(i.text for i in found.function(instance.name).instructions)
    registers = -(-(max(int(n) for n in re.findall(r"\bR(\d+)\b", text)) + 1) // 8) * 8 * instance.threads
    # one fits beside a CTA of 288 threads with 88 registers
    assert registers <= 65536 - 9 * 32 * 88


def test_what_cannot_be_a_pair_is_said() -> None:
    shape, tile = Shape(512, 512, 2048), ("tn", 64, 128, 7)
    leaving = PartialsInstance(*tile)
    assert "without a stagger" in (PartialsInstance("tn", 128, 128, 5, stagger=2).why_illegal() or "")
    pairs = {
        "an instance that leaves": TwoPassSplitKConfig(SplitKInstance(*tile), split_k=4),  # type: ignore[arg-type]
        "one slice and several parts": TwoPassSplitKConfig(leaving, split_k=1),
        "no 8 to 16 of them": TwoPassSplitKConfig(leaving, split_k=17),
        "some would be empty": TwoPassSplitKConfig(leaving, split_k=30),
    }
    for why, pair in pairs.items():
        assert why in (pair.why_illegal(shape) or ""), why
    assert [terms_of(parts) for parts in (2, 7, 16, 18, 22, 24, 32)] == [2, 7, 16, 9, 11, 12, 16]

"""The kernels' own source, run lane by lane on the CPU against FP64."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from sassafras.gemm.build.cubins import KERNELS
from sassafras.gemm.configs.fallback import FallbackConfig
from sassafras.gemm.configs.registry import Config, Instance, parse_instance
from sassafras.gemm.configs.small import SmallConfig, SmallInstance
from sassafras.gemm.problem.shape import Shape
from tests.shared import compiled

from .hopper_launch import operands, values

HERE = Path(__file__).parent
#: every code path: tile heights and widths, one and several loads at once, the three layouts, BF16
INSTANCES: dict[str, Instance] = {
    instance.name: instance
    for instance in (
        *(parse_instance(name) for name in (
            "lean_tn_m1n1s4", "lean_tn_m1n2s2", "lean_nn_m1n2s1", "lean_tn_m1n1s2x", "lean_nn_m1n2s2x",
            "lean_tn_swapped_m1n1s4", "lean_tn_swapped_m1n2s2", "staged_nn_32x64_w2x2s4",
            "staged_tn_64x64_w2x2s4a1", "staged_nn_64x64_w2x2s4a1", "staged_tn_64x64_w2x2s4a2",
            "staged_nn_64x64_w2x2s4a2", "lean_tn_bf16_m1n1s4", "lean_nn_bf16_m1n2s1",
            "lean_tn_swapped_bf16_m1n2s2", "staged_nn_bf16_32x64_w2x2s4", "staged_nn_bf16_64x64_w2x2s4a1",
        )),
        *(SmallInstance("tn", *tile) for tile in ((2, 4, 2), (1, 4, 1))),
        *(SmallInstance("nn", *tile) for tile in ((1, 2, 4), (1, 4, 1))),
    )
}  # fmt: skip
NAMES = tuple(INSTANCES)

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@pytest.fixture(scope="module")
def program(shared: Path) -> Path:
    kernels = ("sm90_gemm_small", "sm90_gemm_fallback", "epilogue")
    files = {f"{name}.cuh": (KERNELS / f"{name}.cuh").read_text() for name in kernels}
    files["ptx.cuh"] = (HERE / "lane_emulator.hpp").read_text()  # the kernels include "ptx.cuh"
    files["emulated.cpp"] = (HERE / "emulated.cpp").read_text()
    table = " ".join(f"X({number}, {_type(INSTANCES[name])})" for number, name in enumerate(NAMES))
    command = [
        "g++",
        "-std=c++17",
        "-O1",
        "-DCOMMA=,",
        f"-DINSTANCES={table}",
        "-o",
        "emulated",
        "emulated.cpp",
    ]
    return compiled(shared, files, command) / "emulated"


def _type(instance: Instance) -> str:
    """The C++ type, with its commas hidden from the preprocessor, and the problem it takes."""
    kind = "lean" if isinstance(instance, SmallInstance) else "staged"
    return f"{instance.template.replace(',', ' COMMA')}, {kind}"


def launch(program: Path, config: Config, shape: Shape, folder: Path, seed: int = 0) -> None:
    """Run one launch with the grid and scalars of `SmallConfig.launch`, and compare with FP64."""
    a, laid, exact = operands(config, shape, seed)
    plan = config.launch(shape)
    first, second = (laid, a) if config.swap_ab else (a, laid)
    first.tofile(folder / "first")
    second.tofile(folder / "second")
    np.zeros((shape.m, shape.n), np.uint16).tofile(folder / "c")
    s = plan.scalars
    numbers = [
        NAMES.index(config.instance.name), s["m"], s["n"], s["k"], s["lda"], s["ldb"], s["ldc"],
        s.get("log2_warps_m", 0), s.get("log2_warps_n", 0),
        s.get("steps_per_slice", s.get("tiles_per_slice")), *plan.grid, plan.threads, plan.shared_bytes,
    ]  # fmt: skip
    done = subprocess.run(
        [str(program), *map(str, numbers), "first", "second", "c"],
        cwd=folder, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{config.name} for {shape}: {done.stderr}"
    c = values(np.fromfile(folder / "c", np.uint16).reshape(shape.m, shape.n), config.dtype)
    # half a unit in the last place, and a little for FP32 sums of k terms
    unit = 2.0**-8 if config.dtype == "bf16" else 2.0**-11
    allowed = np.abs(exact) * unit + 1e-5 * np.sqrt(shape.k) + 2.0**-25
    assert (np.abs(c - exact) <= allowed).all(), f"{config.name} for {shape}"


@pytest.mark.parametrize("name", NAMES)
def test_every_path_is_right_at_boundaries(name: str, program: Path, tmp_path: Path) -> None:
    instance = INSTANCES[name]
    configs: list[Config]
    if isinstance(instance, SmallInstance):
        splits = ((1, 1, 1, 1), (2, 2, 1, 1), (1, 1, 2, 1), (1, 2, 2, 2), (1, 1, 1, 4))
        configs = [SmallConfig(instance, *split) for split in splits]
    else:
        configs = [FallbackConfig(instance, cluster) for cluster in (1, 2, 4)]
    rows, columns = SmallConfig(instance).tile if isinstance(instance, SmallInstance) else configs[0].tile
    swapped = configs[0].swap_ab
    shapes = [
        Shape(rows, columns if not swapped else 16, 64),  # exact
        Shape(rows + 1, columns + 8, 200),  # tails everywhere
        Shape(3, 24, 8) if not swapped else Shape(3, 17, 8),  # smaller than a tile
    ]
    if isinstance(instance, SmallInstance) and instance.divisible:  # one to four groups of steps a slice
        shapes += [Shape(2 * rows, 2 * columns, 128 * k) for k in (1, 2, 3, 4)]
    if not isinstance(instance, SmallInstance):
        shapes.append(Shape(40, 24, 520))  # more k tiles than stages
        if (align := instance.alignment) < 8:  # rows that end in the middle of a chunk, and of a word
            shapes += [
                Shape(33, 7 * align, 5 * align),
                Shape(70, 61 * align, 163 * align),
                Shape(1, align, align),
            ]
    for shape in shapes:
        for config in configs:
            if config.why_illegal(shape) is None:
                launch(program, config, shape, tmp_path)


def test_random_launches_are_right(program: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    tried = 0
    while tried < 40:
        instance = INSTANCES[NAMES[int(rng.integers(len(NAMES)))]]
        m, n, k = (int(rng.integers(1, 90)), 8 * int(rng.integers(1, 13)), 8 * int(rng.integers(1, 40)))
        split = [int(2 ** rng.integers(0, most)) for most in (2, 2, 4, 3)]
        config: Config = (
            SmallConfig(instance, *split)
            if isinstance(instance, SmallInstance)
            else FallbackConfig(instance, split[3])
        )
        shape = Shape(m, n, k)
        if config.why_illegal(shape) is None:
            launch(program, config, shape, tmp_path, seed=tried)
            tried += 1


def test_the_emulator_notices_a_wrong_launch(program: Path, tmp_path: Path) -> None:
    """Too few k steps a slice: the check above must be able to fail."""
    config, shape = SmallConfig(parse_instance("lean_tn_m1n2s2")), Shape(16, 16, 128)
    plan = config.launch(shape)
    plan.scalars["steps_per_slice"] -= 1

    class Short(SmallConfig):
        def launch(self, shape: Shape):  # type: ignore[no-untyped-def]
            return plan

    with pytest.raises(AssertionError):
        launch(program, Short(config.instance), shape, tmp_path)

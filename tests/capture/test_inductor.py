"""Kernels of `torch.compile`: recorded, made workloads, searched and deployed; Inductor's own programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sassafras.api.optimize_captured import optimize_captured
from sassafras.capture.inductor import unsupported
from sassafras.core import Buffer, Custom
from sassafras.frontend.captured.files import Captured, CapturedVariant, read
from sassafras.frontend.captured.workloads import workload
from sassafras.sass import Program
from tests.by_recipe import Bench
from tests.deploy.boundary import sha
from tests.deploy.conftest import retuned, save

from .conftest import ROOT, capture

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(1500)
PROGRAM = ("-m", "tests.capture.inductor_program")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> tuple[Captured, dict[str, Any]]:
    """The capture, and what the program prints."""
    folder = tmp_path_factory.mktemp("inductor")
    cache = {"cache": folder / "triton", "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
    ran = capture(folder / "captured", *PROGRAM, **cache)  # type: ignore[arg-type]
    assert ran.returncode == 0, ran.stderr
    return read(folder / "captured"), printed(ran.stdout)


def printed(text: str) -> dict[str, Any]:
    line = next(line for line in text.splitlines() if line.startswith('{"launched"'))
    found: dict[str, Any] = json.loads(line)
    return found


def by_launches(found: Captured) -> dict[int, CapturedVariant]:
    """Counts of launches are all different in the program."""
    assert len({v.count for v in found.variants}) == len(found.variants) == 5
    return {v.count: v for v in found.variants}


def test_the_programs_launches_are_recorded(program: tuple[Captured, dict[str, Any]]) -> None:
    found, facts = program
    assert found.problems == {} and facts["launched"] == {"static": 5, "tuned": 2, "triton": 4, "own": 6}
    variants = by_launches(found)
    assert {(v.name, v.digest) for v in found.variants} <= {(name, sha) for name, sha in facts["loads"]}
    # ten trial launches of two configurations are not counted, nor is the one that was not chosen
    assert facts["launches"] == 18 + 10 + 1 and len(facts["loads"]) == 7  # one without a block
    rows = variants[5]
    assert [(s.count, s.grid) for s in rows.shapes] == [(3, (64, 1, 1)), (2, (256, 1, 1))]
    for shape in rows.shapes:
        tensors = {n: tuple(v["shape"]) for n, v in shape.args.items() if isinstance(v, dict)}
        assert tensors == {
            "in_ptr0": (shape.grid[0], 1024), "in_ptr1": (1024,),
            "in_ptr2": (shape.grid[0], 1024), "out_ptr1": (shape.grid[0], 1024),
        }  # fmt: skip
        assert (shape.args["xnumel"], shape.args["r0_numel"]) == (shape.grid[0], 1024)
    assert rows.roles == {"in_ptr0": "in", "in_ptr1": "in", "in_ptr2": "in", "out_ptr1": "out"}
    assert rows.facts["constants"] == {"XBLOCK": 1} and rows.function.endswith(f".{rows.name}")
    assert len({v.function for v in found.variants}) == 5  # two of them have one name
    own = variants[6]  # the program's, not Inductor's
    assert own.name == "scale" and own.shapes[0].grid == (4, 1, 1) and own.shapes[0].args["n"] == 1000
    assert "cooperatively" in variants[1].problem
    assert not any(variants[count].problem for count in (6, 5, 4, 2))


@pytest.mark.parametrize("launches", [6, 5, 4, 2])
def test_they_are_workloads(program: tuple[Captured, dict[str, Any]], launches: int) -> None:
    variant = by_launches(program[0])[launches]
    made = workload(program[0], variant)
    case = made.case()
    kernel = made.build(case, "sm_90a")
    assert kernel.digest == variant.digest and kernel.arch == "sm_90a"
    assert kernel.hidden_args == 2  # Triton's two scratch pointers
    assert list(case.args) == [name for name, _ in kernel.parameters or ()]
    assert len(Program.parse(kernel.cubin).function(kernel.name)) > 20
    assert f".entry {variant.name}(" in made.build.ptx(case, "sm_90a")  # type: ignore[attr-defined]
    if launches == 2:
        index = case.args["in_ptr0"]
        assert isinstance(index, Buffer) and isinstance(index.fill, Custom)
        assert int(index.fill.fn((4096,), torch.int64, None, "cpu").max()) == 76


def test_they_are_searched(program: tuple[Captured, dict[str, Any]]) -> None:
    folder = program[0].folder
    report = optimize_captured(folder, device="model", budget="5e", strategy="greedy", most=5, runner_ups=0)
    assert [row.ratio is not None for row in report.rows] == [True, True, True, True, False], report.rows
    compiled = optimize_captured(folder, device=Bench, space="compiler", budget="16e", most=2, runner_ups=0)
    assert all(row.improved for row in compiled.rows[:2]) and compiled.rows[1].launches == 5


def test_what_is_tuned_is_deployed(program: tuple[Captured, dict[str, Any]], tmp_path: Path) -> None:
    """By the static launcher and by Triton's; a fresh cache gives other line information."""
    found, facts = program
    tuned = set()
    for launches in (5, 4):
        variant = by_launches(found)[launches]
        kernel = workload(found, variant).build(workload(found, variant).case(), "sm_90a")
        save(tmp_path / "store.sqlite", kernel, better := retuned(kernel.cubin))
        tuned.add(sha(better))
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    caches = {"TRITON_CACHE_DIR": str(tmp_path / "t"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "i")}
    command = [sys.executable, "-m", "sassafras", "run", "--store", str(tmp_path / "store.sqlite"), "--"]
    ran = subprocess.run(
        [*command, sys.executable, *PROGRAM, "static", "triton"],
        env={**os.environ, "PYTHONPATH": path, **caches},
        capture_output=True, text=True, timeout=900, cwd=ROOT,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    again = printed(ran.stdout)
    assert tuned <= {digest for _, digest in again["loads"]}, ran.stderr
    # without a recorder, torch 2.13 launches in C after the first time
    fast = torch.__version__ >= "2.12"
    assert again["launched"] == {"static": 5, "triton": 4}
    assert facts["fast"] == 0 and (again["fast"] > 0) == fast and (again["launches"] < 9) == fast


def test_another_inductor_is_left_alone() -> None:
    from torch._inductor.runtime import triton_heuristics as real

    assert unsupported(real) is None
    for owner, name in (("CachingAutotuner", "run"), ("CompileResult", "_gen_launcher_code")):
        changed = type(owner, (), dict(vars(getattr(real, owner))) | {name: lambda self, launcher: None})
        classes = {"CachingAutotuner": real.CachingAutotuner, "CompileResult": real.CompileResult}
        problem = unsupported(SimpleNamespace(**classes | {owner: changed}))
        assert problem is not None and torch.__version__ in problem and "another way" in problem
    assert unsupported(SimpleNamespace()) is not None
    for more, known in ((lambda self, scope, def_args, runner_args, lines=None: None, True),
                        (lambda self, scope, def_args, runner_args, lines: None, False)):  # fmt: skip
        later = type("CompileResult", (), {"_gen_launcher_code": more})
        found = unsupported(SimpleNamespace(CachingAutotuner=real.CachingAutotuner, CompileResult=later))
        assert (found is None) == known

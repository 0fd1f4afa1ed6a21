"""The digest of what decides a search."""

from __future__ import annotations

import dataclasses
import functools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sassafras.core import Buffer, Case, Custom, Tolerance, Uniform, Workload, fingerprint, workload_digest

SCALE = 2.0


def double(tensors: Any) -> Any:
    return {"y": SCALE * tensors["x"]}


def ones(shape: Any, dtype: Any, generator: Any, device: Any) -> Any:
    raise AssertionError("not called here")


def workload(**changed: Any) -> Workload:
    args = {"x": Buffer("fp32", (128,)), "y": Buffer("fp32", (128,), "out"), "n": 128}
    case = Case("128", (1, 1, 1), args)
    values = {"cases": (case,), "reference": double, "build": lambda case, arch: None} | changed
    return Workload(name="same", **values)


def case(**changed: Any) -> Case:
    return dataclasses.replace(workload().cases[0], **changed)


ARGS = workload().cases[0].args
CHANGES = {
    "grid": {"cases": (case(grid=(2, 1, 1)),)},
    "shape": {"cases": (case(args={**ARGS, "x": Buffer("fp32", (64,))}),)},
    "scalar": {"cases": (case(args={**ARGS, "n": 64}),)},
    "fill": {"cases": (case(args={**ARGS, "x": Buffer("fp32", (128,), fill=Uniform())}),)},
    "custom fill": {"cases": (case(args={**ARGS, "x": Buffer("fp32", (128,), fill=Custom(ones))}),)},
    "constants": {"cases": (case(constants={"BLOCK": 64}),)},
    "loop trips": {"cases": (case(loop_trips=7),)},
    "another shape that is checked": {"cases": (case(), case(name="tail"))},
    "tolerance": {"tolerance": Tolerance(1e-2, 1e-3)},
    "reference": {"reference": lambda tensors: {"y": 3 * tensors["x"]}},
    "no reference": {"reference": None},
}  # fmt: skip


@pytest.mark.parametrize("what", CHANGES)
def test_whatever_decides_a_search_makes_another_one(what: str) -> None:
    assert workload_digest(workload(**CHANGES[what])) != workload_digest(workload())


def test_a_constant_that_the_reference_names_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    before = workload_digest(workload())
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert workload_digest(workload()) != before


def test_equal_workloads_are_equal_in_every_process() -> None:
    program = "import test_identity as t; print(t.workload_digest(t.workload()))"
    out = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
    )
    assert out.stdout.strip() == workload_digest(workload())


def test_what_closures_partials_and_files_hold_counts(tmp_path: Path) -> None:
    def made(n: int) -> Any:
        return lambda: n

    assert fingerprint(made(1)) != fingerprint(made(2))
    assert fingerprint(functools.partial(double, 1)) != fingerprint(functools.partial(double, 2))
    (tmp_path / "a.npz").write_bytes(b"one")
    before = fingerprint(tmp_path / "a.npz")
    (tmp_path / "a.npz").write_bytes(b"two")
    assert fingerprint(tmp_path / "a.npz") != before
    loop: list[Any] = []
    loop.append(made)
    assert fingerprint(loop) == fingerprint(loop)

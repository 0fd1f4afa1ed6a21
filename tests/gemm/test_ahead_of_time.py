"""Kernels compiled ahead for a deployment, and a program that finds them."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sassafras.cli.app import app
from sassafras.core import SassafrasError, ToolMissing
from sassafras.gemm.build import ahead_of_time
from sassafras.gemm.build import cubins as compiling
from sassafras.gemm.build import launcher as launchers
from sassafras.gemm.build.cubins import cached_path, cubin
from sassafras.gemm.configs import attention, joined, names, registry, rows, turned

ONE = "^lean_tn_m1n1s2$"


def test_all_that_dispatch_may_load() -> None:
    every = ahead_of_time.kernels()
    products = (*registry.INSTANCES, *registry.OTHER_INSTANCES, *registry.EPILOGUE_INSTANCES)
    known = (*products, *joined.INSTANCES, *rows.INSTANCES, *attention.INSTANCES, *turned.INSTANCES)
    assert set(every) == set(compiling.with_companions(known))
    assert [i.name for i in ahead_of_time.kernels(ONE)] == ["lean_tn_m1n1s2"]
    for only, what in (("(", "not a regular expression"), ("^nobody$", "no kernel has such a name")):
        with pytest.raises(SassafrasError, match=what):
            ahead_of_time.kernels(only)


def test_what_is_missing_is_said_and_then_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, folder = CliRunner(), tmp_path / "kernels"
    words = ["gemm", "build", "--only", ONE, "--out", str(folder)]
    checked = run.invoke(app, [*words, "--check"])
    assert checked.exit_code == 1 and "1 kernels, 2 files missing" in checked.output
    assert not folder.exists(), "checking builds nothing"
    (instance,) = ahead_of_time.kernels(ONE)
    try:
        cubin(instance, tmp_path / "try")
    except ToolMissing as missing:
        pytest.skip(f"no compiler here: {missing}")
    built = run.invoke(app, [*words, "--workers", "1", "--no-launcher"])
    assert built.exit_code == 0 and "0 files missing" in built.output
    assert cached_path(instance, folder).read_bytes()[:4] == b"\x7fELF"
    assert ahead_of_time.missing(folder, [instance]) == [launchers.path(folder).name]
    written = cached_path(instance, folder).stat().st_mtime_ns
    monkeypatch.setattr(launchers, "compiler", lambda: None)
    again = run.invoke(app, words)
    assert again.exit_code == 1 and "no C++ compiler" in again.output, "the launcher is still missing"
    assert cached_path(instance, folder).stat().st_mtime_ns == written, "what is there is kept"
    cached_path(instance, folder).write_bytes(b"")
    words += ["--workers", "1", "--no-launcher"]
    checked = run.invoke(app, [*words, "--check"])
    assert checked.exit_code == 1 and "1 kernels, 1 files missing" in checked.output, "a copy was cut off"
    assert run.invoke(app, words).exit_code == 0 and cached_path(instance, folder).stat().st_size > 1000


def test_a_folder_that_takes_nothing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    instance = names.parse("small_nn_m1n2s1/w1x1x1/c1").instance
    file = tmp_path / "file"
    file.write_text("no folder")
    said = CliRunner().invoke(app, ["gemm", "build", "--only", f"^{instance.name}$", "--out", str(file)])
    assert said.exit_code == 2 and "this is a file" in " ".join(said.output.split())
    assert file.read_text() == "no folder"
    monkeypatch.setattr(compiling, "_compile", lambda text, name: b"\x7fELF")
    with pytest.raises(SassafrasError, match="kernels cannot be kept there") as caught:
        ahead_of_time.build(file, [instance], launcher=False)
    assert str(file) in str(caught.value)
    if launchers.compiler():
        (said_of_it,) = ahead_of_time.build(file / "below", [])
        assert "the launcher cannot be kept there" in said_of_it


def test_a_read_only_folder_serves(tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a container has it: nothing can be written, and what is there is loaded."""
    monkeypatch.setattr(compiling, "_compile", lambda text, name: b"\x7fELF")
    torch = pytest.importorskip("torch")
    from sassafras.gemm.matmul import api as room
    from sassafras.gemm.matmul.driver import Driver
    from sassafras.gemm.matmul.planner import Planner
    from sassafras.gemm.matmul.torch_side import strict
    from sassafras.gemm.problem.shape import Shape
    from sassafras.gemm.select.table import TableRow, TunedTable
    from tests.gemm import stand_in

    served = {
        "tn": names.parse("small_tn_m1n2s2/w1x1x1/c1"), "nn": names.parse("small_nn_m1n2s1/w1x1x1/c1"),
    }  # fmt: skip
    library = stand_in.build_driver(tmp_path, shared)
    folder = tmp_path / "kernels"
    folder.mkdir()
    stand_in.launcher_into(folder, shared)
    cached_path(served["tn"].instance, folder).write_bytes(b"\x7fELF")
    elsewhere = tmp_path / "no folder"
    elsewhere.write_text("a file: nothing can be kept below it")
    rows = [TableRow(Shape(32, 48, 64), layout, ((config, 1.0),), 2.0) for layout, config in served.items()]
    members = {}
    for where in (folder, elsewhere):
        driver, side = Driver(str(library)), stand_in.torch_side(strict=strict)
        engine = Planner(driver, side, cache=where, background=False, table=TunedTable({}, rows))
        engine.launcher = stand_in.make("python", driver, side, folder)
        room.use(engine, device="cpu")
        try:
            a, b = torch.randn(32, 64).half(), torch.randn(48, 64).half().t()
            with contextlib.nullcontext() if where == folder else pytest.warns(RuntimeWarning, match="kept"):
                room.matmul(a, b)  # what is missing is compiled, and in memory from now on
            assert torch.allclose(room.matmul(a, b).float(), (a.double() @ b.double()).float(), atol=0.1)
            members[where] = [p["member"] for p in room.status()["problems"]]
        finally:
            room.use(None)
    assert members == {folder: ["ours"], elsewhere: ["ours"]}

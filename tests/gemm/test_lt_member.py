"""A tuned cuBLASLt algorithm as a member of the portfolio, on stand-ins for the driver and for cuBLASLt."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent


def calls(library: str, driver_library: str, cache: str) -> None:
    """Runs in a process of its own, so that no real cuBLAS is found first."""
    loaded = ctypes.CDLL(library)
    assert loaded
    import torch

    from sassafras.gemm.matmul import api as room
    from sassafras.gemm.matmul.cublaslt import LtMember
    from sassafras.gemm.matmul.driver import Driver
    from sassafras.gemm.matmul.planner import Planner
    from sassafras.gemm.matmul.torch_side import strict
    from sassafras.gemm.problem.shape import Shape
    from sassafras.gemm.select.table import TableRow, TunedTable
    from tests.gemm import stand_in

    shape = Shape(16, 24, 32)

    def row(layout: str, first: int) -> TableRow:
        blob = bytes([first]) + bytes(63)
        return TableRow(
            shape, layout, (), 2.0, 1.0, {"layout": layout, "blob": blob.hex(), "workspace": 4096}
        )

    rows = [row("nn", 2), row("tn", 9)]  # the stand-in knows algorithms 1 and 2
    side = stand_in.torch_side(strict=strict)
    a = torch.randn(16, 32).half()
    b = {"nn": torch.randn(32, 24).half(), "tn": torch.randn(24, 32).half().t()}

    def made(version: int) -> Planner:
        driver = Driver(driver_library)
        table = TunedTable({"cublaslt": version}, rows)
        engine = Planner(
            driver, side, cache=Path(cache), background=False, table=table, lt=lambda: LtMember(driver)
        )
        room.use(engine, device="cpu")
        return engine

    def who(engine: Planner, layout: str) -> str:
        result = room.matmul(a, b[layout])
        exact = a.double() @ b[layout].double()
        assert ((result - exact).abs() <= 4e-3 * (1 + exact.abs())).all()
        return [s["member"] for s in engine.status()["problems"] if s["layout"] == layout][-1]

    engine = made(130100)
    assert not hasattr(engine.launcher, "_plans"), "the compiled launcher"
    assert who(engine, "nn") == "lt" and who(engine, "tn") == "torch", "the library refuses algorithm 9"
    assert who(made(130200), "nn") == "torch", "tuned with another cuBLASLt"
    engine = made(130100)
    assert who(engine, "nn") == "lt"
    real, seen = engine.launcher.counts()["hits"], []
    torch.use_deterministic_algorithms(True)
    with torch.profiler.profile() as profile:
        room.matmul(a, b["nn"])
    torch.use_deterministic_algorithms(False)
    seen = [event.name for event in profile.events()]
    assert "aten::mm" in seen, "strict: torch calls cuBLAS"
    with torch.profiler.profile() as profile:
        room.matmul(a, b["nn"])
    assert "aten::mm" not in [event.name for event in profile.events()]
    assert engine.launcher.counts()["hits"] == real + 2
    gap = torch.randn(16, 40).half()[:, :32]
    room.matmul(gap, b["nn"])
    assert engine.status()["problems"][-1]["member"] == "torch", "the algorithm is for tight matrices"
    out = torch.empty(16, 24).half()
    assert room.matmul(a, b["nn"], out) is out


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_calls(tmp_path: Path, shared: Path) -> None:
    pytest.importorskip("torch")
    from sassafras.gemm.build import launcher
    from tests.gemm import stand_in

    if launcher.compiler() is None:
        pytest.skip("the compiled launcher cannot be built here")
    driver = stand_in.build_driver(tmp_path, shared)
    stand_in.launcher_into(tmp_path, shared)
    library = str(tmp_path / "libcublasLt.so.13")
    command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-o", library]
    subprocess.run([*command, str(HERE.parent / "cuda" / "cublas_stand_in.cpp")], check=True, timeout=120)
    paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, __file__, library, str(driver), str(tmp_path)],
        capture_output=True, text=True, timeout=240, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in paths if p)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    calls(*sys.argv[1:])

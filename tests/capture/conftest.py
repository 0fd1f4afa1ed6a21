"""A real program, recorded once: ``examples/serve_demo.py``, on a driver that launches nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shared import once

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "examples" / "serve_demo.py"


def capture(folder: Path, *program: str, cache: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run `sassafras capture` on a program."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "TRITON_CACHE_DIR": str(cache), **more}
    command = [
        sys.executable,
        "-m",
        "sassafras",
        "capture",
        "-o",
        str(folder),
        "--",
        sys.executable,
        *program,
    ]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, cwd=ROOT)


@pytest.fixture(scope="session")
def recorded(shared: Path) -> Path:
    """The capture's folder. Read only."""
    pytest.importorskip("torch")

    def make(work: Path) -> None:
        ran = capture(
            work / "captured", "-m", "tests.capture.drive", str(DEMO), "--device", "cpu", "--steps", "8",
            "--rows", "256",
            cache=work / "cache",
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        assert "gather_kernel" in ran.stdout and "captured.json" in ran.stdout

    return once(shared, "captured-demo", make) / "captured"

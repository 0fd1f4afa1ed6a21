"""GPU tests are skipped where there is no GPU."""

from __future__ import annotations

import shutil
import subprocess

import pytest


def _gpu_present() -> bool:
    if shutil.which("nvidia-smi") is None:
        return False
    try:
        run = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return run.returncode == 0 and "GPU 0" in run.stdout


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if any("gpu" in item.keywords for item in items) and not _gpu_present():
        skip = pytest.mark.skip(reason="no NVIDIA GPU on this machine")
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(skip)

"""Searches of this process, with a real worker process, a real store, and a stand-in for CUDA."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sassafras import deploy
from sassafras.deploy import engine
from sassafras.deploy.records import CallSearch
from sassafras.on_call.calls import CALLS, WORKER
from tests.deploy.conftest import driver  # noqa: F401 (a fixture)
from tests.shared import without_torch

Wait = Callable[..., CallSearch]


@pytest.fixture
def folder(tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the worker's stand-in for a GPU is told what to do."""
    made = tmp_path / "gpu"
    made.mkdir()
    root = Path(__file__).resolve().parents[2]
    monkeypatch.setenv("ON_CALL_TEST", str(made))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([without_torch(shared), str(root / "src"), str(root)]))
    monkeypatch.delenv("SASSAFRAS_TUNE", raising=False)
    return made


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store.sqlite"


@pytest.fixture
def calls(driver: object, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:  # noqa: F811
    """The process's searches, at their beginning."""
    monkeypatch.setattr(CALLS, "worker", "tests.on_call.measuring")
    monkeypatch.setattr(CALLS, "patience_s", 120.0)
    monkeypatch.setattr(engine.ENGINE, "searches", {})
    yield CALLS
    deploy.uninstall()
    assert WORKER == "sassafras.on_call.worker" and not CALLS.on


def wait(name: str, *states: str, seconds: float = 240.0) -> CallSearch:
    """The search of this kernel, once it is in one of these states (by default at its end)."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for found in deploy.status().searches:
            if found.name == name and found.state in (states or ("done", "refused")):
                return found
        time.sleep(0.05)
    raise AssertionError(str(deploy.status()))

"""Doing something after a module is imported."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from sassafras.deploy.lazy import after_import


@pytest.fixture
def name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "late_package").mkdir()
    (tmp_path / "late_package" / "__init__.py").write_text("from . import part\nAFTER = part.VALUE\n")
    (tmp_path / "late_package" / "part.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "late_package.part"  # type: ignore[misc]
    for module in ("late_package", "late_package.part"):
        sys.modules.pop(module, None)


def test_it_comes_right_after_the_module_and_once(name: str) -> None:
    before = list(sys.meta_path)

    def then(module: ModuleType) -> None:
        module.VALUE += 1  # type: ignore[attr-defined]

    after_import(name, then)
    assert importlib.import_module("late_package").AFTER == 2  # before the package's own next line
    assert sys.meta_path == before
    after_import(name, then)  # imported already: now
    assert sys.modules[name].VALUE == 3  # type: ignore[attr-defined]


def test_an_error_of_ours_does_not_reach_the_import(name: str) -> None:
    after_import(name, lambda module: 1 / 0)  # type: ignore[arg-type, return-value]
    assert importlib.import_module(name).VALUE == 1


def test_called_off(name: str) -> None:
    before = list(sys.meta_path)
    seen: list[ModuleType] = []
    stop = after_import(name, seen.append)
    stop()
    stop()
    importlib.import_module(name)
    assert seen == [] and sys.meta_path == before

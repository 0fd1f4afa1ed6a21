"""The public names: all there, documented with their parameters, and light to import."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from enum import Enum
from types import ModuleType
from typing import Any

import pytest

import sassafras

PACKAGES = sorted(
    info.name
    for info in pkgutil.walk_packages(sassafras.__path__, "sassafras.")
    if info.ispkg and "autoinstall" not in info.name
)


def exported(module: ModuleType) -> dict[str, Any]:
    """A package's public functions and classes."""
    found = {name: getattr(module, name) for name in getattr(module, "__all__", ())}
    return {n: o for n, o in found.items() if inspect.isfunction(o) or inspect.isclass(o)}


def undocumented(thing: Any) -> list[str]:
    """Parameters that the documentation does not name; enumerations and protocols have none of their own."""
    if inspect.isclass(thing) and (issubclass(thing, Enum) or getattr(thing, "_is_protocol", False)):
        return []
    text = inspect.getdoc(thing) or ""
    if inspect.isclass(thing) and issubclass(thing, sassafras.SassafrasError):
        return []
    if inspect.isclass(thing) and thing.__init__ is not object.__init__:
        text += inspect.getdoc(thing.__init__) or ""
    names = [name for name in inspect.signature(thing).parameters if not name.startswith("_")]
    return [n for n in names if n not in ("args", "kwargs") and not re.search(rf"\b{n}\b", text)]


def test_every_public_name_is_there_and_documented() -> None:
    assert set(sassafras.__all__) == {*sassafras._HOME, "__version__"}
    assert dir(sassafras) == sorted(sassafras.__all__)
    for name, thing in exported(sassafras).items():
        assert inspect.getdoc(thing), name
        assert not undocumented(thing), f"{name}: {undocumented(thing)}"
    with pytest.raises(AttributeError, match="nothing_such"):
        _ = sassafras.nothing_such


@pytest.mark.parametrize("name", PACKAGES)
def test_packages_say_what_they_export(name: str) -> None:
    try:
        module = importlib.import_module(name)
        exports = exported(module)
    except ImportError as error:
        if (error.name or "").startswith("sassafras"):
            raise
        pytest.skip(f"{error.name} is not installed")
    assert module.__doc__, f"{name} has no docstring"
    for export, thing in exports.items():
        assert inspect.getdoc(thing), f"{name}.{export}"


@pytest.mark.parametrize(
    ("modules", "heavy"),
    [
        ("sassafras", {"numpy", "numba", "torch", "triton"}),
        (
            "sassafras.evaluate.host, sassafras.gemm.bench.program, sassafras.gemm.bench.worker",
            {"torch", "triton"},
        ),
    ],
)
def test_importing_loads_nothing_heavy(modules: str, heavy: set[str]) -> None:
    code = f"import sys, {modules}; print(*{heavy} & set(sys.modules))"
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert ran.stdout.strip() == ""

"""Builds the compiled launcher with the system's C++ compiler, once, into the cache folder."""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
from pathlib import Path
from types import ModuleType

from sassafras.core import CompileError, ToolMissing
from sassafras.core.files import is_file

from .cubins import NotKept, default_cache, not_kept

SOURCES = ("launcher.cpp", "attention.hpp", "launcher.hpp", "plan.hpp", "problem.hpp", "turned.hpp")
_HERE = Path(__file__).resolve().parents[1] / "matmul" / "launcher"
_LOADING = threading.Lock()
_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden")


def compiler() -> str | None:
    """``$CXX``, g++, clang++ or c++; None where there is none, or no Python header."""
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file():
        return None
    for name in (os.environ.get("CXX", ""), "g++", "clang++", "c++"):
        if name and (found := shutil.which(name)):
            return found
    return None


def path(cache: Path | None = None) -> Path:
    """Where the built launcher is, or will be; the name holds a hash of its sources and of this Python."""
    text = "".join((_HERE / name).read_text() for name in SOURCES) + " ".join(_FLAGS)
    tag = f"{sys.implementation.cache_tag}-{sysconfig.get_platform()}"
    digest = hashlib.sha256(f"{tag}\n{text}".encode()).hexdigest()[:16]
    return (cache or default_cache()) / f"sassafras_launcher-{tag}-{digest}.so"


def build(cache: Path | None = None) -> Path:
    """Compile it unless it is there; a second or two.

    Raises:
        ToolMissing: no compiler, or no Python header.
        CompileError: the compiler failed; its messages.
        NotKept: the folder takes no file.
    """
    target = path(cache)
    if is_file(target):
        return target
    found = compiler()
    if found is None:
        raise ToolMissing(
            "no C++ compiler or no Python.h: sassafras.matmul uses its Python launcher",
            hint="install g++ and python3-dev",
        )
    temporary = target.with_suffix(f".{os.getpid()}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.touch()
    except OSError as error:
        raise not_kept(error, "the launcher", target.parent) from error
    include = f"-I{sysconfig.get_paths()['include']}"
    command = [found, *_FLAGS, include, str(_HERE / SOURCES[0]), "-o", str(temporary)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        if done.returncode:
            raise CompileError(done.stderr.strip()[:2000], where=SOURCES[0])
        temporary.replace(target)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompileError(f"the compiler could not be run: {error}", where=found) from error
    finally:
        temporary.unlink(missing_ok=True)
    return target


def loaded() -> ModuleType | None:
    """The module, if this process has it already."""
    return sys.modules.get("sassafras_launcher")


def load(built: Path) -> ModuleType:
    """The module, loaded once a process. Raises CompileError when this Python cannot load it."""
    with _LOADING:
        return loaded() or _load(built)


def made(cache: Path | None = None) -> ModuleType:
    """The module, built if need be; in a passing folder where the cache takes no file.

    Raises:
        ToolMissing, CompileError: as `build` and `load`.
    """
    try:
        return loaded() or load(build(cache))
    except NotKept:
        with tempfile.TemporaryDirectory(prefix="sassafras-") as folder:
            return load(build(Path(folder)))


def _load(built: Path) -> ModuleType:
    name = "sassafras_launcher"
    loader = importlib.machinery.ExtensionFileLoader(name, str(built))
    spec = importlib.util.spec_from_file_location(name, built, loader=loader)
    assert spec is not None
    try:
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except ImportError as error:
        raise CompileError(f"the built launcher cannot be loaded: {error}", where=built.name) from error
    sys.modules[name] = module
    return module

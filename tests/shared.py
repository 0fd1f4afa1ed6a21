"""What takes long to make is made once a run of the tests, by whichever worker needs it first."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest


def needs(*modules: str) -> None:
    """Skip the calling module where one of these is not installed.

    `pytest.importorskip` imports it, in each worker, which then may get no test of the module.
    """
    for module in modules:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"could not import {module!r}", allow_module_level=True)


def folder_of(factory: pytest.TempPathFactory) -> Path:
    """The folder that all workers of this run share."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"
    folder.mkdir(exist_ok=True)
    return folder


def once(shared: Path, key: str, make: Callable[[Path], None]) -> Path:
    """The folder that `make` filled for this key; who comes meanwhile waits. Read only."""
    folder = shared / key
    with (shared / f"{key}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            work = Path(tempfile.mkdtemp(dir=shared))
            make(work)
            work.rename(folder)
    return folder


def python_path(*places: Path) -> str:
    """A PYTHONPATH of these folders, that of ``programs/sitecustomize.py`` and what is there already."""
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    wanted = [*map(str, places), str(Path(__file__).parent / "programs"), *inherited]
    return os.pathsep.join(dict.fromkeys(place for place in wanted if place))


def without_torch(shared: Path) -> str:
    """A PYTHONPATH that hides torch and SciPy: the timing model needs neither, and where they are Triton and
    numba import them, which takes half as long as a small search."""

    def make(work: Path) -> None:
        for name in ("torch", "scipy"):
            (work / name).mkdir()
            (work / name / "__init__.py").write_text(
                f"raise ModuleNotFoundError('no {name}', name='{name}')\n"
            )

    return python_path(once(shared, "without-torch", make))


def compiled(shared: Path, files: Mapping[str, str], command: Sequence[str]) -> Path:
    """The folder in which `command` compiled these files, by their content."""

    def make(work: Path) -> None:
        for name, text in files.items():
            (work / name).write_text(text)
        done = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=280, check=False)
        assert done.returncode == 0, done.stderr[:4000]

    digest = hashlib.sha256(repr((sorted(files.items()), list(command))).encode()).hexdigest()
    return once(shared, digest[:32], make)

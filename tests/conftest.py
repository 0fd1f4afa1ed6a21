"""GPU tests are skipped where there is no GPU."""

from __future__ import annotations

import fcntl
import gc
import importlib.util
import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.shared import folder_of, python_path

# pytest-xdist's workers fill the cores: more threads of numpy's and torch's would only wait for each other
if "PYTEST_XDIST_WORKER" in os.environ:
    _threads = max(1, (os.cpu_count() or 1) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"]))
    for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(_variable, str(_threads))

# benchmarks/gpu_tests.py: each worker has one of several GPUs
if "PYTEST_XDIST_WORKER" in os.environ and "SASSAFRAS_TEST_GPUS" in os.environ:
    _gpus = os.environ["SASSAFRAS_TEST_GPUS"].split(",")
    os.environ["CUDA_VISIBLE_DEVICES"] = _gpus[int(os.environ["PYTEST_XDIST_WORKER"][2:]) % len(_gpus)]

# Inductor's programs are scalar: trying each vector extension takes longer than the few programs of the tests
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "0")

# where nothing is measured
if shutil.which("nvidia-smi") is None:
    os.environ["PYTHONPATH"] = python_path()
    # with AVX-512, oneDNN writes a program for each shape of an FP16 or BF16 product
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX2")

# a shell's background job begins without SIGINT, and hands that on to every process of a test
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# bytecode is kept even where the environment says not to: workers and some 500 commands compile the package
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# what is imported for all tests stays: not looked through while tests are collected, nor later
gc.disable()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """In a fresh checkout one worker compiles the tests while it collects; the others wait to read that."""
    here = Path(__file__).parent
    turn = os.open(here, os.O_RDONLY)
    try:
        if "PYTEST_XDIST_WORKER" in os.environ:
            fcntl.flock(turn, fcntl.LOCK_EX)
            if 2 * len([*here.glob("*/__pycache__/test_*-pytest-*.pyc")]) > len([*here.glob("*/test_*.py")]):
                fcntl.flock(turn, fcntl.LOCK_UN)
        return (yield)
    finally:
        os.close(turn)


def pytest_collection_finish() -> None:
    """Garbage is collected of what the tests themselves make: a quarter of the collection went into it."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(50_000, 20, 20)  # torch's many objects, which come later, are looked through less often


def pytest_sessionfinish() -> None:
    """pytest looks for garbage five times at the end, which torch's objects make long: once is enough."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With ``-n``: neighbours run in one worker, which has what they share already; who is done takes some of
    another's rest. (``--dist worksteal``, without asking for it.)"""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log) if config.getoption("dist") == "load" else None


@pytest.hookimpl(optionalhook=True, wrapper=True)
def pytest_xdist_auto_num_workers() -> Generator[None, int, int]:
    """With ``-n auto``: one worker more than cores, since some tests wait for time limits and processes."""
    return (yield) + ("PYTEST_XDIST_AUTO_NUM_WORKERS" not in os.environ)


@pytest.fixture(scope="session", autouse=True)
def _listings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """nvdisasm reads each cubin once a run, whichever tests and processes ask for it.

    Triton's kernels are this run's own: a cubin holds its source's path, and one of another checkout differs
    in nothing else.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SASSAFRAS_LISTINGS", str(folder_of(tmp_path_factory) / "listings"))
        patch.setenv("TRITON_CACHE_DIR", str(folder_of(tmp_path_factory) / "triton"))
        # a test that names no store must not fill the user's, from which programs take their kernels
        patch.delenv("SASSAFRAS_STORE", raising=False)
        patch.setenv("XDG_DATA_HOME", str(folder_of(tmp_path_factory) / "data"))
        yield


@pytest.fixture(scope="session", autouse=True)
def _compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One worker compiles a function of numba, the others wait and read it: they would all compile it."""
    if "PYTEST_XDIST_WORKER" not in os.environ or importlib.util.find_spec("numba") is None:
        yield
        return
    from numba.core.dispatcher import Dispatcher

    compiles, depth = Dispatcher.compile, 0

    def locked(self: Any, sig: Any) -> Any:
        nonlocal depth
        with (folder_of(tmp_path_factory) / "numba.lock").open("w") as lock:
            if not depth:  # what a function calls is compiled within
                fcntl.flock(lock, fcntl.LOCK_EX)
            depth += 1
            try:
                return compiles(self, sig)
            finally:
                depth -= 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Dispatcher, "compile", locked)
        yield


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for what is made once a run (`tests/shared.py`)."""
    return folder_of(tmp_path_factory)


def _gpu_present() -> bool:
    if shutil.which("nvidia-smi") is None:
        return False
    try:
        run = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return run.returncode == 0 and "GPU 0" in run.stdout


def _spread(items: list[pytest.Item]) -> None:
    """Slow tests first in the workers' shares, one in each: a share is a part of the list, and a worker keeps
    the test that it runs and the next."""
    slow = [item for item in items if item.get_closest_marker("slow")]
    others = iter([item for item in items if not item.get_closest_marker("slow")])
    left, workers = len(items), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    found: list[pytest.Item] = []
    for worker in range(workers):
        share, first = left // (workers - worker), slow[worker::workers]
        left -= share
        found += [*first, *itertools.islice(others, max(0, share - len(first)))]
    items[:] = [*found, *others]


@pytest.hookimpl(trylast=True)  # without what -m leaves out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not any("gpu" in item.keywords for item in items):
        return
    if _gpu_present():
        _spread(items)
    else:
        skip = pytest.mark.skip(reason="no NVIDIA GPU on this machine")
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(skip)

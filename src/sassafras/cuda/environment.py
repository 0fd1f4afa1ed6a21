"""What machine this is: GPU, driver, toolchain and library versions, clocks. Never initialises CUDA here."""

from __future__ import annotations

import contextlib
import datetime
import functools
import importlib.metadata
import importlib.util
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .worker_process import package_path

_PROBE = "from sassafras.cuda.environment import probe; import json; print(json.dumps(probe(True)))"
#: our names of nvidia-smi's fields
_CLOCKS = {
    "sm": "clocks.sm",
    "memory": "clocks.mem",
    "sm_max": "clocks.max.sm",
    "power_w": "power.draw",
    "power_limit_w": "power.limit",
    "temperature_c": "temperature.gpu",
}


def probe(in_process: bool = False) -> dict[str, Any]:
    """What the CUDA driver says: ``gpu``, ``arch``, ``driver_cuda``, ``count``; or ``error``.

    Without `in_process` it asks in a subprocess (once), so that the caller's process stays free of CUDA.
    """
    if not in_process:
        return dict(_probe_elsewhere())
    import ctypes

    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return {"error": "no CUDA driver on this machine (libcuda.so.1 is missing)"}
    if code := cuda.cuInit(0):
        return {"error": f"the CUDA driver cannot start (cuInit: {code}); no GPU?"}
    count = ctypes.c_int()
    cuda.cuDeviceGetCount(ctypes.byref(count))
    if count.value < 1:
        return {"error": "the CUDA driver sees no GPU"}
    device, version = ctypes.c_int(), ctypes.c_int()
    name = ctypes.create_string_buffer(256)
    major, minor = ctypes.c_int(), ctypes.c_int()
    cuda.cuDriverGetVersion(ctypes.byref(version))
    cuda.cuDeviceGet(ctypes.byref(device), 0)
    cuda.cuDeviceGetName(name, 256, device)
    cuda.cuDeviceGetAttribute(ctypes.byref(major), 75, device)
    cuda.cuDeviceGetAttribute(ctypes.byref(minor), 76, device)
    suffix = "a" if major.value >= 9 else ""
    return {
        "gpu": name.value.decode(errors="replace"),
        "arch": f"sm_{major.value}{minor.value}{suffix}",
        "count": count.value,
        "driver_cuda": f"{version.value // 1000}.{version.value % 1000 // 10}",
    }


def begin_probe() -> None:
    """Let `probe` begin in its subprocess, and do not wait for it."""
    with contextlib.suppress(OSError):
        _probing()


@functools.lru_cache(maxsize=1)
def _probing() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _PROBE],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **package_path()},
    )


@functools.lru_cache(maxsize=1)
def _probe_elsewhere() -> dict[str, Any]:
    try:
        printed, _ = _probing().communicate(timeout=60)
        return dict(json.loads(printed.strip().splitlines()[-1]))
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError) as error:
        return {"error": f"the CUDA driver could not be asked: {type(error).__name__}"}


def available() -> tuple[bool, str]:
    """(True, GPU name and arch), or (False, what is missing). Never raises."""
    try:
        for module, package in (("cuda.bindings", "cuda-bindings"), ("torch", "torch")):
            if _missing(module):
                return False, f"{package} is not installed (in the checkout: pip install -e '.[gpu]')"
        found = probe()
        if "error" in found:
            return False, str(found["error"])
        return True, f"{found['gpu']} ({found['arch']})"
    except Exception as error:  # doctor and test skips must not fail on a broken installation
        return False, f"the GPU could not be looked for: {type(error).__name__}: {error}"


def environment() -> dict[str, Any]:
    """What every result file embeds (see docs): versions, GPU, clocks, commit, date, command line."""
    found = probe()
    smi = _smi()
    return {
        "gpu": found.get("gpu", "none"),
        "arch": found.get("arch"),
        "driver": smi.get("driver_version"),
        "cuda": found.get("driver_cuda"),
        "ptxas": _ptxas(),
        "triton": _version("triton"),
        "torch": _version("torch"),
        "cublas": _version("nvidia-cublas") or _version("nvidia-cublas-cu12"),
        "cuda_bindings": _version("cuda-bindings"),
        "numpy": _version("numpy"),
        "sassafras": _version("sassafras"),
        "python": platform.python_version(),
        "commit": _commit(),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "clocks_mhz": clocks(smi),
    }


def clocks(smi: Mapping[str, str] | None = None) -> dict[str, Any]:
    """SM and memory clock (MHz), power (W) and temperature (degrees C) now; empty without nvidia-smi.

    Only read, never set.
    """
    smi = _smi() if smi is None else smi
    values = {}
    for ours, theirs in _CLOCKS.items():
        with contextlib.suppress(KeyError, ValueError):
            values[ours] = float(smi[theirs])
    return values


def free_bytes() -> int | None:
    """Free memory of the GPU that CUDA calls 0; None where nvidia-smi does not tell."""
    try:
        return int(float(_smi("memory.free")["memory.free"]) * 2**20)
    except (KeyError, ValueError):
        return None


def _smi(*fields: str) -> dict[str, str]:
    """nvidia-smi's fields for the GPU that CUDA calls 0 (it reads NVML in a process of its own)."""
    fields = fields or ("driver_version", *_CLOCKS.values())
    # an index or a UUID; NVML itself knows nothing of the variable
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip() or "0"
    query = [f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits", f"--id={first}"]
    cells = (_printed("nvidia-smi", *query) or "").partition("\n")[0].split(",")
    return dict(zip(fields, map(str.strip, cells), strict=True)) if len(cells) == len(fields) else {}


def _printed(*command: str, cwd: Path | None = None) -> str | None:
    """What a program prints, stripped; None where it is missing or fails."""
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _missing(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is None
    except (ImportError, ValueError):
        return True


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@functools.lru_cache(maxsize=1)
def _ptxas() -> str | None:
    """Version of the ptxas that Triton brings along."""
    spec = importlib.util.find_spec("triton")
    if spec is None or not spec.submodule_search_locations:
        return None
    for place in spec.submodule_search_locations:
        program = Path(place) / "backends/nvidia/bin/ptxas"
        if program.is_file():
            words = (_printed(str(program), "--version") or "").split()
            return next((word[1:] for word in words if word.startswith("V") and word[1:2].isdigit()), None)
    return None


@functools.lru_cache(maxsize=1)
def _commit() -> str | None:
    """The source tree's git commit, with ``+`` when files differ from it; None outside a checkout."""
    here = Path(__file__).resolve().parent
    sha = _printed("git", "rev-parse", "HEAD", cwd=here)
    changed = _printed("git", "status", "--porcelain", "--untracked-files=no", cwd=here)
    return None if sha is None or changed is None else sha + ("+" if changed else "")

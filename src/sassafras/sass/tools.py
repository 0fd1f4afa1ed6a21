"""Where nvdisasm and ptxas are found on this machine, and which versions they are."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from sassafras.core.errors import ToolMissing


@dataclass(frozen=True, slots=True)
class Tool:
    """A program: its path, version (``"12.8.93"``), and where it comes from (``"triton"``, ...)."""

    path: Path
    version: str
    origin: str

    @property
    def major(self) -> int:
        """The CUDA major version."""
        return int(self.version.split(".")[0])


@lru_cache(maxsize=64)
def _version(path: str) -> str:
    try:
        run = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = re.search(r"release (\d+\.\d+), V([\d.]+)", run.stdout)
    return found[2] if found else ""


def _package_dir(name: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def _places(program: str) -> list[tuple[Path, str]]:
    places: list[tuple[Path, str]] = []
    if override := os.environ.get(f"SASSAFRAS_{program.upper()}"):
        places += [(Path(p), "environment") for p in override.split(os.pathsep)]
    if (triton := _package_dir("triton")) is not None:
        places.append((triton / "backends" / "nvidia" / "bin" / program, "triton"))
    if (nvidia := _package_dir("nvidia")) is not None:
        # pip's nvidia-* wheels: nvidia/cu13/bin, and nvidia/cuda_nvcc/bin before CUDA 13
        places += [(p, "nvidia wheel") for p in sorted(nvidia.glob(f"*/bin/{program}"), reverse=True)]
    if (torch := _package_dir("torch")) is not None:
        places.append((torch / "bin" / program, "torch"))  # the ptxas that Inductor has Triton use
    for root in (os.environ.get("CUDA_HOME"), "/usr/local/cuda"):
        if root:
            places.append((Path(root) / "bin" / program, "CUDA toolkit"))
    if found := shutil.which(program):
        places.append((Path(found), "PATH"))
    return places


@lru_cache(maxsize=16)
def _find_all(program: str, override: str | None) -> tuple[Tool, ...]:
    tools: list[Tool] = []
    seen: set[Path] = set()
    for path, origin in _places(program):
        if not path.is_file() or path.resolve() in seen:
            continue
        seen.add(path.resolve())
        if version := _version(str(path)):
            tools.append(Tool(path, version, origin))
    return tuple(tools)


def find_all(program: str) -> tuple[Tool, ...]:
    """Every usable copy of ``nvdisasm``, ``ptxas``, ``cuobjdump`` or ``nvcc``, best first.

    Looks at ``$SASSAFRAS_<PROGRAM>``, the wheels of Triton, nvidia and torch, CUDA_HOME and PATH.
    """
    return _find_all(program, os.environ.get(f"SASSAFRAS_{program.upper()}"))


def find(program: str) -> Tool:
    """The first usable copy.

    Raises:
        ToolMissing: there is none.
    """
    tools = find_all(program)
    if not tools:
        raise ToolMissing(
            f"{program} was not found", hint="pip install triton, or set SASSAFRAS_" + program.upper()
        )
    return tools[0]

"""Instances to cubins, without a GPU: NVRTC or nvcc, cached by the text that was compiled."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path

from sassafras.core import CompileError
from sassafras.core.errors import os_errors
from sassafras.core.files import write_whole

from ..configs.registry import Instance

#: target of every kernel of ours; plain sm_90 lacks some instructions of the later families
ARCH = "sm_90a"
KERNELS = Path(__file__).resolve().parents[1] / "kernels"


def source(instance: Instance) -> str:
    """The whole text of an instance, its includes pasted in (so that no compiler needs a path)."""
    return _paste(instance.source, frozenset())


def _paste(text: str, seen: frozenset[str]) -> str:
    def include(match: re.Match[str]) -> str:
        name = match[1]
        if name in seen:
            return ""
        path = KERNELS / name
        if not path.is_file():
            raise CompileError("an included file is missing", where=name)
        return _paste(path.read_text(), seen | {name})

    return re.sub(r'^#include "([\w./]+)"$', include, text.replace("#pragma once\n", ""), flags=re.MULTILINE)


def default_cache() -> Path:
    """``$SASSAFRAS_GEMM_CACHE``, or a folder in the user's cache directory."""
    if given := os.environ.get("SASSAFRAS_GEMM_CACHE"):
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "sassafras" / "gemm"


def cached_path(instance: Instance, cache: Path | None = None) -> Path:
    """Where the instance's cubin is, or will be, kept; the name holds a hash of its text."""
    digest = hashlib.sha256(f"{ARCH}\n{source(instance)}".encode()).hexdigest()[:16]
    return (cache or default_cache()) / f"{instance.name}-{digest}.cubin"


def is_kept(path: Path) -> bool:
    """Whether a cubin is there; no other file counts, such as an empty one of a copy that failed."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def cubin(instance: Instance, cache: Path | None = None) -> bytes:
    """The instance's cubin, compiled now unless it is cached.

    Raises:
        CompileError: the compiler refused it.
        ToolMissing: neither NVRTC nor nvcc is there.
        SassafrasError: the folder does not take it; what was kept before stays.
    """
    path = cached_path(instance, cache)
    if is_kept(path):
        return path.read_bytes()
    data = _compile(source(instance), instance.name)
    hint = "make room or name another folder; the same command goes on"
    with os_errors("kernels cannot be kept there", path.parent, hint=hint):
        write_whole(path, data)
    return data


@lru_cache(maxsize=256)
def _compile(text: str, name: str) -> bytes:
    from sassafras.cuda.compile import compile_cuda

    return compile_cuda(text, ARCH, name=f"{name}.cu")


def with_companions(instances: Iterable[Instance]) -> list[Instance]:
    """The instances, then the second kernels that some of them need, each once."""
    first = list(instances)
    return list(dict.fromkeys([*first, *(s for i in first for s in i.companions)]))


def build(
    instances: Iterable[Instance], cache: Path | None = None, workers: int | None = None
) -> dict[Instance, Path]:
    """Compile what is missing, in processes (threads do not speed NVRTC up); instance -> file.

    Where an instance leaves something to a second kernel, that is compiled, too (`companions`).

    Raises:
        CompileError, ToolMissing, SassafrasError: as `cubin`.
    """
    wanted = with_companions(instances)
    missing = [i for i in wanted if not is_kept(cached_path(i, cache))]
    count = min(len(missing), workers or os.cpu_count() or 1)
    if count > 1:
        with ProcessPoolExecutor(count, get_context("spawn")) as pool:
            list(pool.map(_into_cache, missing, [cache] * len(missing)))
    else:
        for instance in missing:
            cubin(instance, cache)
    return {i: cached_path(i, cache) for i in wanted}


def _into_cache(instance: Instance, cache: Path | None) -> None:
    cubin(instance, cache)  # not its bytes, which would travel between the processes

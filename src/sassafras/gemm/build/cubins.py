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

from sassafras.core import CompileError, SassafrasError
from sassafras.core.errors import reason
from sassafras.core.files import write_whole

from ..configs.registry import Instance

#: target of every kernel of ours; plain sm_90 lacks some instructions of the later families
ARCH = "sm_90a"
KERNELS = Path(__file__).resolve().parents[1] / "kernels"


def source(instance: Instance) -> str:
    """The whole text of an instance, its includes pasted in (so that no compiler needs a path)."""
    return _paste(instance.source, frozenset())


@lru_cache(maxsize=256)  # most instances include the same
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
    """``$SASSAFRAS_GEMM_CACHE``, or a folder in the user's cache directory; without a home directory one that
    keeps nothing."""
    if given := os.environ.get("SASSAFRAS_GEMM_CACHE"):
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "sassafras" / "gemm"
    except RuntimeError:
        return Path(os.devnull) / "sassafras"


def cached_path(instance: Instance, cache: Path | None = None) -> Path:
    """Where the instance's cubin is, or will be, kept; the name holds a hash of its text."""
    digest = hashlib.sha256(f"{ARCH}\n{source(instance)}".encode()).hexdigest()[:16]
    return (cache or default_cache()) / f"{instance.name}-{digest}.cubin"


def stored(path: Path) -> bytes | None:
    """A kept cubin; None where there is none, or none that may be read."""
    try:
        data = path.read_bytes() if path.is_file() else b""
    except OSError:
        return None
    return data if data[:4] == b"\x7fELF" else None


class NotKept(SassafrasError):
    """A folder takes no file; `data` is what was made for it."""

    data = b""


def not_kept(error: OSError, what: str, folder: Path) -> NotKept:
    """The error that says so."""
    hint = "make room or name another folder ($SASSAFRAS_GEMM_CACHE); the same command goes on"
    return NotKept(f"{what} cannot be kept there: {reason(error)}", where=str(folder), hint=hint)


def cubin(instance: Instance, cache: Path | None = None) -> bytes:
    """The instance's cubin, compiled now unless it is cached.

    Raises:
        CompileError: the compiler refused it.
        ToolMissing: neither NVRTC nor nvcc is there.
        NotKept: the folder does not take it; what was kept before stays.
    """
    path = cached_path(instance, cache)
    if (data := stored(path)) is not None:
        return data
    data = _compile(source(instance), instance.name)
    try:
        write_whole(path, data)
    except OSError as error:
        refused = not_kept(error, "kernels", path.parent)
        refused.data = data
        raise refused from error
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
        CompileError, ToolMissing, NotKept: as `cubin`.
    """
    wanted = with_companions(instances)
    missing = [i for i in wanted if stored(cached_path(i, cache)) is None]
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

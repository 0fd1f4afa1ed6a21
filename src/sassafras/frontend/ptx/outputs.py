"""What ptxas made: compared with other outputs, held against a launch, and traced to a release."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sassafras.core import CompileError, Kernel, SassafrasError
from sassafras.frontend._image import MOST_SHARED
from sassafras.frontend._ptxas import assemble, ptxas_version
from sassafras.sass import Cubin


def fingerprint(cubin: bytes) -> str:
    """sha256 over what a cubin's kernels execute: code, constants, shared memory and register counts.

    Line tables and notes are left out: options and names leave traces there.
    """
    made = hashlib.sha256()
    parsed = Cubin.parse(cubin)
    for section in sorted(parsed.sections, key=lambda s: s.name):
        if re.match(r"\.(text|nv\.constant\d|nv\.shared|nv\.global)", section.name):
            made.update(f"{section.name}\0{section.size}\0".encode())
            made.update(section.data)
    made.update(repr(sorted((e.name, e.registers) for e in parsed.entries.values())).encode())
    return made.hexdigest()


def not_launched(cubin: bytes, kernel: Kernel) -> str:
    """Why no block could be launched; empty for nothing."""
    parsed = Cubin.parse(cubin)
    registers = parsed.entries[kernel.name].registers
    warps = -(-kernel.threads // 32)
    if -(-registers // 8) * 8 * 32 * -(-warps // 4) * 4 > 65536:
        return f"{registers} registers a thread are too many for {kernel.threads} threads a block"
    static = sum(s.size for s in parsed.sections if s.name == f".nv.shared.{kernel.name}")
    if static + kernel.shared_bytes > MOST_SHARED:
        return f"{static + kernel.shared_bytes} bytes of shared memory are too many for a block"
    return ""


def release_of(kernel: Kernel, text: str, tools: Sequence[str | Path], flags: Sequence[str]) -> str:
    """The release of the ptxas that makes this kernel of its PTX. Raises SassafrasError: none does."""
    for tool in tools:
        try:
            made = assemble(text, kernel.arch, str(tool), flags=flags, where=kernel.name)
        except CompileError:
            continue
        if fingerprint(made) == fingerprint(kernel.cubin):
            return ptxas_version(str(tool))
    raise SassafrasError(
        "no ptxas here makes this cubin of its PTX", where=kernel.name, hint="install the Triton that made it"
    )


def with_release(kernel: Kernel, text: str, tools: Sequence[str | Path], flags: Sequence[str]) -> Kernel:
    """The kernel with its ptxas's release in `meta`, found by what `tools` make where it says none: of a
    recorded launch, and of NVRTC, which says ``13.0``.

    Raises:
        SassafrasError: it says nothing, and none of them makes it.
    """
    said = str(kernel.meta.get("ptxas", ""))
    if re.fullmatch(r"\d+\.\d+\.\d+", said):
        return kernel
    try:
        release = release_of(kernel, text, tools, flags)
    except SassafrasError:
        if not said:
            raise
        release = said
    return replace(kernel, meta={**kernel.meta, "ptxas": release})

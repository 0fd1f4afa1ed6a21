"""What of a cubin decides how it runs: everything but its line information."""

from __future__ import annotations

import hashlib
import re

from sassafras.core.errors import SassafrasError

#: DWARF, NVIDIA's own line tables, embedded PTX, and relocations of these: for debuggers and profilers only
_FOR_DEBUGGERS = re.compile(r"\.(rela?\.)?(nv_)?debug_")


def code_digest(cubin: bytes) -> str | None:
    """Hash of a cubin's header fields and sections, less those for debuggers; None where it is no cubin.

    Triton has ptxas write line information, and ptxas (12.8, 13.5) writes the source file's path, size and
    time of last change into it: a file that was only touched makes another cubin of the same code (seen
    2026-11-21). Two cubins with this digest in common run the same instructions with the same facts.
    """
    from sassafras.sass import Cubin

    try:
        parsed = Cubin.parse(cubin)
    except SassafrasError:
        return None
    found = hashlib.sha256(parsed.data[:0x14] + parsed.data[0x30:0x34])  # identification, machine, e_flags
    for section in parsed.sections:
        kept = not _FOR_DEBUGGERS.match(section.name)
        facts = (section.name, section.type, section.info, section.size if kept else 0)
        found.update(repr(facts).encode())
        if kept:
            found.update(section.data)
    return found.hexdigest()


def entries(cubin: bytes) -> list[str]:
    """Names of its kernels; none where it is no cubin."""
    from sassafras.sass import Cubin

    try:
        return list(Cubin.parse(cubin).entries)
    except SassafrasError:
        return []

"""The part of a cubin that affects execution: everything but its line information."""

from __future__ import annotations

import hashlib
import re
import struct
from typing import TYPE_CHECKING

from sassafras.core.errors import SassafrasError

if TYPE_CHECKING:
    from sassafras.sass import Cubin

#: DWARF, NVIDIA's own line tables, embedded PTX, and relocations of these: for debuggers and profilers only
_FOR_DEBUGGERS = re.compile(r"\.(rela?\.)?(nv_)?debug_")
#: bytes of an entry of the program header table
_PROGRAM_HEADER = 56


def code_digest(cubin: bytes) -> str | None:
    """Hash of a cubin, less its sections for debuggers and where in the file things lie.

    Triton has ptxas write line information, and ptxas (12.8, 13.5) writes the source file's path, size and
    time of last change into it: a file that was only touched makes another cubin of the same code. Two cubins
    with this digest in common are the same to a loader: ELF header, every field of every section header and
    program header but offsets, contents of all other sections. None where it is no cubin, or where bytes that
    are not zero belong to no section or header.
    """
    from sassafras.sass import Cubin

    try:
        parsed = Cubin.parse(cubin)
        return _digest(parsed)
    except (SassafrasError, struct.error, OverflowError):  # tables that lie outside the file
        return None


def _digest(cubin: Cubin) -> str | None:
    data = cubin.data
    programs, table = struct.unpack_from("<QQ", data, 0x20)
    header_bytes, program_bytes, program_count, section_bytes, section_count = struct.unpack_from(
        "<HHHHH", data, 0x34
    )
    found = hashlib.sha256(data[:0x20] + data[0x30:0x40])  # all but where the two tables lie
    used = [(0, header_bytes), (programs, programs + program_bytes * program_count)]
    used.append((table, table + section_bytes * section_count))
    lies: list[tuple[int, int, bool]] = []
    for section in cubin.sections:
        kept = not _FOR_DEBUGGERS.match(section.name)
        name, kind, flags, address, offset, size, link, info, align, entry = struct.unpack_from(
            "<IIQQQQIIQQ", data, table + section_bytes * section.index
        )
        facts = (section.name, name, kind, flags, address, size if kept else 0, link, info, align, entry)
        found.update(repr(facts).encode())
        if kept:
            found.update(section.data)
        if section.data:
            lies.append((offset, section.index, kept))
            used.append((offset, offset + len(section.data)))
    if program_count and program_bytes != _PROGRAM_HEADER:
        return None
    for n in range(program_count):
        kind, flags, offset, *rest = struct.unpack_from("<IIQQQQQQ", data, programs + program_bytes * n)
        # offsets may shift: what it covers is told by the sections in it, and where in it each of them lies
        inside = [(at - offset, index, kept) for at, index, kept in lies if offset <= at < offset + rest[2]]
        if not all(kept for _, _, kept in inside):
            return None
        found.update(repr((kind, flags, programs == offset, inside, *rest)).encode())
    return found.hexdigest() if _rest_is_zero(data, used) else None


def _rest_is_zero(data: bytes, used: list[tuple[int, int]]) -> bool:
    at = 0
    for start, end in sorted(used):
        if any(data[at:start]):
            return False
        at = max(at, end)
    return not any(data[at:])


def entries(cubin: bytes) -> list[str]:
    """Names of its kernels; none where it is no cubin."""
    from sassafras.sass import Cubin

    try:
        return list(Cubin.parse(cubin).entries)
    except SassafrasError:
        return []

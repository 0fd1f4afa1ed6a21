"""An entry's name in a cubin: taken back after ptxas has seen another one."""

from __future__ import annotations

import struct

from sassafras.core import CubinError
from sassafras.sass import Cubin

_SYMBOL = 24


def restore(cubin: bytes, made: str, original: str) -> bytes:
    """The cubin with an entry named `original` where ptxas was given `made`.

    Names of sections and symbols change; nothing moves: `original` is part of `made`, and the string tables
    keep their offsets. `.nv.info` and relocations refer to symbols by number.

    Args:
        cubin: what ptxas wrote.
        made: a prefix and `original`.
        original: the name that launches use.

    Raises:
        CubinError: the tables hold the name where it cannot be replaced.
    """
    before = Cubin.parse(cubin)
    old, new = made.encode(), original.encode()
    if not made.endswith(original) or made == original:
        raise CubinError(f"{made!r} is no longer form of {original!r}", where="entry name")
    out = bytearray(cubin)
    for section in before.sections:
        if section.type != "SHT_STRTAB":
            continue
        table = [s.replace(old, new).ljust(len(s), b"\0") for s in section.data.split(b"\0")]
        out[section.offset : section.offset + section.size] = b"\0".join(table)
    written = bytes(out)
    after = Cubin.parse(written)
    wanted = [s.name.replace(made, original) for s in before.sections]
    if [s.name for s in after.sections] != wanted or original not in after.entries:
        raise CubinError("the names of the sections cannot be restored", where=original)
    if [n.replace(old, new) for n in _symbols(before)] != _symbols(after):
        raise CubinError("the names of the symbols cannot be restored", where=original)
    return written


def _symbols(cubin: Cubin) -> list[bytes]:
    """Names of all symbols in order."""
    tables = {s.name: s.data for s in cubin.sections if s.name in (".symtab", ".strtab")}
    names, symbols = tables.get(".strtab", b""), tables.get(".symtab", b"")
    starts = [struct.unpack_from("<I", symbols, at)[0] for at in range(0, len(symbols), _SYMBOL)]
    return [names[start : names.index(b"\0", start)] for start in starts]

"""Cubins: ELF files that hold native GPU code. Bounds-checked reading, no writing.

pyelftools parses; what it trusts (table positions and counts) is checked here first, so that a
truncated or hostile file gives a `CubinError` that names the place.
"""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass, field
from functools import lru_cache

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from sassafras.core.errors import CubinError

from .eiattr import REGCOUNT, Record, parse_records

_EM_CUDA = 190
_SECTION_HEADER = 64
_SHT_NOBITS = 8
#: no real cubin comes near; a count above is an attack or an accident
_MAX_SECTIONS = 65_000
#: EI_OSABI 0x33 is the layout up to CUDA 12, 0x41 the one since CUDA 13 (and 12.9 for Blackwell)
_OLD_LAYOUT, _NEW_LAYOUT = 0x33, 0x41

#: what pyelftools raises on malformed files
_PARSE_ERRORS = (
    ELFError,
    ValueError,
    KeyError,
    IndexError,
    TypeError,
    AttributeError,
    OverflowError,
    struct.error,
    UnicodeError,
    AssertionError,
    RecursionError,
    MemoryError,
)


@dataclass(frozen=True, slots=True)
class Section:
    """One ELF section: name, type, file offset, size in bytes, and its contents (empty for NOBITS)."""

    index: int
    name: str
    type: str
    offset: int
    size: int
    info: int
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Entry:
    """A kernel's text section and what `.nv.info` says of it.

    Attributes:
        name: kernel name.
        text: its `.text.` section.
        info: records of `.nv.info.<name>`.
        registers: general registers a thread.
        relocations: True when the kernel's relocation sections are not empty.
    """

    name: str
    text: Section
    info: tuple[Record, ...]
    registers: int
    relocations: bool


@dataclass(frozen=True, slots=True)
class Cubin:
    """A parsed cubin.

    Attributes:
        data: the whole file.
        sm: compute capability times ten: 80, 90, 100, ...
        abi_version: EI_ABIVERSION; nvdisasm versions differ in which they can analyse.
        accelerated: the ``a`` of sm_90a; None where the header does not tell (CUDA 13 layout).
        sections: all sections in file order.
        entries: kernels by name, in file order.
        regcount_slots: file offsets of each register count in `.nv.info`, by kernel name.
    """

    data: bytes = field(repr=False)
    sm: int
    abi_version: int
    accelerated: bool | None
    sections: tuple[Section, ...] = field(repr=False)
    entries: dict[str, Entry]
    regcount_slots: dict[str, int]

    @classmethod
    @lru_cache(maxsize=8)  # each candidate is read by several steps, one after another
    def parse(cls, data: bytes) -> Cubin:
        """Read a cubin.

        Raises:
            CubinError: not an ELF, not for CUDA, truncated, malformed, or without any kernel.
        """
        _check_header(data)
        try:
            elf = ELFFile(io.BytesIO(data))
            sections = tuple(_section(data, i, s) for i, s in enumerate(elf.iter_sections()))
            symbols = _symbol_names(elf)
        except _PARSE_ERRORS as error:
            raise CubinError(f"malformed ELF: {error or type(error).__name__}", where="cubin") from error
        sm, accelerated = _architecture(data)
        registers, slots = _register_counts(sections, symbols)
        entries = _entries(sections, registers)
        if not entries:
            raise CubinError(
                "no kernel code (.text.* section) in this cubin",
                where="section table",
                hint="relocatable objects and fat binaries must be linked or extracted first",
            )
        return cls(data, sm, data[8], accelerated, sections, entries, slots)


def _check_header(data: bytes) -> None:
    if len(data) < 64:
        raise CubinError(f"{len(data)} bytes are too few for an ELF header", where="offset 0")
    if data[:4] != b"\x7fELF":
        raise CubinError("not an ELF file (wrong magic)", where="offset 0")
    if data[4] != 2 or data[5] != 1:
        raise CubinError("not a 64-bit little-endian ELF", where="offset 4")
    if data[7] not in (_OLD_LAYOUT, _NEW_LAYOUT):
        raise CubinError(f"unknown cubin layout (EI_OSABI {data[7]:#x})", where="offset 7")
    machine = struct.unpack_from("<H", data, 18)[0]
    if machine != _EM_CUDA:
        raise CubinError(f"ELF machine {machine} is not CUDA ({_EM_CUDA})", where="offset 18")
    table = struct.unpack_from("<Q", data, 40)[0]
    size, count, names = struct.unpack_from("<HHH", data, 58)
    if size != _SECTION_HEADER or not 0 < count < _MAX_SECTIONS or names >= count:
        raise CubinError(f"bad section table: {count} entries of {size} bytes", where="offset 58")
    if table + count * size > len(data):
        raise CubinError("section table runs past the end of the file", where=f"offset {table:#x}")


def _section(data: bytes, index: int, section: object) -> Section:
    header = section.header  # type: ignore[attr-defined]
    name, kind = section.name, str(header["sh_type"])  # type: ignore[attr-defined]
    offset, size = header["sh_offset"], header["sh_size"]
    if kind in ("SHT_NOBITS", "SHT_NULL", str(_SHT_NOBITS)):
        contents = b""
    elif offset + size > len(data):
        raise CubinError("section runs past the end of the file", where=f"section {index} {name!r}")
    else:
        contents = data[offset : offset + size]
    return Section(index, name, kind, offset, size, header["sh_info"], contents)


def _symbol_names(elf: ELFFile) -> list[str]:
    table = elf.get_section_by_name(".symtab")
    return [symbol.name for symbol in table.iter_symbols()] if table is not None else []


def _architecture(data: bytes) -> tuple[int, bool | None]:
    flags = struct.unpack_from("<I", data, 48)[0]
    if data[7] == _OLD_LAYOUT:
        return flags & 0xFF, bool(flags & 0x800)
    return (flags >> 8) & 0xFF, None


def _register_counts(
    sections: tuple[Section, ...], symbols: list[str]
) -> tuple[dict[str, int], dict[str, int]]:
    counts, slots = {}, {}
    for section in sections:
        if section.name != ".nv.info":
            continue
        for record in parse_records(section.data, section.offset, section.name):
            if record.attribute == REGCOUNT and len(record.payload) >= 8:
                symbol, count = struct.unpack_from("<II", record.payload)
                if symbol < len(symbols):
                    counts[symbols[symbol]] = count
                    slots[symbols[symbol]] = record.offset + 4
    return counts, slots


def _entries(sections: tuple[Section, ...], registers: dict[str, int]) -> dict[str, Entry]:
    by_name = {s.name: s for s in sections}
    entries = {}
    for text in sections:
        if not text.name.startswith(".text.") or text.size == 0:
            continue
        name = text.name.removeprefix(".text.")
        if name in entries:
            raise CubinError("two text sections of the same name", where=text.name)
        if text.size % 16 or not text.data:
            raise CubinError(f"code size {text.size} is not a positive multiple of 16", where=text.name)
        info = by_name.get(f".nv.info.{name}")
        records = parse_records(info.data, info.offset, info.name) if info else ()
        relocations = any(
            s.size > 0 for s in sections if s.name in (f".rela.text.{name}", f".rel.text.{name}")
        )
        entries[name] = Entry(name, text, records, registers.get(name, 0), relocations)
    return entries

"""nvdisasm as the oracle: text, labels, and which registers each instruction reads and writes.

``nvdisasm -c -plr -lrm narrow`` prints a column a live register beside each instruction: ``^`` defined
here, ``v`` used here, ``x`` both, ``:`` live through. It knows operand widths (register pairs, HGMMA
accumulators, descriptors) better than the text tells. What it does not know is in `sass.effects`.

An nvdisasm analyses cubins of one layout only, CUDA 12's or CUDA 13's, and says so only in warnings. Up to
sm_90 fields of the ELF header alone tell one from the other: CUDA 13's reads a copy of CUDA 12's with these
exchanged (`_laid_out`). Each nvdisasm that is found is tried, and an empty result is an error.

It takes some tenths of a second for the smallest kernel. ``SASSAFRAS_LISTINGS`` may name a folder in which
what it printed is kept, by the cubin's content and the nvdisasm: for processes that read the same cubins,
as tests do. Other users must not be able to write there, for what lies there is believed.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tempfile
import zlib
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from sassafras.core.errors import DisassemblyError, ToolMissing

from .cubin import Cubin
from .registers import GPR, PRED, UGPR, UPRED
from .tools import Tool, find_all

_INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(.*)$")
_LABEL = re.compile(r"^([^\s:]+):\s*$")
#: liveness: read, written, both
_MARK = re.compile(r"[v^x]")
_SECTION = re.compile(r"^\s*//-+ (\.text\.\S+)|^\s*\.section\s+\"?(\.text\.[^\s,\"]+)\"?")
_COLUMN_BASE = {"GPR": GPR, "PRED": PRED, "UGPR": UGPR, "UPRED": UPRED}
_COLUMN_LIMIT = {"GPR": 255, "PRED": 7, "UGPR": 255, "UPRED": 7}
#: nvdisasm fills 80 MB with small pieces before it reads: a seventh of its time is page faults without these
_MALLOC = "glibc.malloc.hugetlb=1:glibc.malloc.top_pad=268435456:glibc.malloc.mmap_threshold=1073741824"


@dataclass(slots=True)
class Line:
    """One instruction as printed: offset in its section, text, and the oracle's register sets."""

    offset: int
    text: str
    reads: frozenset[int]
    writes: frozenset[int]


@dataclass(slots=True)
class Listing:
    """The disassembly of one text section: instructions and labels (name -> offset)."""

    name: str
    lines: list[Line] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Disassembly:
    """All text sections of a cubin, the target that nvdisasm names, and the nvdisasm that did it."""

    target: str
    tool: Tool
    listings: dict[str, Listing]


def disassemble(cubin: Cubin) -> Disassembly:
    """Disassemble with the first nvdisasm that can analyse this cubin.

    Raises:
        ToolMissing: no nvdisasm is installed.
        DisassemblyError: none of those found could analyse the cubin; names each and its complaint.
    """
    tools = find_all("nvdisasm")
    if not tools:
        raise ToolMissing("nvdisasm was not found", hint="pip install triton, or nvidia-cuda-nvdisasm")
    chosen = tuple(_preferred(tools, cubin))
    try:
        tool, output = printed(_without_regcount_255(cubin), chosen)
    except Refused as refused:
        raise DisassemblyError(
            f"no nvdisasm could analyse this cubin: {refused}",
            where=f"sm_{cubin.sm}, ABI version {cubin.abi_version}",
            hint="pip install nvidia-cuda-nvdisasm: CUDA 13's reads both layouts",
        ) from None
    return Disassembly(_target(output, cubin), tool, dict(_parsed(output)))


class Refused(Exception):
    """Each nvdisasm's complaint."""


# a cubin is read several times in one job (by scheduler, validator, model), and nvdisasm takes most of that
@lru_cache(maxsize=32)
def printed(data: bytes, tools: tuple[Tool, ...]) -> tuple[Tool, str]:
    """The first of `tools` that can analyse this cubin (else `Refused`), and what it prints, perhaps kept."""
    folder = os.environ.get("SASSAFRAS_LISTINGS")
    if not folder:
        return _print(data, tools)
    who = "".join(f"{tool.path} {tool.version}\n" for tool in tools)
    kept = Path(folder) / hashlib.sha256(who.encode() + data).hexdigest()
    try:
        number, text = zlib.decompress(kept.read_bytes()).decode().split("\n", 1)
        return tools[int(number)], text
    except (OSError, ValueError, IndexError, zlib.error):
        tool, text = _print(data, tools)
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as apart:  # on a full disk nothing is left behind
            made = Path(apart, kept.name)
            made.write_bytes(zlib.compress(f"{tools.index(tool)}\n{text}".encode(), 1))
            made.replace(kept)
    except OSError:
        pass  # kept or not, it is right
    return tool, text


def _print(data: bytes, tools: tuple[Tool, ...]) -> tuple[Tool, str]:
    """Run nvdisasm, one after the other."""
    complaints = []
    with tempfile.TemporaryDirectory(prefix="sassafras-") as folder:
        path = Path(folder) / "kernel.cubin"
        for tool in tools:
            path.write_bytes(_laid_out(data, tool.major))
            try:
                run = subprocess.run(
                    [str(tool.path), "-c", "-plr", "-lrm", "narrow", str(path)],
                    capture_output=True,
                    text=True,
                    timeout=120,
                    check=False,
                    errors="replace",
                    env={"GLIBC_TUNABLES": _MALLOC, **os.environ},
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                complaints.append(f"nvdisasm {tool.version}: {error}")
                continue
            if run.returncode == 0 and "analysis" not in run.stderr:
                return tool, run.stdout
            first = next((x for x in run.stderr.splitlines() if "error" in x), run.stderr[:200]).strip()
            complaints.append(f"nvdisasm {tool.version} ({tool.origin}): {first or f'exit {run.returncode}'}")
    raise Refused("; ".join(complaints))


def _preferred(tools: tuple[Tool, ...], cubin: Cubin) -> list[Tool]:
    """ABI version 8 came with CUDA 13: try the likely ones first, the others after."""
    new = cubin.abi_version >= 8
    return sorted(tools, key=lambda t: (t.major >= 13) != new)


def _laid_out(data: bytes, major: int) -> bytes:
    """CUDA 12's cubin of sm_80 to sm_90 with the header that CUDA 13's nvdisasm analyses; any other as it is.

    Seen: 12.8, and 13.1 and 13.5 in this way, print the same of a kernel. The reverse would lose the ``a`` of
    sm_90a, which CUDA 13's header does not have.
    """
    sm = data[48]  # e_flags begin here
    if (data[7], data[8]) != (0x33, 7) or major < 13 or not 80 <= sm <= 90:
        return data
    header = bytearray(data[:64])
    header[7:9] = 0x41, 8  # e_ident's OS ABI, ABI version
    header[20:24] = (1).to_bytes(4, "little")  # e_version
    header[48:52] = (0x06000004 | sm << 8).to_bytes(4, "little")
    return bytes(header) + data[64:]


def _without_regcount_255(cubin: Cubin) -> bytes:
    """REGCOUNT 255 is fatal to nvdisasm's analysis: say 254 in the copy that it reads."""
    if all(e.registers < 255 for e in cubin.entries.values()):
        return cubin.data
    data = bytearray(cubin.data)
    for slot in cubin.regcount_slots.values():
        if int.from_bytes(data[slot : slot + 4], "little") >= 255:
            data[slot : slot + 4] = (254).to_bytes(4, "little")
    return bytes(data)


def _target(output: str, cubin: Cubin) -> str:
    if cubin.abi_version >= 8 and (found := re.search(r"^\s*\.target\s+(sm_\w+)", output, re.M)):
        return found[1]
    return f"sm_{cubin.sm}{'a' if cubin.accelerated else ''}"


def parse(output: str) -> dict[str, Listing]:
    """Read nvdisasm's text into listings by kernel name.

    Raises:
        DisassemblyError: an instruction lacks its columns, or there is no instruction at all.
    """
    listings: dict[str, Listing] = {}
    current: Listing | None = None
    columns: list[_Column] = []
    header: list[str] = []
    for line in output.splitlines():
        if found := _SECTION.match(line):
            name = (found[1] or found[2]).removeprefix(".text.")
            current = listings.setdefault(name, Listing(name))
            columns, header = [], []
            continue
        if current is None:
            continue
        code, mark, tail = line.rpartition("// ")
        if mark and not code.strip():
            if tail.startswith("+") and header:
                columns, header = _columns(header), []
            elif tail.startswith("|"):
                header.append(tail)
            continue
        if not mark:
            code, tail = line, ""
        if found := _INSTRUCTION.match(code.rstrip()):
            text = re.sub(r"\(\*.*\*\)", "", found[2]).strip().rstrip(";").strip()
            if not columns or not tail.startswith("|"):
                raise DisassemblyError(
                    "instruction without liveness columns", where=f"{current.name}+0x{found[1]}: {text}"
                )
            reads, writes = _row(tail, columns)
            current.lines.append(Line(int(found[1], 16), text, reads, writes))
        elif found := _LABEL.match(code.strip()):
            current.labels[found[1]] = len(current.lines) * 16
    listings = {k: v for k, v in listings.items() if v.lines}
    if not listings:
        raise DisassemblyError("nvdisasm printed no instructions", where="its output")
    return listings


# searching, validating and modelling read the same text, and change nothing of what was read
_parsed = lru_cache(maxsize=8)(parse)


@dataclass(slots=True)
class _Column:
    start: int
    registers: dict[int, int]  # position in the row -> register


def _columns(header: list[str]) -> list[_Column]:
    """Header rows between two rulers: the names, then the register numbers digit by digit."""
    names = [c.strip() for c in header[0].strip().strip("|").split("|")]
    bars = [i for i, c in enumerate(header[0]) if c == "|"]
    columns = []
    for name, start, end in zip(names, bars, bars[1:], strict=False):
        if name not in _COLUMN_BASE:
            raise DisassemblyError(f"unknown register column {name!r}", where="nvdisasm's header")
        registers = {}
        for at in range(start + 1, end):
            digits = "".join(row[at] for row in header[1:] if at < len(row) and row[at].isdigit())
            if digits and header[-1][at].isdigit():
                registers[at] = int(digits)
        if sorted(registers.values()) != list(range(len(registers))) or len(registers) > _COLUMN_LIMIT[name]:
            raise DisassemblyError(f"cannot read the {name} column", where="nvdisasm's header")
        columns.append(_Column(start, {at: _COLUMN_BASE[name] + n for at, n in registers.items()}))
    return columns


def _row(tail: str, columns: list[_Column]) -> tuple[frozenset[int], frozenset[int]]:
    reads, writes = [], []
    for found in _MARK.finditer(tail):
        for column in columns:
            if (register := column.registers.get(found.start())) is not None:
                if found[0] != "^":
                    reads.append(register)
                if found[0] != "v":
                    writes.append(register)
                break
    return frozenset(reads), frozenset(writes)

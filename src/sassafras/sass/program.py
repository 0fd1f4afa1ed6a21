"""`Program`: a cubin as instructions, and back to bytes.

No assembler is needed. Instructions are 16-byte words that are moved whole; control bits are edited in
place; the `.nv.info` records that hold instruction offsets follow. Everything else stays as it was, so
the identity rewrite is byte-identical.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from sassafras.core.errors import CubinError, DisassemblyError

from . import archs, cfg, effects, opcodes
from .control import Control
from .cubin import Cubin, Entry
from .disassembly import Disassembly, Line, Listing, disassemble
from .eiattr import (
    INDIRECT_BRANCH_TARGETS,
    MAX_THREADS,
    REQNTID,
    named_beside,
    offset_slots,
    system_calls,
    unknown_attributes,
)
from .instruction import Instruction, split_text
from .registers import GPR

#: low 12 bits of a NOP's encoding
_NOP = 0x918


@dataclass(frozen=True)
class Function:
    """One kernel: its instructions in original order and what is needed to write another order.

    A text section may hold device functions behind the kernel (CALL targets); they are part of it.

    Attributes:
        name: kernel name.
        arch: ``sm_90a``.
        instructions: in original order.
        labels: label -> byte offset.
        registers: general registers a thread.
        text_offset: file offset of the code.
        offset_slots: (file position, instruction offset) of each offset in `.nv.info`.
        indirect: offset of an indirect branch -> offsets of its targets.
        pinned_reason: why this kernel must not be reordered at all, or ``""``.
        system_calls: byte offsets of the calls of functions that the driver brings, such as __assertfail.
        block: threads of a block in x, y and z, exactly or at most; None if the cubin does not say.
    """

    name: str
    arch: str
    instructions: tuple[Instruction, ...]
    labels: Mapping[str, int] = field(repr=False)
    registers: int
    text_offset: int
    offset_slots: tuple[tuple[int, int], ...] = field(repr=False)
    indirect: Mapping[int, tuple[int, ...]] = field(repr=False)
    pinned_reason: str = ""
    system_calls: frozenset[int] = frozenset()
    block: tuple[int, int, int] | None = None

    def __len__(self) -> int:
        return len(self.instructions)

    @cached_property
    def words(self) -> np.ndarray:
        """Encodings in original order: uint64, shape (instructions, 2), low word first."""
        return np.array([(i.low, i.high) for i in self.instructions], dtype=np.uint64)

    @cached_property
    def blocks(self) -> tuple[cfg.Block, ...]:
        """Basic blocks in original order."""
        return cfg.build(self.instructions, dict(self.labels), dict(self.indirect))


@dataclass(frozen=True)
class Program:
    """A parsed cubin with its kernels disassembled.

    Attributes:
        cubin: the file.
        arch: architecture, as nvdisasm names it: ``sm_90a``.
        functions: kernels by name, in file order.
        nvdisasm: version of the disassembler that read it.
    """

    cubin: Cubin
    arch: str
    functions: Mapping[str, Function]
    nvdisasm: str

    @classmethod
    def parse(cls, data: bytes) -> Program:
        """Read a cubin.

        Raises:
            CubinError: the file is not a sound cubin.
            DisassemblyError: it cannot be disassembled, or the listing does not match the bytes, or an
                opcode is unknown; names the place.
            ToolMissing: no nvdisasm is installed.
        """
        cubin = Cubin.parse(data)
        listing = disassemble(cubin)
        functions = {}
        for entry in cubin.entries.values():
            if entry.name not in listing.listings:
                raise DisassemblyError("nvdisasm printed nothing for this kernel", where=entry.text.name)
            functions[entry.name] = _function(entry, listing.listings[entry.name], listing)
        return cls(cubin, listing.target, functions, listing.tool.version)

    def function(self, name: str | None = None) -> Function:
        """The kernel of this name, or the only one.

        Raises:
            CubinError: there is no such kernel, or several and no name was given.
        """
        if name is None and len(self.functions) == 1:
            return next(iter(self.functions.values()))
        if name is None or name not in self.functions:
            what = "several kernels, name one" if name is None else f"no kernel {name!r}"
            raise CubinError(what, where="cubin", hint="it holds " + ", ".join(self.functions))
        return self.functions[name]

    def emit(self, name: str, order: np.ndarray, high: np.ndarray | None = None) -> bytes:
        """The cubin with one kernel in another order.

        Args:
            name: the kernel.
            order: int array (instructions,): ``order[position]`` is the original index of what stands there.
            high: uint64 array (instructions,), upper words **by position** (edited control codes); None
                keeps each instruction's own.

        Returns:
            The new file. Equal to the original, byte for byte, for the identity order.

        Raises:
            ValueError: `order` is not a permutation of all instructions.
        """
        function = self.function(name)
        if len(order) != len(function) or (np.bincount(order, minlength=len(function)) != 1).any():
            raise ValueError(f"{len(order)} entries are not a permutation of {len(function)} instructions")
        words = function.words[order]
        if high is not None:
            words[:, 1] = high
        return Emitter(self, name).write(order, words)


class Emitter:
    """Writes many orders of one kernel quickly (some ten microseconds for 1,000 instructions).

    Args:
        program: the parsed cubin.
        name: its kernel.
    """

    def __init__(self, program: Program, name: str) -> None:
        function = program.function(name)
        self._template = program.cubin.data
        self._start = function.text_offset
        self._slots = [(at, offset // 16, offset % 16) for at, offset in function.offset_slots]

    def write(self, order: np.ndarray, words: np.ndarray) -> bytes:
        """The cubin with these words, already in the order given; the caller vouches for both.

        Args:
            order: int array (instructions,), a permutation: which instruction stands at each position.
            words: uint64 array (instructions, 2) by position.
        """
        count = len(order)
        out = bytearray(self._template)
        out[self._start : self._start + 16 * count] = words.tobytes()
        position = np.empty(count, dtype=np.int64)
        position[order] = np.arange(count)
        for at, index, rest in self._slots:
            # an offset may name the end of the code; it stays
            new = int(position[index]) if index < count else index
            struct.pack_into("<I", out, at, new * 16 + rest)
        return bytes(out)


def _function(entry: Entry, listing: Listing, disassembly: Disassembly) -> Function:
    code = np.frombuffer(entry.text.data, dtype="<u8").reshape(-1, 2)
    lines = listing.lines + _padding(code, len(listing.lines))
    if [line.offset for line in lines] != list(range(0, len(code) * 16, 16)):
        raise DisassemblyError(
            f"{len(listing.lines)} instructions printed for {len(code)} in the file", where=entry.text.name
        )
    instructions = []
    beside = named_beside(entry.info)
    for index, line in enumerate(lines):
        guard, opcode, operands = split_text(line.text)
        if opcodes.base(opcode) not in opcodes.OPCODES:
            raise DisassemblyError(
                f"unknown opcode {opcode!r}",
                where=f"{entry.text.name}+{line.offset:#x}: {line.text}",
                hint="please report it with the cubin; nothing is guessed about an unknown instruction",
            )
        reads, writes, unexplained = effects.complete(line, guard, opcode, operands)
        if line.offset in beside:
            # a tool that looks here finds an address in them: they keep their values, and it its place
            reads |= frozenset(GPR + register for register in beside[line.offset])
            unexplained = unexplained or f"{opcode}: .nv.info names a register here"
        low, high = int(code[index, 0]), int(code[index, 1])
        op = opcodes.OPCODES[opcodes.base(opcode)]
        facts = (index, line.offset, low, high, line.text, guard, opcode, operands)
        instructions.append(Instruction(*facts, Control.decode(high), op, reads, writes, unexplained))
    return Function(
        name=entry.name,
        arch=disassembly.target,
        instructions=tuple(instructions),
        labels=listing.labels,
        registers=entry.registers,
        text_offset=entry.text.offset,
        offset_slots=tuple(offset_slots(entry.info)),
        indirect=_indirect_targets(entry),
        system_calls=system_calls(entry.info),
        pinned_reason=_pinned_reason(entry, disassembly.target),
        block=_block(entry),
    )


def _block(entry: Entry) -> tuple[int, int, int] | None:
    for attribute in (REQNTID, MAX_THREADS):
        for record in entry.info:
            if record.attribute == attribute and len(record.payload) >= 12:
                x, y, z = record.words()[:3]
                return (x, y, z) if 0 < x * y * z <= 1024 else None
    return None


def _padding(code: np.ndarray, printed: int) -> list[Line]:
    """The NOPs that fill the section up to 128 bytes, which nvdisasm does not print."""
    lines = []
    for index in range(printed, len(code)):
        if int(code[index, 0]) & 0xFFF != _NOP:
            break
        lines.append(Line(index * 16, "NOP", frozenset(), frozenset()))
    return lines


def _pinned_reason(entry: Entry, arch: str) -> str:
    if entry.relocations:
        return f"{entry.text.name} has relocations (code that is patched at load time)"
    if unknown := unknown_attributes(entry.info):
        listed = ", ".join(f"{a:#x}" for a in unknown)
        return f".nv.info.{entry.name} has attributes we do not know ({listed}); they may hold offsets"
    if arch in archs.ARCHS and archs.ARCHS[arch].scheduled is False:
        return f"{arch} is parsed only"
    return ""


def _indirect_targets(entry: Entry) -> dict[int, tuple[int, ...]]:
    """Payload: u32 branch offset, u16, u16, u32 count, then that many u32 targets; repeated (observed)."""
    targets: dict[int, tuple[int, ...]] = {}
    for record in entry.info:
        if record.attribute != INDIRECT_BRANCH_TARGETS:
            continue
        words, at = record.words(), 0
        while at + 3 <= len(words):
            branch, _, count = words[at : at + 3]
            found = words[at + 3 : at + 3 + count]
            if len(found) != count:
                raise CubinError("truncated indirect branch targets", where=f".nv.info.{entry.name}")
            targets[branch] = tuple(found)
            at += 3 + count
    return targets

"""Kernels of probes as cubins: a compiled container whose code is replaced, and the distances patched in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sassafras.core import SassafrasError
from sassafras.frontend._ptxas import assemble as run_ptxas
from sassafras.sass import Program
from sassafras.sass.control import STALL_MASK, STALL_SHIFT, YIELD_MASK
from sassafras.sass.instruction import Instruction
from sassafras.sass.latency import SlotUse, opcode_key, slots
from sassafras.sass.registers import GPR, PRED, UGPR, UPRED
from sassafras.sass.tools import find

from . import frame
from .frame import IDLE, LONGEST, Line, Probe
from .words import Book, NoSuchForm

NAME = "probes"
ARCH = "sm_90a"
#: general registers that a probe's kernel names (a container holds as many)
REGISTERS = 62
#: most instructions in one kernel
MOST = 7000
_FILES = {"R": GPR, "UR": UGPR, "P": PRED, "UP": UPRED}


def _ptx(count: int, live: int, threads: int, shared: int, local: int) -> str:
    lines = [
        ".version 8.0",
        f".target {ARCH}",
        ".address_size 64",
        f".visible .entry {NAME}(.param .u64 out, .param .u64 memory, .param .u32 seed, .param .u32 loops,",
        ".param .u32 first, .param .u32 count)",
        f".maxntid {threads}, 1, 1",
        ".minnctapersm 1",
        "{",
        f".shared .align 16 .b8 room[{shared}];",
        f".reg .f32 x<{live}>;",
        ".reg .b64 a, b;",
        f".local .align 16 .b8 spill[{local}];" if local else "",
        "ld.param.u64 a, [out];",
        "cvta.to.global.u64 b, a;",
    ]
    lines += [f"ld.global.f32 x{n}, [b+{4 * n}];" for n in range(live)]
    lines += ["st.shared.f32 [room], x0;", "bar.sync 0;", "ld.shared.f32 x1, [room+4];"]
    lines += [
        f"fma.rn.f32 x{n % live}, x{(n + 7) % live}, x{(n + 19) % live}, x{n % live};" for n in range(count)
    ]
    lines += [f"st.global.f32 [b+{4 * n}], x{n};" for n in range(live)]
    return "\n".join([*lines, "ret;", "}"]) + "\n"


@dataclass(frozen=True)
class Container:
    """A compiled kernel whose instructions before its EXIT are replaced.

    Attributes:
        cubin: the file.
        offset: where its code begins in the file.
        room: instructions in front of the EXIT.
    """

    cubin: bytes
    offset: int
    room: int

    def fill(self, words: np.ndarray) -> bytes:
        """The cubin with this code, uint64 (instructions, 2); what is left over goes straight to the EXIT."""
        if len(words) != self.room:
            raise ValueError(f"{len(words)} instructions for a container of {self.room}")
        data = bytearray(self.cubin)
        data[self.offset : self.offset + 16 * self.room] = np.ascontiguousarray(words, dtype="<u8").tobytes()
        return bytes(data)


@lru_cache(maxsize=8)
def container(
    count: int = MOST,
    live: int = REGISTERS - 6,
    threads: int = frame.BLOCK,
    shared: int = frame.SHARED_BYTES,
    local: int = 0,
) -> Container:
    """Compile a container.

    Args:
        count: instructions that it must hold.
        live: values that its own code keeps in registers: what replaces it may name 6 more.
        threads: most threads of a block.
        shared: bytes of shared memory.
        local: bytes of local memory of each thread.
    """
    cubin = run_ptxas(_ptx(count, live, threads, shared, local), ARCH, str(find("ptxas").path))
    function = Program.parse(cubin).function(NAME)
    if not live + 6 <= function.registers <= 65536 // threads:
        raise SassafrasError(f"the container has {function.registers} registers", where=NAME)
    exits = [i.index for i in function.instructions if i.base == "EXIT"]
    if exits[-1] < count:
        raise SassafrasError(f"the container has room for {exits[-1]} instructions, not {count}", where=NAME)
    return Container(cubin, function.text_offset, exits[-1])


@dataclass(frozen=True)
class Key:
    """A table's row: kind, first opcode key, its slot, second opcode key, its slot."""

    kind: str
    first: str
    first_slot: str
    second: str
    second_slot: str

    def text(self) -> list[str]:
        """As the tables write it."""
        return [self.kind, self.first, self.first_slot, self.second, self.second_slot]


class Catalogue:
    """Every instruction of the probes, assembled, disassembled again and compared.

    Attributes:
        refused: text -> why it cannot be used.
    """

    def __init__(self, texts: Iterable[str], book: Book) -> None:
        self.book = book
        self.refused: dict[str, str] = {}
        self._found: dict[str, Instruction] = {}
        self._uses: dict[str, tuple[SlotUse, ...]] = {}
        words, order = [], []
        for text in sorted(set(texts)):
            try:
                words.append(book.assemble(text, Line(text).control))
                order.append(text)
            except NoSuchForm as error:
                self.refused[text] = str(error)
        room = container(len(order))
        code = np.empty((room.room, 2), dtype=np.uint64)
        code[:] = book.assemble("NOP", Line("NOP").control)
        if order:
            code[: len(order)] = words
        function = Program.parse(room.fill(code)).function(NAME)
        for text, instruction in zip(order, function.instructions, strict=False):
            if plain(instruction.text) != plain(text):
                self.refused[text] = f"disassembles as {instruction.text}"
            else:
                self._found[text] = instruction

    def instruction(self, text: str) -> Instruction:
        """What a text disassembles as. Raises KeyError for a refused one."""
        return self._found[text]

    def why_not(self, probe: Probe) -> str:
        """Why a probe cannot be measured, or ``""``."""
        for text in (probe.first, probe.second, *probe.before, *probe.after):
            if text in self.refused:
                return f"{text}: {self.refused[text]}"
        try:
            self.key(probe)
        except SassafrasError as error:
            return str(error)
        return ""

    def key(self, probe: Probe) -> Key:
        """The row that a probe measures.

        Raises:
            SassafrasError: the register does not stand in exactly one operand of each instruction.
        """
        name = probe.register.rstrip("0123456789")
        register = _FILES[name] + int(probe.register[len(name) :])
        found = []
        for text, writes in ((probe.first, probe.kind != "war"), (probe.second, probe.kind != "raw")):
            i = self._found[text]
            if text not in self._uses:
                self._uses[text] = slots(i)
            places = {u.slot for u in self._uses[text] if u.register == register and u.write == writes}
            if len(places) != 1 or "?" in places or i.unexplained:
                raise SassafrasError(f"{text}: {probe.register} stands in {sorted(places) or 'no operand'}")
            found += [opcode_key(i.opcode), places.pop()]
        return Key(probe.kind, *found)


def plain(text: str) -> str:
    """Without double spaces, and without the names of labels."""
    return re.sub(r"`\(.*\)", "`()", " ".join(text.split()))


@dataclass
class Batch:
    """A kernel of probes.

    Attributes:
        words: its code with every tested pair at 15 cycles, uint64 (instructions, 2).
        slots: of each probe, where its idle instructions begin.
        keys, probes: what it measures.
    """

    words: np.ndarray
    slots: list[int]
    probes: list[Probe]


def batches(probes: Sequence[Probe], book: Book, most: int = MOST, room: int | None = None) -> list[Batch]:
    """Pack probes into kernels of at most `most` instructions, in order; all get `room` instructions."""
    sizes, found, start = [], [], 0
    empty = len(frame.assemble([], book)[0].lines)
    for probe in probes:
        code = frame.Code()
        frame.section(code, 0, probe)
        sizes.append(len(code.lines))
    room = room or container(most).room
    nop = book.assemble("NOP", Line("NOP", stall=1).control)
    while start < len(probes):
        end, total = start, empty
        while end < len(probes) and total + sizes[end] <= most and end - start < 256:
            total += sizes[end]
            end += 1
        if end == start:
            raise SassafrasError(f"one probe needs {sizes[start]} instructions, a kernel has {most}")
        chosen = list(probes[start:end])
        _, sections, code_words = frame.assemble(chosen, book)
        words = np.empty((room, 2), dtype=np.uint64)
        words[:] = nop
        words[: len(code_words)] = np.array(code_words, dtype=np.uint64)
        found.append(Batch(words, [s.slot for s in sections], chosen))
        start = end
    return found


def patch(words: np.ndarray, places: Sequence[int], distance: int, yield_hint: bool = False) -> np.ndarray:
    """The code with every tested pair `distance` cycles apart.

    Args:
        words: uint64 (instructions, 2), as `Batch.words`.
        places: where each probe's idle instructions begin; the pair follows `IDLE` of them.
        distance: 1 to `LONGEST`. Beyond 15, idle instructions move between the two.
        yield_hint: set bit 45 of the first instruction, where the stall count allows it (up to 11).

    Raises:
        ValueError: a distance or hint that cannot be encoded.
    """
    if not 1 <= distance <= LONGEST:
        raise ValueError(f"a distance of {distance}; 1 to {LONGEST} can be had")
    if yield_hint and distance > 11:
        raise ValueError("ptxas never sets the yield bit with a stall count above 11")
    out = words.copy()
    between = (distance - 1) // 15
    stalls = [15] * between + [distance - 15 * between]
    mask = np.uint64(~(STALL_MASK | YIELD_MASK) & (1 << 64) - 1)
    for start in places:
        first, idle = words[start + IDLE], words[start]
        out[start : start + IDLE + 1] = idle
        out[start + IDLE - between] = first
        for n, stall in enumerate(stalls):
            at = start + IDLE - between + n
            high = out[at, 1] & mask | np.uint64(stall << STALL_SHIFT)
            if yield_hint and n == 0:
                high |= np.uint64(YIELD_MASK)
            out[at, 1] = high
    return out


def clock_cycles(distance: int) -> int:
    """Cycles between the two reads of the clock around a pair that nothing held up."""
    between = (distance - 1) // 15
    return 15 + 15 * (IDLE - between) + distance + 15

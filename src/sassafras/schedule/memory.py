"""Which pairs of memory operations must keep their order.

Loads pass loads, except one that provably reads the same bytes: a volatile pair looks no different. A store
keeps its order with other accesses of the same space unless the addresses are proven disjoint: the same
address registers holding the same values, and constant offsets that do not overlap. That argument holds
within one thread, and other threads may only look between two accesses where there is a synchronisation,
which is a fence in its own right (``__syncwarp()`` in converged code is a bare ``NOP``: observed on
ptxas 13.0). It is not used where another lane may look without one:

* a load and a store of shared memory (warp-synchronous code with ``volatile`` has no mark in the SASS);
* matrix loads and stores, whose lanes touch rows that other lanes address;
* atomics and accesses with a scope (``.STRONG.GPU`` and so on): these keep their order with every access.

Between shared memory's use, or a barrier, and the next LDGSTS ptxas has three shuffles or ``@!PT LDS``, added
for that purpose. LDGSTS does not pass them (`before_copies`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sassafras.sass import Instruction, Memory
from sassafras.sass.effects import named_registers

GLOBAL, SHARED, ANY = 1, 2, 3
_COLLECTIVE = frozenset(["LDSM", "STSM", "LDTRAM", "MOVM"])
_ATOMIC = frozenset(["ATOM", "ATOMG", "ATOMS", "RED", "REDG", "LDGMC", "SUATOM", "SURED"])
_ORDERED = frozenset(["STRONG", "MMIO", "SYS", "ACQUIRE", "RELEASE"])
_PLAIN = frozenset(["LDG", "LDS", "LDL", "LD", "STG", "STS", "STL", "ST"])
#: to an address that may be in shared memory
_GENERIC = frozenset(["LD", "ST", "ATOM", "RED"])
_BYTES = {"128": 16, "64": 8, "U8": 1, "S8": 1, "U16": 2, "S16": 2}
_OFFSET = re.compile(r"^-?0x[0-9a-f]+$")


@dataclass(frozen=True, slots=True)
class Address:
    """A base (registers and the definitions that they hold) plus a constant offset and a width, in bytes."""

    base: tuple[object, ...]
    offset: int
    width: int

    def disjoint(self, other: Address) -> bool:
        """True when both have the same base value and the bytes do not overlap."""
        if self.base != other.base:
            return False
        return self.offset + self.width <= other.offset or other.offset + other.width <= self.offset

    def overlaps(self, other: Address) -> bool:
        """True when both have the same base value and share a byte."""
        return self.base == other.base and not self.disjoint(other)


@dataclass(frozen=True, slots=True)
class MemoryAccess:
    """An access of an instruction.

    Attributes:
        space: bit mask of GLOBAL (which local and generic memory share) and SHARED.
        writes: whether it writes.
        ordered: keeps its order with every other access.
        address: where, if that is known well enough to be compared.
    """

    space: int
    writes: bool
    ordered: bool
    address: Address | None


def accesses(i: Instruction, versions: dict[int, int]) -> tuple[MemoryAccess, ...]:
    """What memory an instruction touches.

    Args:
        i: the instruction.
        versions: register -> index of its last writer in the block, before `i`.
    """
    op = i.op
    if op.memory in (Memory.NONE, Memory.CONSTANT) or i.guard == "!PT":
        return ()
    ordered = i.base in _ATOMIC or bool(_ORDERED & set(i.opcode.split(".")))
    if i.base == "LDGSTS":
        # copies keep their order: their shared addresses could tell them apart, but the validator asks for it
        return (MemoryAccess(ANY, True, ordered, None),)
    space = {Memory.GLOBAL: GLOBAL, Memory.SHARED: SHARED}.get(op.memory, ANY)
    if i.base in _GENERIC:
        space = ANY
    address = None
    if i.base in _PLAIN and i.base not in _COLLECTIVE and not ordered:
        places = [o for o in i.operands if "[" in o]
        address = _address(i, places[0], versions) if len(places) == 1 else None
    return (MemoryAccess(space, op.writes_memory, ordered, address),)


def _address(i: Instruction, text: str, versions: dict[int, int]) -> Address | None:
    """``desc[UR6][R6.64+0x600]``: the last bracket's terms, the constant apart, and what is before it."""
    at = text.rfind("[") + 1
    inside = text[at:].rstrip("] ")
    terms, offset = [text[: at - 1]] if at > 1 else [], 0
    for term in inside.replace("+-", "+ -").split("+"):
        term = term.strip()
        if _OFFSET.match(term):
            offset += int(term, 16)
        elif term:
            terms.append(term)
    registers: set[int] = set()
    for term in terms:
        for register in named_registers(term):
            # (the validator asks for the next register too, whether or not the base is a pair)
            registers.update((register, register + 1))
    if any(not named_registers(t) and t not in ("RZ", "URZ", "RZ.64") for t in terms):
        return None
    widths = [_BYTES[m] for m in i.opcode.split(".")[1:] if m in _BYTES]
    base = (tuple(sorted(terms)), tuple((r, versions.get(r, -1)) for r in sorted(registers)))
    return Address(base, offset, widths[0] if len(widths) == 1 else (4 if not widths else 16))


def must_keep_order(first: tuple[MemoryAccess, ...], second: tuple[MemoryAccess, ...]) -> bool:
    """True when the second instruction's accesses must stay behind the first one's."""
    for a in first:
        for b in second:
            if a.ordered or b.ordered:
                return True
            if not a.space & b.space:
                continue
            if not (a.writes or b.writes):
                if a.address is not None and b.address is not None and a.address.overlaps(b.address):
                    return True
                continue
            if (a.space | b.space) & SHARED and not (a.writes and b.writes):
                return True
            if a.address is None or b.address is None or not a.address.disjoint(b.address):
                return True
    return False


def before_copies(code: Sequence[Instruction]) -> Iterator[tuple[int, int]]:
    """(first, second) of a block's instructions, by index, that keep their order for a LDGSTS in it: the last
    three shuffles or ``@!PT LDS`` stay between it and what uses shared memory above them."""
    pads: list[int] = []
    users: list[int] = []
    copied = False
    for i in code:
        if i.base == "LDGSTS":
            copied = True
            for pad in pads[-3:]:
                yield pad, i.index
                yield from ((user, pad) for user in users)
        elif i.base == "SHFL" or (i.base == "LDS" and i.guard in ("!PT", "!UPT")):
            if not copied:
                pads.append(i.index)
        elif i.base in ("BAR", *_GENERIC) or i.op.memory in (Memory.SHARED, Memory.ANY):
            users.append(i.index)
            pads, copied = [], False

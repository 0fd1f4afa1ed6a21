"""Order violations through registers and memory: each class plants exactly one kind of dependence.

An instruction j moves up to stand right before an earlier i. j is independent, by the oracle, of everything
between the two, and depends on i through the class's registers alone. Control codes are generous, so that
nothing but the order is wrong. It is wrong by construction: a read gets another definition (raw, war), or a
later read does (waw, where one is there).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from sassafras.sass.effects import named_registers
from sassafras.sass.registers import UGPR, is_predicate

from .subject import Mutant, Quota, Subject, file_of, shuffled

_REACH = 10


def swaps(s: Subject, rng: np.random.Generator, most: int) -> Iterator[Mutant]:
    """Mutants of this kind, at most `most` a class."""
    quota = Quota(most)
    where = [(i, end) for start, end in s.stretches for i in range(start + 1, end - 1)]
    for n in rng.permutation(len(where)):
        i, end = where[n]
        for j in range(i + 1, min(end, i + _REACH)):
            if not all(s.independent(k, j) or _apart(s, k, j) for k in range(i + 1, j)):
                continue
            kind = _register_class(s, i, j) or _memory_class(s, i, j) or _ordered_class(s, i, j)
            if kind and quota.take(kind):
                cubin = s.emit(s.moved(j, i), s.generous(*s.stretch(i)))
                yield Mutant(kind, f"{s.code[j].text}  above  {s.code[i].text}", cubin)


def _register_class(s: Subject, i: int, j: int) -> str:
    a, b = s.code[i], s.code[j]
    raw, war, waw = s.conflicts(i, j)
    kinds = [name for name, found in (("raw", raw), ("war", war), ("waw", waw)) if found]
    registers = raw | war | waw
    memory = s.touches(i) and s.touches(j) and (a.op.writes_memory or b.op.writes_memory)
    if len(kinds) != 1 or memory or s.exclusive(i, j):
        return ""
    if waw and not s.read_later(j, waw):
        return ""
    kind = kinds[0]
    if special := _special(s, i, j, kind, registers):
        return special
    files = {file_of(r) for r in registers}
    return f"{kind} {files.pop()}" if len(files) == 1 else ""


def _special(s: Subject, i: int, j: int, kind: str, registers: frozenset[int]) -> str:
    a, b = s.code[i], s.code[j]
    names = {a.base, b.base}
    if "P2R" in names and all(map(is_predicate, registers)):
        return f"{kind} through P2R's mask"
    if "R2P" in names and all(map(is_predicate, registers)):
        return f"{kind} through R2P's mask"
    if kind == "raw" and all(map(is_predicate, registers)):
        outputs = [o for o in a.operands if re.fullmatch(r"U?P(\d|T)", o)]
        second = named_registers(outputs[1]) if len(outputs) > 1 else frozenset()
        if a.base in ("ISETP", "FSETP", "PLOP3", "UISETP", "DSETP", "HSETP2") and registers <= second:
            return "raw of a second predicate"
        if a.base in ("IADD3", "LEA", "UIADD3", "ULEA", "IMAD") and ".X" in b.opcode:
            return "raw of a carry"
        if b.guard and registers <= named_registers(b.guard):
            return "raw of a guard"
    text = " ".join(b.operands if kind == "raw" else a.operands)
    if kind in ("raw", "war") and "gdesc[" in text and registers <= _inside(text, "gdesc"):
        return f"{kind} of a matrix descriptor"
    if kind in ("raw", "war") and "desc[" in text and registers <= _inside(text, "desc"):
        return f"{kind} of a memory descriptor"
    if not registers & named_registers(" ".join(a.operands)):
        return f"{kind} of a wide operand's other registers"
    if not registers & named_registers(" ".join(b.operands)):
        return f"{kind} of a wide operand's other registers"
    return ""


def _inside(text: str, what: str) -> frozenset[int]:
    """Registers of a descriptor (two, four for two matrices), from the text alone."""
    found = set()
    for number in re.findall(rf"\b{what}\[UR(\d+)\]", text):
        found |= {UGPR + int(number) + k for k in range(4 if what == "gdesc" else 2)}
    return frozenset(found)


_ACCESS = re.compile(r"^(LD|ST)(G|S|L)$")
_BYTES = {"128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1}
_OFFSET = re.compile(r"(?:\+|(?<=\[))(-?0x[0-9a-f]+)\]$")


def _place(s: Subject, n: int) -> tuple[str, str, int, int] | None:
    """(space, address without its offset, offset, bytes) of a plain load or store."""
    i = s.code[n]
    if not (found := _ACCESS.match(i.base)) or "STRONG" in i.opcode:
        return None
    text = next(o for o in i.operands if "[" in o)
    offset = _OFFSET.search(text)
    size = next((_BYTES[m] for m in i.opcode.split(".") if m in _BYTES), 4)
    return found[2], _OFFSET.sub("]", text), int(offset[1], 16) if offset else 0, size


def _apart(s: Subject, k: int, j: int) -> bool:
    """Two accesses that no register joins and that do not meet: loads both, or one base and other bytes."""
    a, b = _place(s, k), _place(s, j)
    if a is None or b is None or any(s.conflicts(k, j)):
        return False
    if s.code[k].base.startswith("LD") and s.code[j].base.startswith("LD"):
        return a[:2] != b[:2] or a[2:] != b[2:]
    if a[:2] != b[:2] or any(named_registers(a[1]) & s.code[m].writes for m in range(k, j)):
        return False
    return a[2] + a[3] <= b[2] or b[2] + b[3] <= a[2]


def _memory_class(s: Subject, i: int, j: int) -> str:
    """A load and a store, or two stores, of the very same place, which nothing in between changes."""
    a, b = s.code[i], s.code[j]
    first, second = _place(s, i), _place(s, j)
    if first is None or first != second or any(s.conflicts(i, j)) or s.exclusive(i, j):
        return ""
    names = (a.base[:2].lower(), b.base[:2].lower())
    if names == ("ld", "ld") or any(named_registers(first[1]) & s.code[k].writes for k in range(i, j)):
        return ""
    space = {"G": "global", "S": "shared", "L": "local"}[first[0]]
    return f"{space} memory: {names[0]} before {names[1]}"


def _ordered_class(s: Subject, i: int, j: int) -> str:
    """An atomic or strong access and another access to memory that other threads see."""
    if any(s.conflicts(i, j)) or not (s.touches(i) and s.touches(j)) or s.exclusive(i, j):
        return ""
    strong = [x.base.startswith(("ATOM", "RED")) or "STRONG" in x.opcode for x in (s.code[i], s.code[j])]
    local = any(x.base in ("LDL", "STL") for x in (s.code[i], s.code[j]))
    return "memory across an atomic or strong access" if any(strong) and not local else ""


def pairs(s: Subject, rng: np.random.Generator) -> Iterator[tuple[int, int, int]]:
    """(i, j, register): j in i's block reads what i wrote last, in random order."""
    for n in shuffled(rng, range(len(s.blocks))):
        start, end = s.blocks[n]
        last: dict[int, int] = {}
        found = []
        for j in range(start, end):
            if s.code[j].guard in ("!PT", "!UPT"):
                continue
            for r in s.code[j].reads:
                if r in last and not s.exclusive(last[r], j):
                    found.append((last[r], j, r))
            for r in s.code[j].writes:
                last[r] = j
        for k in rng.permutation(len(found)):
            yield found[k]

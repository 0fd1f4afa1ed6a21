"""Not the same program, control codes that no compiler emits, stale offsets, stale cached operands."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

import numpy as np

from sassafras.sass.control import CONTROL_MASK, REUSE_MASK

from .subject import STALL, WRITE, Mutant, Quota, Subject, poke, put, shuffled

_SLOTS = re.compile(r"^-?\|?R(\d+)\|?(\.\w+)*$")


def structure(s: Subject, rng: np.random.Generator, most: int) -> Iterator[Mutant]:
    """Mutants of this kind, at most `most` a class."""
    yield from _words(s, rng, most)
    yield from _encodings(s, rng, most)
    yield from _branches(s, rng, most)
    yield from _offsets(s, rng, most)
    yield from _elsewhere(s, rng, most)
    yield from _reuse(s, rng, most)
    yield from _separated(s, rng, most)


def _poke(s: Subject, n: int, low: int, high: int) -> bytes:
    return poke(s.program.cubin.data, s.function.text_offset + 16 * n, low, high)


def _real(s: Subject) -> list[int]:
    return [n for n in range(s.count) if s.code[n].base != "NOP"]


def _words(s: Subject, rng: np.random.Generator, most: int) -> Iterator[Mutant]:
    real = _real(s)
    for _ in range(most):
        n, m = (int(x) for x in rng.choice(real, 2))
        a, b = s.code[n], s.code[m]
        clean = ~CONTROL_MASK & (2**64 - 1)
        if (a.low, a.high & clean) != (b.low, b.high & clean):
            yield Mutant("instruction replaced by another", a.text, _poke(s, n, b.low, b.high))
            nop = (0x0000000000007918, (a.high & CONTROL_MASK))
            yield Mutant("instruction lost", a.text, _poke(s, n, *nop))
        bit = int(rng.integers(105))
        low = a.low ^ (1 << bit) if bit < 64 else a.low
        high = a.high ^ (1 << (bit - 64)) if bit >= 64 else a.high
        yield Mutant("bit of an instruction flipped", f"{a.text}, bit {bit}", _poke(s, n, low, high))


def _encodings(s: Subject, rng: np.random.Generator, most: int) -> Iterator[Mutant]:
    for n in rng.choice(_real(s), most):
        i = s.code[int(n)]
        if i.base not in ("BRA", "ERRBAR"):
            cubin = s.recoded(i.index, STALL, 5, int(rng.choice((0, 16, 28, 29, 30, 31))))
            yield Mutant("stall and yield that cannot be encoded", i.text, cubin)
        yield Mutant("scoreboard 6", i.text, s.recoded(i.index, WRITE + 3 * int(rng.integers(2)), 3, 6))
        yield Mutant("bits 126 and 127", i.text, s.recoded(i.index, 62, 2, int(rng.choice((1, 2, 3)))))
    named = [n for n in range(s.count) if s.code[n].base == "LDGDEPBAR"]
    for n in rng.permutation(named)[:most]:
        cubin = s.recoded(n, WRITE, 3, int(rng.choice((1, 2, 3, 4, 5, 7))))
        yield Mutant("scoreboard that DEPBAR names", s.code[n].text, cubin)


def _branches(s: Subject, rng: np.random.Generator, most: int) -> Iterator[Mutant]:
    quota = Quota(most)
    for n in shuffled(rng, range(1, s.count - 1)):
        i = s.code[n]
        if i.base not in ("BRA", "EXIT", "BSSY", "BSYNC", "CALL", "RET", "BREAK", "BRX", "WARPSYNC"):
            continue
        kind = f"{i.base} moved"
        to = n + int(rng.choice((-1, 1)))
        if (i.low, i.high) != (s.code[to].low, s.code[to].high) and quota.take(kind):
            yield Mutant(kind, f"{i.text}  to  {s.code[to].text}", s.emit(s.moved(n, to), s.high))
    for a, b in zip(s.blocks, s.blocks[1:], strict=False):
        # one instruction out of the end of a block into the next: over its branch, or over its label
        if a[1] - a[0] < 2 or not quota.free(kind := "instruction moved to another block"):
            continue
        last = s.code[a[1] - 1]
        if s.still[a[1] - 1] and last.base in ("BRA", "EXIT") and not s.still[a[1] - 2] and b[1] - b[0] > 1:
            quota.take(kind)
            cubin = s.emit(s.moved(a[1] - 2, a[1] - 1), s.high)
            yield Mutant(kind, s.code[a[1] - 2].text, cubin)


def _offsets(s: Subject, rng: np.random.Generator, most: int) -> Iterator[Mutant]:
    slots = list(s.function.offset_slots)
    for n in rng.permutation(len(slots))[:most]:
        at, offset = slots[n]
        data = bytearray(s.program.cubin.data)
        struct.pack_into("<I", data, at, max(0, offset + 16 * int(rng.choice((-1, 1)))))
        if bytes(data) != s.program.cubin.data:
            yield Mutant(".nv.info offset stale", f"{offset:#x}", bytes(data))


def _elsewhere(s: Subject, rng: np.random.Generator, most: int) -> Iterator[Mutant]:
    start, end = s.function.text_offset, s.function.text_offset + 16 * s.count
    slots = {at + k for at, _ in s.function.offset_slots for k in range(4)}
    size = len(s.program.cubin.data)
    for _ in range(most):
        at = int(rng.integers(size))
        if start <= at < end or at in slots:
            continue
        data = bytearray(s.program.cubin.data)
        data[at] ^= 1 << int(rng.integers(8))
        yield Mutant("byte outside the kernel's code changed", f"{at:#x}", bytes(data))
    yield Mutant("cubin truncated", "", s.program.cubin.data[:-1])


def _reuse(s: Subject, rng: np.random.Generator, most: int) -> Iterator[Mutant]:
    """A flag planted on an operand that is written before its slot is read again: the observed fault."""
    kind, planted = "reuse flag that keeps a stale operand", 0
    for n in shuffled(rng, range(len(s.blocks))):
        start, end = s.blocks[n]
        for i in range(start, end):
            if planted == most:
                return
            k = _stale(s, i, end)
            if k >= 0:
                planted += 1
                yield Mutant(kind, s.code[i].text, s.recoded(i, 58 + k, 1, 1))


def _operand(s: Subject, n: int, slot: int) -> int:
    """The general register in source slot A, B or C, or -1 (fixed-latency instructions with one output)."""
    i = s.code[n]
    if i.op.queue not in ("alu", "fma", "half") or len(i.operands) <= slot + 1:
        return -1
    found = _SLOTS.match(i.operands[slot + 1])
    return int(found[1]) if found else -1


def _stale(s: Subject, i: int, end: int) -> int:
    if s.code[i].control.reuse:
        return -1
    for slot in range(3):
        register = _operand(s, i, slot)
        if register < 0 or register in s.code[i].writes:
            continue
        for j in range(i + 1, min(end, i + 12)):
            if register in s.code[j].reads:
                break
            if register in s.code[j].writes:
                later = range(j + 1, min(end, j + 12))
                reader = next((k for k in later if register in s.code[k].reads), -1)
                if reader >= 0 and _operand(s, reader, slot) == register:
                    return slot
                break
    return -1


def _separated(s: Subject, rng: np.random.Generator, most: int) -> Iterator[Mutant]:
    """Trap 8: an instruction with a flag is followed by another one than in the original."""
    kind, made = "reuse flag with a new successor", 0
    for start, end in s.stretches:
        for i in shuffled(rng, range(start, end - 2)):
            if made == most:
                return
            if not s.code[i].control.reuse or not s.independent(i + 1, i + 2):
                continue
            made += 1
            high = s.generous(start, end)
            high[i] |= s.high[i] & REUSE_MASK
            high[i] = put(high[i], STALL, 5, 17)  # flags come with bit 45 set
            yield Mutant(kind, s.code[i].text, s.emit(s.moved(i + 2, i + 1), high))

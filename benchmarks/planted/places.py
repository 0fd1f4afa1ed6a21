"""Moves across what orders memory and asynchronous work: groups of copies, barriers, matrix windows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .subject import Mutant, Quota, Subject, shuffled

_FENCES = ("BAR", "MEMBAR", "FENCE", "NOP", "WARPSYNC", "ERRBAR", "SYNCS")
_ACCESSES = ("LDS", "STS", "LDG", "STG", "LDSM", "STSM", "ATOMS", "RED")
_REACH = 14


def places(s: Subject, rng: np.random.Generator, most: int) -> Iterator[Mutant]:
    """Mutants of this kind, at most `most` a class."""
    quota = Quota(most)
    block = {n: (start, end) for start, end in s.blocks for n in range(start, end)}
    for n in shuffled(rng, range(s.count)):
        i = s.code[n]
        for m, kind in _crossing(s, n, *block[n]):
            if kind and quota.free(kind) and _alone(s, n, m) and quota.take(kind):
                start, end = block[n]
                cubin = s.emit(s.moved(m, n), s.generous(start, end))
                yield Mutant(kind, f"{s.code[m].text}  across  {i.text}", cubin)


def _alone(s: Subject, n: int, m: int) -> bool:
    """m passes n and nothing else that it depends on, by the oracle."""
    between = range(min(n, m) + 1, max(n, m))
    return all(s.independent(min(k, m), max(k, m)) for k in between)


def _crossing(s: Subject, n: int, start: int, end: int) -> Iterator[tuple[int, str]]:
    """(instruction that moves to the other side of n, class). A barrier with nothing on its other side in the
    block is crossed all the same: what matters to other threads is on which side of it an access is."""
    i = s.code[n]
    window = [m for m in range(max(start, n - _REACH), min(end, n + _REACH)) if m != n]
    if i.base == "LDGDEPBAR":
        yield from ((m, "LDGSTS across LDGDEPBAR") for m in window if s.code[m].base == "LDGSTS")
    elif i.base in _FENCES and (i.base != "NOP" or _synchronises(s, n)):
        kind = "memory across " + ("a warp barrier (NOP)" if i.base == "NOP" else i.base)
        yield from ((m, kind) for m in window if s.code[m].base in _ACCESSES and not s.still[m])
    elif i.base == "DEPBAR":
        yield from ((m, "load across DEPBAR") for m in window if s.code[m].base in ("LDS", "LDSM"))
    elif i.opcode.startswith("WARPGROUP.DEPBAR"):
        yield from _window(s, n, start, end)
    elif i.opcode.startswith("WARPGROUP.ARRIVE"):
        yield from (
            (m, "HGMMA above WARPGROUP.ARRIVE") for m in window if m > n and s.code[m].base == "HGMMA"
        )


def _synchronises(s: Subject, n: int) -> bool:
    """A NOP that `.nv.info` lists as a cooperative-group instruction: what __syncwarp() becomes."""
    return any(offset == 16 * n for _, offset in s.function.offset_slots)


def _window(s: Subject, n: int, start: int, end: int) -> Iterator[tuple[int, str]]:
    """Accesses to registers of matrix products in flight, moved from behind their wait to before it."""
    products = [m for m in range(start, n) if s.code[m].base == "HGMMA"]
    if not products or "gsb0" not in s.code[n].text or not s.code[n].text.endswith("0x0"):
        return
    last = products[-1]
    for m in range(n + 1, min(end, n + 40)):
        i = s.code[m]
        if s.still[m] or i.base == "HGMMA":
            continue
        if i.reads & s.code[last].writes:
            yield m, "accumulator read before its WARPGROUP.DEPBAR"
        elif i.writes & s.code[last].writes:
            yield m, "accumulator overwritten before its WARPGROUP.DEPBAR"
        elif i.writes & (s.code[last].reads - s.code[last].writes):
            yield m, "operand of HGMMA overwritten before its WARPGROUP.DEPBAR"
    yield last, "HGMMA behind its WARPGROUP.DEPBAR"

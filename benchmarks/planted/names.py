"""Copies under other register names that are not the same program: what `Validator.via` must refuse.

A value is taken from the scheduler's reading (the oracle's): its definitions and readers within one block,
none outside. All of it, or a part, gets another name, and the argument why some read then sees another
definition stands beside each class. Words only: order and control codes stay the compiler's own.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sassafras.sass import Emitter
from sassafras.sass.control import REUSE_MASK
from sassafras.sass.registers import PRED, UGPR
from sassafras.schedule.renaming import encode
from sassafras.schedule.webs import Web, values

from .subject import Mutant, Quota, Subject


def names(s: Subject, rng: np.random.Generator, most: int) -> Iterator[Mutant]:
    """Mutants of this kind, at most `most` a class; each is a copy to be proved, not a schedule."""
    quota = Quota(most)
    webs = [w for w in values(s.function) if w.register < UGPR]
    block = {n: end for start, end in s.blocks for n in range(start, end)}
    used = {r for i in s.code for r in i.reads | i.writes}
    emitter = Emitter(s.program, s.name)
    order = np.arange(s.count)

    def copy(web: Web, name: int, writes: list[int], reads: list[int]) -> bytes | None:
        made = Web(web.register, writes, reads)
        made.name = name
        words, changed = encode(s.function, [made])
        words[:, 1] &= ~np.uint64(REUSE_MASK)
        touched = {int(n) for n in np.flatnonzero(words[:, 0] != s.function.words[:, 0])}
        touched |= {int(n) for n in np.flatnonzero(_clean(words[:, 1] ^ s.function.words[:, 1]))}
        # something was to change, and every part of it did
        return emitter.write(order, words) if touched and touched == set(changed) else None

    for k in rng.permutation(len(webs)):
        web = webs[k]
        end = block[web.first]
        bank = (PRED, PRED + 7) if web.register >= PRED else (0, s.function.registers)
        spared = _free(s, web, end, bank, used)
        for kind, name, writes, reads in _plans(s, rng, web, end, bank, spared, quota):
            if not quota.free(kind):
                continue
            cubin = copy(web, name, writes, reads)
            if cubin is not None:
                quota.take(kind)
                texts = f"{s.code[web.first].text}: {_spell(web.register)} as {_spell(name)}"
                yield Mutant(kind, texts, cubin)


#: names tried of each value
_TRIED = 24

Plan = tuple[str, int, list[int], list[int]]


def _plans(
    s: Subject,
    rng: np.random.Generator,
    web: Web,
    end: int,
    bank: tuple[int, int],
    spared: list[int],
    quota: Quota,
) -> Iterator[Plan]:
    """(class, new name, definitions, readers that get it)."""
    what = "predicate" if web.register >= PRED else "register"
    if spared:
        name = int(rng.choice(spared))
        reads = sorted(set(web.reads))
        reader = int(rng.choice(reads))
        # the value is no longer where this reader looks for it
        others = [n for n in reads if n != reader]
        yield f"renaming: {what} read under its old name", name, web.writes, others
        # nor where these look
        yield f"renaming: {what} written under its old name", name, [], reads
        if len(web.writes) > 1 and max(reads) > web.writes[1]:
            # a guarded write to the old name: where it happens, readers miss it
            yield f"renaming: {what}'s guarded write left behind", name, web.writes[:1], reads
    overwritten = f"renaming: {what} in a name that is written before it is read"
    needed = f"renaming: {what} in a name whose value is still needed"
    for name in rng.permutation(np.arange(*bank))[:_TRIED].tolist():
        if name == web.register or name in spared:
            continue
        if quota.free(overwritten):
            lost = [
                n for n in range(web.first + 1, web.last) if name in s.code[n].writes and s.guard(n) == ""
            ]
            if lost and max(web.reads) > lost[0]:
                yield overwritten, name, web.writes, web.reads
        if quota.free(needed) and _lives_past(s, web, name, end):
            yield needed, name, web.writes, web.reads


def _free(s: Subject, web: Web, end: int, bank: tuple[int, int], used: set[int]) -> list[int]:
    """Names that nothing in the kernel mentions (not in `used`), or that are dead where the web lives."""
    return [r for r in range(*bank) if r not in used] or [
        r
        for r in range(*bank)
        if r != web.register
        and not any(r in s.code[n].reads | s.code[n].writes for n in range(web.first, web.last + 1))
        and _dead(s, r, web.last, end)
    ]


def _dead(s: Subject, register: int, at: int, end: int) -> bool:
    """Overwritten in the block behind `at`, always, before anything reads it."""
    for n in range(at + 1, end):
        if register in s.code[n].reads:
            return False
        if register in s.code[n].writes and s.guard(n) == "":
            return True
    return False


def _lives_past(s: Subject, web: Web, name: int, end: int) -> bool:
    """Somebody else reads `name` behind the web's first definition, and nothing overwrites it for certain in
    between: after the renaming that reader sees the web's value, as its first write has no guard."""
    if s.guard(web.first) != "":
        return False
    for n in range(web.first + 1, end):
        if name in s.code[n].reads and n not in web.reads:
            return True
        if name in s.code[n].writes and s.guard(n) == "":
            return False
    return False


def _clean(words: np.ndarray) -> np.ndarray:
    """Without control bits (105 to 127)."""
    return words & np.uint64((1 << 41) - 1)


def _spell(register: int) -> str:
    return f"P{register - PRED}" if register >= PRED else f"R{register}"

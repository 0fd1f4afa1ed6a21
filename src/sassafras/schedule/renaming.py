"""Other register names for the same values, where a free name breaks a false dependence.

ptxas reuses a register as soon as it is free, which is right for its own order and binds every other one:
the next value cannot be made before the last one was read. Here each value that lives and dies within one
basic block (`webs`) may get the name that has been out of use for longest. Nothing is spilled and the
register count stays. Operands of several registers, predicates behind masks and everything that fences,
asynchronous products and copies touch keep their names. Whether the outcome is the same program is for
`validate` to prove.
"""

from __future__ import annotations

import re
from collections import defaultdict

import numpy as np

from sassafras.core.errors import DisassemblyError
from sassafras.sass import Emitter, Function, Instruction, Program, archs
from sassafras.sass.control import REUSE_MASK
from sassafras.sass.latency import LatencyTable, opcode_key, slots
from sassafras.sass.registers import GPR, PRED, UGPR

from . import flow
from .distances import HORIZON
from .webs import KernelCopy, Web, fixed_registers, live, values

#: (word, first bit, bits) of the fields that name general registers: output, inputs
_OUTPUT = ((0, 16),)
_INPUTS = ((0, 24), (0, 32), (1, 0))
#: predicates: guard; outputs; inputs
_GUARD = ((0, 12),)
_PREDICATE_OUTPUTS = ((1, 17), (1, 20))
_PREDICATE_INPUTS = ((1, 23), (1, 13), (1, 4))
_NAME = re.compile(r"(?<![A-Za-z0-9_.])(UR|UP|R|P|B)\d+(?![A-Za-z0-9_])")
#: a free name must have been out of use for so many instructions longer than the old one
_GAIN = 4


def rename(program: Program, name: str, most: int | None = None) -> KernelCopy:
    """Give values other names where that breaks a false dependence; order and control codes stay, but no
    operand is cached where names changed.

    Args:
        program, name: the kernel.
        most: rename at most so many values, first come first.

    Raises:
        DisassemblyError: the renamed code does not read as it should, again and again.
    """
    function = program.function(name)
    refused: set[int] = set()
    webs = values(function)
    _assign(function, webs, LatencyTable.load(archs.get(function.arch).table))
    chosen = [n for n, w in enumerate(webs) if w.name >= 0]
    if most is not None:
        chosen = chosen[:most]
    emitter = Emitter(program, name)
    order = np.arange(len(function))
    for _ in range(4):
        kept = [webs[n] for n in chosen if n not in refused]
        words, changed = encode(function, kept)
        cubin = emitter.write(order, words)
        try:
            wrong = _misread(function, Program.parse(cubin).function(name), changed)
        except DisassemblyError:
            wrong = set(changed)
        if not wrong:
            return KernelCopy(cubin, len(kept))
        refused |= {n for n in chosen if wrong & {*webs[n].writes, *webs[n].reads}}
    raise DisassemblyError("the renamed code cannot be read back", where=name)


# -- names ------------------------------------------------------------------------------------------------


def _assign(function: Function, webs: list[Web], table: LatencyTable) -> None:
    """Choose names, greedily in order of first definition."""
    code, count = function.instructions, len(function)
    blocks = flow.blocks(function)
    entry = live(function, blocks)
    # by register and position: live behind it, or touched at it
    busy = np.zeros((UGPR, count), dtype=bool)
    touched = np.zeros((UGPR, count), dtype=bool)
    home: dict[int, tuple[int, int]] = {}
    for b in blocks:
        alive = set().union(*(entry[s] for s in b.successors)) if b.successors else set()
        for n in range(b.end - 1, b.start - 1, -1):
            i = code[n]
            home[n] = (b.start, b.end)
            touched[[r for r in i.reads | i.writes if r < UGPR], n] = True
            busy[[r for r in alive | i.reads | i.writes if r < UGPR], n] = True
            if i.guard in ("", "PT"):
                alive -= i.writes
            alive |= i.reads
    fixed = fixed_registers(function)
    fixed.add(GPR + 1)  # the stack pointer, though many kernels never use it
    general = [r for r in range(GPR, GPR + function.registers) if r not in fixed and touched[r].any()]
    writers, readers = defaultdict[int, set[int]](set), defaultdict[int, set[int]](set)
    for i in code:
        for r in i.writes:
            writers[r].add(i.index)
        for r in i.reads:
            readers[r].add(i.index)
    known = _Known(function, table)
    predicates = [r for r in range(PRED, PRED + 7) if r not in fixed]
    for web in webs:
        if web.register >= UGPR:
            continue
        start, end = home[web.first]
        first, last = web.first, web.last
        now = _room(touched[web.register], start, end, first, last)
        best, gain = -1, now + _GAIN
        own = {*web.writes, *web.reads}
        if not known.without(web, writers[web.register], readers[web.register]):
            continue
        for r in predicates if web.register >= PRED else general:
            if r == web.register or busy[r, first : last + 1].any():
                continue
            room = _room(touched[r], start, end, first, last)
            if room > gain and known.all(web, r, writers[r], readers[r]):
                best, gain = r, room
        if best >= 0:
            web.name = best
            busy[best, first : last + 1] = True
            touched[best, [*web.writes, *web.reads]] = True
            # (another value may end where this one begins, and begin where it ends)
            writers[web.register] -= set(web.writes) - {last}
            readers[web.register] -= own - {first}
            writers[best].update(web.writes)
            readers[best].update(web.reads)
            known.names.update({(n, best): web.register for n in (*web.writes, *web.reads)})
            busy[web.register, first + 1 : last] = False
            inner = [n for n in (*web.writes, *web.reads) if first < n < last]
            touched[web.register, inner] = False


class _Known:
    """Whether the latency table knows what new neighbours on one register need of one another."""

    def __init__(self, function: Function, table: LatencyTable) -> None:
        self.code, self.table = function.instructions, table
        self.keys = [opcode_key(i.opcode) for i in self.code]
        self.slots = [slots(i) for i in self.code]
        self.time = np.cumsum([0, *(max(1, i.control.stall) for i in self.code)])
        # under which old name an instruction is known to use a register by now
        self.names: dict[tuple[int, int], int] = {}

    def all(self, web: Web, register: int, writers: set[int], readers: set[int]) -> bool:
        """Pairs of the web with other users of `register` within `HORIZON` cycles, in address order."""
        old = web.register
        for n in writers | readers:
            theirs, pairs = self.names.get((n, register), register), []
            if n < web.first:
                kinds = [kind for kind, side in (("waw", writers), ("war", readers)) if n in side]
                pairs = [(kind, n, theirs, m, old) for kind in kinds for m in web.writes]
            elif n > web.last and n in writers:
                users = [("waw", m) for m in web.writes] + [("war", m) for m in web.reads]
                pairs = [(kind, m, old, n, theirs) for kind, m in users]
            if not all(self._pair(*pair) for pair in pairs):
                return False
        return True

    def without(self, web: Web, writers: set[int], readers: set[int]) -> bool:
        """Pairs that meet on the old name once the web has left it."""
        old = web.register
        before = [
            n for n in writers | readers if n <= web.first and self.time[web.last] - self.time[n] < HORIZON
        ]
        behind = [n for n in writers if n >= web.last and self.time[n] - self.time[web.first] < HORIZON]
        for n in before:
            for m in behind:
                if n == m:
                    continue
                x, y = self.names.get((n, old), old), self.names.get((m, old), old)
                for kind, side in (("waw", writers), ("war", readers)):
                    here = n in side and not (n == web.first and kind == "waw")
                    if here and not (m == web.last and m in web.writes) and not self._pair(kind, n, x, m, y):
                        return False
        return True

    def _pair(self, kind: str, a: int, x: int, b: int, y: int) -> bool:
        """Instruction `a` names the shared register `x` in the original, `b` names it `y`."""
        if self.time[b] - self.time[a] >= HORIZON or self.code[a].op.variable:
            return True  # far enough; or scoreboards take care
        mine = [u.slot for u in self.slots[a] if u.register == x and u.write == (kind == "waw")]
        theirs = [u.slot for u in self.slots[b] if u.register == y and u.write]
        if not mine or not theirs:
            return False
        gap = int(self.time[b] - self.time[a])
        # with a distance that is larger than any, a table answers what is certainly enough
        return all(
            self.table.needed(kind, self.keys[a], p, self.keys[b], q, HORIZON) <= gap
            for p in mine
            for q in theirs
        )


def _room(touched: np.ndarray, start: int, end: int, first: int, last: int) -> int:
    """Instructions between a web and what else has its name, on the nearer side."""
    before = np.flatnonzero(touched[start:first])
    behind = np.flatnonzero(touched[last + 1 : end])
    up = first - (start + int(before[-1])) if len(before) else 64
    down = int(behind[0]) + 1 if len(behind) else 64
    return min(up, down, 64)


# -- code -------------------------------------------------------------------------------------------------


def encode(function: Function, webs: list[Web]) -> tuple[np.ndarray, dict[int, dict[tuple[int, bool], int]]]:
    """Words under the new names, and by instruction what was renamed: (register, written) -> new name."""
    changed: dict[int, dict[tuple[int, bool], int]] = defaultdict(dict)
    for web in webs:
        for n in web.writes:
            changed[n][web.register, True] = web.name
        for n in web.reads:
            changed[n][web.register, False] = web.name
    words = function.words.copy()
    for n, names in changed.items():
        i = function.instructions[n]
        new = [i.low, i.high & ~REUSE_MASK]
        for (register, written), name in names.items():
            predicate = register >= PRED
            old, value = register - (PRED if predicate else GPR), name - (PRED if predicate else GPR)
            width = 7 if predicate else 0xFF
            fields: tuple[tuple[int, int], ...]
            if predicate:
                fields = _PREDICATE_OUTPUTS if written else (*_GUARD, *_PREDICATE_INPUTS)
            else:
                fields = _OUTPUT if written else _INPUTS
                named = sum(len(re.findall(rf"\bR{old}\b", o)) for o in i.operands)
                same = sum((i.low, i.high)[word] >> at & 0xFF == old for word, at in _INPUTS)
                if not written and same > named - (register in i.writes):
                    fields = tuple(f for f in fields if f != (0, 32))  # part of an immediate
            for word, at in fields:
                if (i.low, i.high)[word] >> at & width == old:
                    new[word] = new[word] & ~(width << at) | value << at
        words[n] = new
    return words, changed


def _misread(
    function: Function, renamed: Function, changed: dict[int, dict[tuple[int, bool], int]]
) -> set[int]:
    """Instructions whose new text or registers are not what they were meant to be."""
    wrong = set()
    for n, names in changed.items():
        i, j = function.instructions[n], renamed.instructions[n]
        reads = {names.get((r, False), r) for r in i.reads}
        writes = {names.get((r, True), r) for r in i.writes}
        if _NAME.sub(r"\1#", i.text.replace(".reuse", "")) != _NAME.sub(r"\1#", j.text.replace(".reuse", "")):
            wrong.add(n)
        if j.opcode != i.opcode or set(j.reads) != reads or set(j.writes) != writes:
            wrong.add(n)
        # R0 and P0 look like fields that the opcode leaves at zero
        if _changed_fields(i, j) != sum(
            one.group() != other.group()
            for one, other in zip(_NAME.finditer(i.text), _NAME.finditer(j.text), strict=False)
        ):
            wrong.add(n)
    return wrong


def _changed_fields(i: Instruction, j: Instruction) -> int:
    """How many of the fields that `encode` may write differ."""
    low, high = i.low ^ j.low, i.high ^ j.high
    fields = [low >> 12 & 7, low >> 16 & 0xFF, low >> 24 & 0xFF, low >> 32 & 0xFF, high & 0xFF]
    fields += [high >> at & 7 for at in (13, 17, 20, 23)]
    return sum(map(bool, fields))

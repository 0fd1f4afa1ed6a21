"""Is a cubin the same program under other register names? Proved position by position, before any reordering.

The two programs run the same opcodes at the same addresses, so the same control flow. If every read of every
register has the same reaching definitions in both, then each read sees the same value on every path: the
definition that supplies it in the one reaches it in the other, and so writes the register that is read there;
and whatever wrote that register later would reach the read in both. A guarded write ends no earlier
value's life, and what may come from before the kernel counts as a definition of its own register.

Conservative on purpose: operands of several registers, predicates behind a mask, and whatever matrix products
that run asynchronously, bulk copies, fences and pinned instructions touch keep their names; uniform
registers may only take names that the original never uses, as divergent threads share them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from sassafras.sass import Function, Instruction
from sassafras.sass.control import CONTROL_MASK

from . import classes, operands
from .effects import UNREAD, Effects
from .graph import GraphBlock
from .report import Violation

_NAME = re.compile(r"(?<![A-Za-z0-9_.])(UR|UP|R|P|B)\d+(?![A-Za-z0-9_])")
_PLAIN_NUMBER = re.compile(r"-?0x[0-9a-f]+$")
#: bits of an encoding that can hold a register's number: guard, Rd, Ra, Rb; Rc and the predicates
_LOW = 0x7 << 12 | 0xFF << 16 | 0xFF << 24
_RB = 0xFF << 32
_HIGH = 0xFF | 0x7 << 13 | 0x7 << 17 | 0x7 << 20 | 0x7 << 23

#: the same, field by field: (low word?, mask)
_FIELDS = (
    (True, 0x7 << 12),
    (True, 0xFF << 16),
    (True, 0xFF << 24),
    (True, _RB),
    (False, 0xFF),
    (False, 0x7 << 13),
    (False, 0x7 << 17),
    (False, 0x7 << 20),
    (False, 0x7 << 23),
)

Definition = tuple[int, int]
"""(instruction, number of its access), or (-1, register) for what was there before"""


def differences(
    original: Function,
    renamed: Function,
    effects: tuple[Sequence[Effects], Sequence[Effects]],
    pinned: Sequence[bool],
    fence: Sequence[bool],
    blocks: Sequence[GraphBlock],
) -> list[Violation]:
    """Why `renamed` is not `original` under other names; empty where it is.

    Args:
        original, renamed: of the same length.
        effects: of both, by the validator's reading.
        pinned, fence: of the original.
        blocks: the control-flow graph of both.
    """
    before, after = effects
    found = []
    fixed = untouchable(original, before, pinned, fence)
    used = {a.register for e in before for a in e.accesses}
    for n, (i, j) in enumerate(zip(original.instructions, renamed.instructions, strict=True)):
        if i.low == j.low and (i.high ^ j.high) & ~CONTROL_MASK == 0:
            if before[n].accesses != after[n].accesses:
                return [Violation.at("renaming", j, "the same word is read in two ways")]
            continue
        why = _shape(i, j, before[n], after[n])
        if not why and (pinned[n] or fence[n] or i.base in UNREAD):
            why = "a fence or pinned instruction keeps its registers"
        if not why:
            why = _names(before[n], after[n], fixed, used, original.registers)
        if why:
            found.append(Violation.at("renaming", j, why))
    if found:
        return found[:16]
    one, other = reaching(before, blocks), reaching(after, blocks)
    for n in range(len(before)):
        for k, a in enumerate(before[n].accesses):
            if not a.write and one[n, k] != other[n, k]:
                what = operands.spell(after[n].accesses[k].register)
                text = f"{what} comes from elsewhere than in the original"
                found.append(Violation.at("renaming", renamed.instructions[n], text))
    return found[:16]


def untouchable(
    function: Function, effects: Sequence[Effects], pinned: Sequence[bool], fence: Sequence[bool]
) -> frozenset[int]:
    """Registers that are read or written at times that no scoreboard or distance tells, or by lanes that run
    something else."""
    out: set[int] = set()
    for i, e, p, f in zip(function.instructions, effects, pinned, fence, strict=True):
        special = i.base in classes.WARPGROUP_PRODUCTS or i.base in classes.COPIES or i.base in UNREAD
        if p or special or (f and i.base not in ("BRA", "EXIT", "NOP")):
            out.update(a.register for a in e.accesses if a.slot != "G")
        elif i.base not in classes.KEEPS_TO_ITS_LANES:
            # it may read these of lanes that stand elsewhere in the program at that time
            out.update(a.register for a in e.accesses if a.register < operands.UR)
    return frozenset(out)


def _shape(i: Instruction, j: Instruction, before: Effects, after: Effects) -> str:
    """The same instruction but for the names of registers."""

    def plain(text: str) -> str:
        return _NAME.sub(r"\1#", text.replace(".reuse", ""))

    if plain(i.text) != plain(j.text):
        return f"is {i.text} in the original"
    bits = _LOW | _RB
    if any(_odd_number(o) for o in i.operands):
        bits = _LOW  # an immediate whose text may round
    if (i.low ^ j.low) & ~bits or ((i.high ^ j.high) & ~CONTROL_MASK) & ~_HIGH:
        return "differs in more than the numbers of its registers"
    # a field that this opcode does not use names nothing, and what the machine makes of it is not known
    fields = sum(bool(((i.low ^ j.low) if low else (i.high ^ j.high)) & mask) for low, mask in _FIELDS)
    names = zip(_NAME.finditer(i.text), _NAME.finditer(j.text), strict=True)
    if fields != sum(one.group() != other.group() for one, other in names):
        return "changes bits that name no register"
    if after.problem or before.problem:
        return after.problem or before.problem
    shape = [(a.slot, a.write) for a in before.accesses]
    if shape != [(a.slot, a.write) for a in after.accesses]:
        return "its operands are read in another way"
    return ""


def _odd_number(text: str) -> bool:
    return operands.read((text,))[0].role is operands.Role.OTHER and not _PLAIN_NUMBER.match(text)


def _names(
    before: Effects, after: Effects, untouchable: frozenset[int], used: set[int], registers: int
) -> str:
    wide = {a.slot.partition("+")[0] for a in before.accesses if "+" in a.slot}
    for a, b in zip(before.accesses, after.accesses, strict=True):
        if a.register == b.register:
            continue
        spelt = f"{operands.spell(a.register)} to {operands.spell(b.register)}"
        if a.slot.partition("+")[0] in wide or a.slot == "?":
            return f"{spelt}: an operand of several registers keeps its names"
        if a.register >= operands.B or b.register >= operands.B:
            return f"{spelt}: convergence barriers keep their names"
        if a.register in untouchable or b.register in untouchable:
            return f"{spelt}: in use by asynchronous or fixed instructions"
        if a.register >= operands.UR and b.register in used:
            return f"{spelt}: a uniform name that the original uses"
        if b.register < operands.P and b.register >= registers:
            return f"{spelt}: the kernel has {registers} registers"
    return ""


def reaching(
    effects: Sequence[Effects], blocks: Sequence[GraphBlock]
) -> dict[tuple[int, int], frozenset[Definition]]:
    """For each read (instruction, number of its access) the definitions that may supply it, on any path."""
    entry: list[dict[int, frozenset[Definition]] | None] = [None] * len(blocks)
    entry[0] = {}
    out: dict[tuple[int, int], frozenset[Definition]] = {}

    def walk(n: int, keep: bool) -> dict[int, frozenset[Definition]]:
        state = dict(entry[n] or {})
        for index in range(blocks[n].start, blocks[n].end):
            e = effects[index]
            if keep:
                for k, a in enumerate(e.accesses):
                    if not a.write:
                        out[index, k] = state.get(a.register, frozenset([(-1, a.register)]))
            if e.never:
                continue
            made: dict[int, frozenset[Definition]] = {}
            for k, a in enumerate(e.accesses):
                if a.write:
                    made[a.register] = made.get(a.register, frozenset()) | {(index, k)}
            for register, new in made.items():
                if e.guard is not None:
                    new |= state.get(register, frozenset([(-1, register)]))
                state[register] = new
        return state

    for n in range(1, len(blocks)):
        entry[n] = {}
    # a register that a block does not mention on entry may still come from before the kernel there
    seen = [False] * len(blocks)
    seen[0] = True
    work = [0]
    while work:
        n = work.pop(0)
        left = walk(n, False)
        for m in blocks[n].follow:
            known = entry[m]
            assert known is not None
            changed = not seen[m]
            for register in set(left) | set(known):
                old = frozenset([(-1, register)])
                come = left.get(register, old)
                merged = come if not seen[m] else known.get(register, old) | come
                if known.get(register) != merged:
                    known[register] = merged
                    changed = True
            seen[m] = True
            if changed and m not in work:
                work.append(m)
    for n in range(len(blocks)):
        walk(n, True)
    return out

"""Is a cubin the same program with instructions moved over a branch? Proved one instruction at a time.

A copy is proved to come from the original by a chain of single moves. Each takes one instruction X between a
block P and a block B of which P is the only predecessor: up, out of B into P, or down, out of P into B. Then

* X is pure: known to compute each lane's result from that lane's own registers (a branch changes which lanes
  run, so no vote, shuffle or matrix product), no memory, no guard, of fixed latency, general registers and
  predicates only, and no register that asynchronous products, copies, fences, pinned instructions or
  operations across lanes touch;
* between its old and its new place, along P and then B, stands no fence but P's own branch or EXIT, and
  nothing that reads or writes what X writes, or writes what X reads (the branch's predicate counts);
* what X writes is dead on entry of every other successor of P.

Any path that goes from P to B runs X once, before and after, with the same operands, and nothing in between
can tell when. Any path that leaves P otherwise runs X once more or once less, and its result is not read.
So each step computes the same, on every path, and so does the chain.

Blocks, fences, branches and their targets must correspond; a branch or BSSY may have another offset, where
the disassembler shows the start of the same block as its target.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from sassafras.sass import Function, Instruction
from sassafras.sass.control import CONTROL_MASK

from . import operands, words
from .effects import Effects
from .graph import GraphBlock
from .report import Violation

_LABEL = re.compile(r"`\(([^)]+)\)")
#: bits of BRA that hold its offset (read off 18 branches: bits 16-23, then 34-81)
_OFFSET_LOW = 0xFF << 16 | (1 << 64) - (1 << 34)
_OFFSET_HIGH = (1 << 18) - 1
#: bits of BSSY that hold its offset (read off 40 of them), all in the lower word
_BSSY_OFFSET = 0xFFFFFFFF << 32
#: opcodes of BRA and BSSY, bits 0-11: they hold an offset from their own place
AIMED = (0x947, 0x945)
#: what may end a block that something moves over
_ENDS = ("BRA", "EXIT")
#: with these, addresses may stand in registers
_ADDRESSES = frozenset(
    ["CALL", "RET", "LEPC", "BRX", "BRXU", "JMX", "JMXU", "JMP", "RTT", "BREAK", "WARPSYNC"]
)


@dataclass(frozen=True, slots=True)
class Reading:
    """A program as the validator reads it: instructions, effects, which are fences, pinned, pure; blocks."""

    function: Function
    effects: Sequence[Effects]
    fence: Sequence[bool]
    pure: Sequence[bool]
    blocks: Sequence[GraphBlock]


def match(original: Function, copy: Function) -> list[int] | None:
    """For each place of the copy the original's instruction, or None where other words stand there."""
    found, failed = words.match(map(_word, copy.instructions), map(_word, original.instructions))
    return found if failed < 0 and len(found) == len(original) else None


def _word(i: Instruction) -> tuple[int, int]:
    low, high = i.low, i.high & ~CONTROL_MASK
    if i.base == "BRA":
        low, high = low & ~_OFFSET_LOW, high & ~_OFFSET_HIGH
    elif i.base == "BSSY":
        low &= ~_BSSY_OFFSET
    return low, high


def differences(
    one: Reading, two: Reading, place: Sequence[int], untouchable: frozenset[int]
) -> list[Violation]:
    """Why `two` is not `one` with instructions moved over branches; empty where it is.

    Args:
        one, two: original and copy.
        place: for each place of the copy, the original's instruction.
        untouchable: registers that may be in use at times that no distance tells.
    """
    found = _skeleton(one, two, place)
    if found:
        return found
    home = {n: b for b, block in enumerate(one.blocks) for n in range(block.start, block.end)}
    target = {place[p]: b for b, block in enumerate(two.blocks) for p in range(block.start, block.end)}
    wanted = [[place[p] for p in range(block.start, block.end)] for block in two.blocks]
    lists = [list(range(block.start, block.end)) for block in one.blocks]
    movers = sorted(n for n in home if home[n] != target[n])
    # upwards those that stand first go first, downwards those that stand last
    chain = [n for n in movers if target[n] < home[n]]
    chain += [n for n in reversed(movers) if target[n] > home[n]]
    for x in chain:
        why = _move(one, lists, wanted, x, home[x], target[x], untouchable)
        if why:
            return [Violation.at("moves", one.function.instructions[x], why)]
    for mine, theirs in zip(lists, wanted, strict=True):
        if mine != theirs:
            n = next(a for a, b in zip(mine, theirs, strict=True) if a != b)
            return [Violation.at("moves", one.function.instructions[n], "another order within its block")]
    return []


def _skeleton(one: Reading, two: Reading, place: Sequence[int]) -> list[Violation]:
    """Blocks, successors, fences, and the targets of everything that names one."""
    if len(one.blocks) != len(two.blocks) or any(
        a.follow != b.follow for a, b in zip(one.blocks, two.blocks, strict=True)
    ):
        return [Violation("moves", "cubin", "another control-flow graph")]
    for number, (mine, theirs) in enumerate(zip(one.blocks, two.blocks, strict=True)):
        fences = [n for n in range(mine.start, mine.end) if one.fence[n]]
        kept = [place[p] for p in range(theirs.start, theirs.end) if two.fence[p]]
        if fences != kept:
            return [Violation("moves", f"block {number}", "other fences")]
        if mine.end > mine.start and one.fence[mine.end - 1] and place[theirs.end - 1] != mine.end - 1:
            return [Violation("moves", f"block {number}", "does not end as in the original")]
    if one.function.indirect or any(i.base in _ADDRESSES for i in one.function.instructions):
        return [Violation("moves", "cubin", "addresses of code may stand in registers here")]
    mine_at, theirs_at = dict(one.function.labels), dict(two.function.labels)
    starts = {b.start: n for n, b in enumerate(one.blocks)}, {b.start: n for n, b in enumerate(two.blocks)}
    for p, j in enumerate(two.function.instructions):
        i = one.function.instructions[place[p]]
        a, b = _LABEL.findall(i.text), _LABEL.findall(j.text)
        if len(a) != len(b) or _plain(i.text) != _plain(j.text):
            return [Violation.at("moves", j, f"is {i.text} in the original")]
        for x, y in zip(a, b, strict=True):
            known = x in mine_at and y in theirs_at
            if not (known and _same(mine_at[x], theirs_at[y], starts, len(place))):
                return [Violation.at("moves", j, "names another place than in the original")]
        if not a and p != place[p] and i.base not in ("EXIT",) and one.fence[place[p]]:
            return [Violation.at("moves", j, "a fence stands elsewhere")]
    return []


def _plain(text: str) -> str:
    return _LABEL.sub("", text.replace(".reuse", ""))


def _same(mine: int, theirs: int, starts: tuple[dict[int, int], dict[int, int]], count: int) -> bool:
    """Two targets are the start of one block; or both the end of the code."""
    n, p = mine // 16, theirs // 16
    if n >= count or p >= count:
        return n == p
    return starts[0].get(n, -1) == starts[1].get(p, -2)


def _move(
    one: Reading,
    lists: list[list[int]],
    wanted: list[list[int]],
    x: int,
    source: int,
    target: int,
    untouchable: frozenset[int],
) -> str:
    """Carry out one move in `lists`, or say why it is not proved."""
    up = target < source
    head, tail = (target, source) if up else (source, target)
    before = [n for n, b in enumerate(one.blocks) if tail in b.follow]
    if before != [head] or head == tail or tail == 0:
        return "only between a block and one that has no other predecessor"
    effects = one.effects[x]
    if not one.pure[x]:
        return (
            "only what makes each lane's result of its own registers, without memory, guard or variable "
            "latency, may leave its block"
        )
    touched = effects.reads | effects.writes
    if any(r >= operands.UR for r in touched):
        return "uniform registers are shared by threads that may have parted"
    if touched & untouchable:
        return f"{operands.spell(min(touched & untouchable))} is in use by asynchronous or fixed instructions"
    # where it comes to stand: behind whatever precedes it in the copy
    ahead = set(wanted[target][: wanted[target].index(x)])
    at = max((k + 1 for k, n in enumerate(lists[target]) if n in ahead), default=0)
    old = lists[source].index(x)
    if up:
        between = [*lists[head][at:], *lists[tail][:old]]
    else:
        between = [*lists[head][old + 1 :], *lists[tail][:at]]
    ends = one.blocks[head].end - 1
    for n in between:
        i, e = one.function.instructions[n], one.effects[n]
        if one.fence[n] and not (n == ends and i.opcode in _ENDS):
            return f"passes {i.text}, a fence"
        if effects.writes & (e.reads | e.writes) or effects.reads & e.writes:
            return f"passes {i.text}, on which it depends or which depends on it"
    for other in one.blocks[head].follow:
        if other != tail and (alive := effects.writes & live(one, lists)[other]):
            return f"{operands.spell(min(alive))} is needed where the branch goes elsewhere"
    lists[source].pop(old)
    lists[target].insert(at, x)
    return ""


def live(one: Reading, lists: Sequence[Sequence[int]]) -> list[set[int]]:
    """Registers that may be read before they are overwritten for certain, on entry of each block."""
    entry: list[set[int]] = [set() for _ in lists]
    again = True
    while again:
        again = False
        for b in range(len(lists) - 1, -1, -1):
            state = set().union(*(entry[m] for m in one.blocks[b].follow)) if one.blocks[b].follow else set()
            for n in reversed(lists[b]):
                e = one.effects[n]
                if e.never:
                    continue
                if e.guard is None:
                    state -= e.writes
                state |= e.reads
            if state != entry[b]:
                entry[b] = state
                again = True
    return entry

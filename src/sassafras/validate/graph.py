"""The validator's own control-flow graph: blocks between real branch targets, and every edge there may be."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sassafras.core.errors import DisassemblyError
from sassafras.sass import Instruction

from .classes import ENDS_BLOCK

_LABEL = re.compile(r"`\(([^)]+)\)")
_STOPS = frozenset(["CALL", "BRA", "BRX", "BRXU", "JMP", "JMX", "JMXU", "RET", "EXIT", "KILL", "RTT"])


@dataclass(frozen=True, slots=True)
class GraphBlock:
    """Positions ``start <= i < end`` and the numbers of the blocks that may follow."""

    start: int
    end: int
    follow: tuple[int, ...]


def build(
    code: Sequence[Instruction],
    labels: Mapping[str, int],
    indirect: Mapping[int, tuple[int, ...]],
    system: frozenset[int] = frozenset(),
) -> tuple[GraphBlock, ...]:
    """Blocks in address order. Where a target is unknown, every label is one. Calls of functions that are not
    in the cubin (`system`, positions) go on behind themselves.

    Raises:
        DisassemblyError: a branch leaves the function.
    """
    count = len(code)
    named = {name: at // 16 for name, at in labels.items()}
    # labels that nvdisasm makes up begin with a dot; the kernel itself stands at 0
    functions = sorted({t for name, t in named.items() if not name.startswith(".") and 0 < t < count})
    targets: list[list[int] | None] = []
    for i in code:
        found: list[int] | None = [named[x] for x in _LABEL.findall(i.text) if x in named]
        if i.base in ("BRX", "BRXU", "JMX", "JMXU"):
            found = [t // 16 for t in indirect.get(i.offset, ())]
            if not found:
                raise DisassemblyError("indirect branch without a list of its targets", where=str(i))
        elif i.index in system:
            found = [i.index + 1]
        elif i.base == "CALL" and i.operands[0][0] == "R" and functions:
            found = functions  # a function pointer
        elif i.base in ("BRA", "JMP", "CALL") and (not found or i.operands[0][0] == "R"):
            found = None  # through a register, or to a label we do not have
        elif i.base == "RET":
            found = []
        if found is not None and any(t >= count for t in found):
            raise DisassemblyError("branch target outside the function", where=str(i))
        targets.append(found)
    anywhere = sorted({t for t in named.values() if t < count})
    returns = [i.index + 1 for i in code if i.base == "CALL" and i.index + 1 < count]
    leaders = {0, *returns}
    for i, found in zip(code, targets, strict=True):
        leaders.update(anywhere if found is None else found)
        if i.base in ENDS_BLOCK and i.index + 1 < count:
            leaders.add(i.index + 1)
    starts = sorted(leaders)
    number = {start: n for n, start in enumerate(starts)}
    ends = [*starts[1:], count]
    follow: list[set[int]] = []
    for end in ends:
        last, found = code[end - 1], targets[end - 1]
        after: set[int] = set()
        if last.base in ENDS_BLOCK and last.base not in ("EXIT", "KILL"):
            after.update(anywhere + returns if found is None else found)
        conditional = last.guard not in ("", "PT", "UPT") or (last.base == "BRA" and _conditional(last))
        if (last.base not in _STOPS or conditional) and end < count:
            after.add(end)
        follow.append({number[t] for t in after})
    _join(code, targets, starts, ends, number, follow)
    _return(code, targets, ends, number, follow, system)
    return tuple(
        GraphBlock(*row) for row in zip(starts, ends, (tuple(sorted(f)) for f in follow), strict=True)
    )


def _join(
    code: Sequence[Instruction],
    targets: list[list[int] | None],
    starts: list[int],
    ends: list[int],
    number: dict[int, int],
    follow: list[set[int]],
) -> None:
    """Add the edges of BSYNC: it goes on at the target of a BSSY of its barrier that reaches it.

    Which BSSY reach which BSYNC, and the edges that follow from that, are found together by iteration. A
    barrier restored by BMOV may hold any BSSY's target. A called function leaves its caller's barriers as
    it found them (it saves those that it uses), so what a barrier holds passes a CALL by.
    """
    every = {t for i, found in zip(code, targets, strict=True) if i.base == "BSSY" for t in found or ()}
    held: list[dict[str, set[int]]] = [{} for _ in starts]
    work = set(range(len(starts)))
    while work:
        n = min(work)
        work.remove(n)
        state = {k: set(v) for k, v in held[n].items()}
        for index in range(starts[n], ends[n]):
            i = code[index]
            if i.base == "BSSY":
                state[i.operands[0]] = set(targets[index] or ())
            elif i.base == "BMOV" and i.operands[0].startswith("B"):
                state[i.operands[0]] = set(every)
        last = code[ends[n] - 1]
        if last.base == "BSYNC":
            follow[n] |= {number[t] for t in state.get(last.operands[0], every if not last.operands else ())}
        onward = set(follow[n])
        if last.base == "RET":
            onward = set()
        elif last.base == "CALL" and ends[n] in number:
            onward.add(number[ends[n]])
        for m in onward:
            for barrier, known in state.items():
                if not known <= held[m].get(barrier, set()):
                    held[m].setdefault(barrier, set()).update(known)
                    work.add(m)


def _return(
    code: Sequence[Instruction],
    targets: list[list[int] | None],
    ends: list[int],
    number: dict[int, int],
    follow: list[set[int]],
    system: frozenset[int],
) -> None:
    """Add the edges of RET: from each called function back behind the calls of that function."""
    last = [code[end - 1] for end in ends]
    callers: dict[int, set[int]] = {}
    for n, i in enumerate(last):
        if i.base == "CALL" and i.index not in system and ends[n] in number:
            for entry in follow[n]:
                callers.setdefault(entry, set()).add(number[ends[n]])
    every = {back for known in callers.values() for back in known}
    claimed: set[int] = set()
    edges: dict[int, set[int]] = {}
    for entry, back in callers.items():
        seen, work = {entry}, [entry]
        while work:
            n = work.pop()
            if last[n].base == "RET":
                edges.setdefault(n, set()).update(back)
                claimed.add(n)
            over = {number[ends[n]]} if last[n].base == "CALL" and ends[n] in number else follow[n]
            if last[n].base == "CALL" and last[n].guard:
                over = over | follow[n]
            work += over - seen
            seen |= over
    for n, i in enumerate(last):
        if i.base == "RET":
            follow[n] |= edges[n] if n in claimed else every


def _conditional(branch: Instruction) -> bool:
    """BRA.DIV, BRA.CONV, BRA.U.ANY, or a predicate among the operands."""
    return "." in branch.opcode or len(branch.operands) > 1

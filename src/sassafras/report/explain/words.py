"""Moves in words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from sassafras.sass import Function

from .classes import opcodes
from .explanation import ExplainedPart
from .timeline import SCOREBOARD, Wait

#: how many waits a sentence names
_NAMED = 2
_FOR = {
    "scoreboard": "for results of others (scoreboards)",
    "stall count": "by stall counts",
    "copy group": "for asynchronous copies",
    "HGMMA group": "for groups of HGMMAs",
    "barrier": "at barriers",
    "pipe busy": "for busy pipes",
    "memory queue full": "for the memory queue",
    "register banks": "for register banks",
    "not selected": "for its turn among the warps",
}


def short(function: Function, x: int) -> str:
    """Opcode and first operand, ``LDG.E.128 R8``; for stores and the like the address."""
    i = function.instructions[x]
    first = re.sub(r"desc\[[^]]*\]", "", i.operands[0]).replace(".reuse", "") if i.operands else ""
    return f"{i.opcode} {first}".strip()


def named(function: Function, which: Sequence[int], most: int = 3) -> str:
    """Several instructions, shortened."""
    names = [short(function, x) for x in which[:most]]
    if len(which) > most:
        names.append(f"{len(which) - most} more")
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]


def moved(function: Function, x: int, over: Sequence[int], hoisted: bool) -> str:
    """``LDG.E R4 hoisted above 2 instructions (2 FMNMX)``."""
    text = f"{short(function, x)} {'hoisted above' if hoisted else 'sunk below'} "
    text += f"{len(over)} instruction{'s' if len(over) != 1 else ''}"
    return f"{text} ({opcodes(function, over)})" if over else text


def restalled(function: Function, parts: Sequence[ExplainedPart], block: int) -> str:
    """Stall counts of a block that were changed."""
    if len(parts) > 1:
        return f"{len(parts)} stall counts changed in block {block}"
    (one,) = parts
    who, way = short(function, one.instruction), "raised" if one.stall_after > one.stall_before else "lowered"
    return f"stall count of {who} {way} from {one.stall_before} to {one.stall_after}, block {block}"


def shrunk(without: Mapping[Wait, float], present: Mapping[Wait, float]) -> list[tuple[Wait, float, float]]:
    """Waits that are shorter with the move: (wait, before, after), the largest difference first."""
    found = [
        (w, cycles, present.get(w, 0.0)) for w, cycles in without.items() if present.get(w, 0.0) < cycles
    ]
    return sorted(found, key=lambda row: (row[2] - row[1], row[0]))


def why(
    function: Function,
    moved: Sequence[int],
    without: Mapping[Wait, float],
    present: Mapping[Wait, float],
    gained: bool,
) -> str:
    """Why it helps: the waits that it shortened itself, else what warps wait less for in all.

    Args:
        function: the code.
        moved: the move's instructions.
        without, present: waits of a traced warp without and with the move.
        gained: whether the move made the kernel faster.
    """
    if not gained:
        return "it makes no difference by itself"
    total = sum(without.values()) - sum(present.values())
    mine = [
        row
        for row in shrunk(without, present)
        if row[1] - row[2] >= max(1.0, total / 4) and (row[0].instruction in moved or row[0].setter in moved)
    ]
    if mine:
        return "; ".join(_wait(function, moved, *row) for row in mine[:_NAMED])
    if total < 1.0:
        return "the traced warps wait as long as before: it changes how the warps of an SM take turns"
    net: Counter[str] = Counter()
    for waits, sign in ((without, 1), (present, -1)):
        for wait, cycles in waits.items():
            net[_reason(wait)] += sign * cycles  # type: ignore[assignment]
    named = [(reason, cut) for reason, cut in net.most_common(_NAMED) if cut >= max(0.6, total / 4)]
    parts = " and ".join(f"{_cycles(cut)} less {_FOR.get(reason, reason)}" for reason, cut in named)
    return f"a warp waits {_cycles(total)} less in all{', ' if parts else ''}{parts}"


def _reason(wait: Wait) -> str:
    return SCOREBOARD.strip() if wait.reason.startswith(SCOREBOARD) else wait.reason


def _cycles(count: float) -> str:
    return f"{round(count)} cycle{'' if round(count) == 1 else 's'}"


def _wait(function: Function, moved: Sequence[int], wait: Wait, before: float, after: float) -> str:
    who, cycles = short(function, wait.instruction), _cycles(before - after)
    if wait.instruction in moved and len(moved) == 1:
        who = "it"
    if wait.setter >= 0:
        source = "it" if wait.setter in moved and len(moved) == 1 else short(function, wait.setter)
        end = ": its latency is now covered" if after < 0.1 * before and wait.setter in moved else ""
        return f"{who} waits {cycles} less for {source} ({wait.reason}){end}"
    return f"{who} waits {cycles} less {_FOR.get(wait.reason, 'on ' + wait.reason)}"

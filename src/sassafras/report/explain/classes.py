"""Classes of moves by name; reports and agents share them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum

from sassafras.sass import Function, Instruction, Memory, Queue
from sassafras.sass.registers import GPR, PRED
from sassafras.schedule.tables import touches_memory

_TENSOR = (Queue.TENSOR, Queue.WGMMA)
_ADDRESS = re.compile(r"\[\s*(U?R\d+)(?:\.64|\.U32|\.X\d+)*")
#: how far a neighbour may stand for two instructions to count as interleaved
_NEAR = 2


class MoveClass(StrEnum):
    """The class of a move. *Hoist* is towards the start of its block, *sink* towards its end."""

    HOIST_LOAD = "hoist load"
    SINK_LOAD = "sink load"
    HOIST_STORE = "hoist store"
    SINK_STORE = "sink store"
    HOIST_COPY = "hoist asynchronous copy"
    SINK_COPY = "sink asynchronous copy"
    HOIST_SHARED_LOAD = "hoist shared load"
    SINK_SHARED_LOAD = "sink shared load"
    HOIST_SHARED_STORE = "hoist shared store"
    SINK_SHARED_STORE = "sink shared store"
    HOIST_SHUFFLE = "hoist shuffle"
    SINK_SHUFFLE = "sink shuffle"
    PAIR_LOADS = "pair loads"
    PAIR_STORES = "pair stores"
    INTERLEAVE_TENSOR = "interleave tensor and memory"
    HOIST_TENSOR = "hoist tensor operation"
    SINK_TENSOR = "sink tensor operation"
    HOIST_ADDRESS = "hoist address arithmetic"
    SINK_ADDRESS = "sink address arithmetic"
    DELAY_WAIT = "delay a wait"
    ADVANCE_WAIT = "advance a wait"
    HOIST_LATENCY = "hoist variable-latency operation"
    SINK_LATENCY = "sink variable-latency operation"
    HOIST_ARITHMETIC = "hoist arithmetic"
    SINK_ARITHMETIC = "sink arithmetic"
    RAISE_STALL = "raise stall count"
    LOWER_STALL = "lower stall count"


def moved_class(function: Function, before: Sequence[int], after: Sequence[int], x: int) -> MoveClass:
    """The class of moving instruction `x` within its block.

    Args:
        function: the code.
        before, after: the block's instructions (original indices) without and with the move.
        x: the instruction.
    """
    code = function.instructions
    i = code[x]
    up = went_up(before, after, x)
    if touches_memory(i) or i.op.queue in _TENSOR:
        if _interleaved(code, after, x) and not _interleaved(code, before, x):
            return MoveClass.INTERLEAVE_TENSOR
        if i.op.queue in _TENSOR:
            return _moved(up, "tensor operation")
    if touches_memory(i):
        if _paired(code, after, x) and not _paired(code, before, x):
            return MoveClass.PAIR_STORES if i.op.writes_memory else MoveClass.PAIR_LOADS
        return _moved(up, _memory_operation(i))
    if i.control.wait_mask and not i.op.variable:
        return MoveClass.ADVANCE_WAIT if up else MoveClass.DELAY_WAIT
    if _feeds_address(code, after, x):
        return _moved(up, "address arithmetic")
    if i.base == "SHFL":
        return _moved(up, "shuffle")
    return _moved(up, "variable-latency operation" if i.op.variable else "arithmetic")


def _moved(up: bool, what: str) -> MoveClass:
    return MoveClass(f"{'hoist' if up else 'sink'} {what}")


def went_up(before: Sequence[int], after: Sequence[int], x: int) -> bool:
    """Does `x` stand nearer to the start of its block, by those that it passed?"""
    above, below = passed(before, after, x)
    return len(above) >= len(below) if above or below else after.index(x) <= before.index(x)


def passed(before: Sequence[int], after: Sequence[int], x: int) -> tuple[list[int], list[int]]:
    """Instructions that `x` went above, and those that it went below."""
    was, now = set(before[: before.index(x)]), set(after[: after.index(x)])
    return [y for y in before if y in was - now], [y for y in before if y in now - was]


def opcodes(function: Function, which: Sequence[int], most: int = 3) -> str:
    """``6 FFMA, 4 LDS and 3 others``."""
    counted = Counter(function.instructions[x].base for x in which).most_common()
    parts = [f"{n} {name}" for name, n in counted[:most]]
    if rest := sum(n for _, n in counted[most:]):
        parts.append(f"{rest} other{'s' if rest > 1 else ''}")
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1] if parts else ""


def _memory_operation(i: Instruction) -> str:
    if i.base == "LDGSTS":
        return "asynchronous copy"
    kind = "store" if i.op.writes_memory else "load"
    return f"shared {kind}" if i.op.memory is Memory.SHARED else kind


def _interleaved(code: Sequence[Instruction], order: Sequence[int], x: int) -> bool:
    """Does it stand between operations of the other kind, memory among tensor or the reverse?"""
    at = order.index(x)
    other = touches_memory if code[x].op.queue in _TENSOR else lambda i: i.op.queue in _TENSOR
    up = any(other(code[y]) for y in order[max(0, at - _NEAR) : at])
    down = any(other(code[y]) for y in order[at + 1 : at + 1 + _NEAR])
    return up and down


def _paired(code: Sequence[Instruction], order: Sequence[int], x: int) -> bool:
    """Is a neighbour the same operation from the same address register?"""
    at = order.index(x)
    mine = _base_register(code[x])
    neighbours = [order[n] for n in (at - 1, at + 1) if 0 <= n < len(order)]
    return mine is not None and any(
        code[y].base == code[x].base and _base_register(code[y]) == mine for y in neighbours
    )


def _base_register(i: Instruction) -> str | None:
    found = _ADDRESS.findall(i.text)
    return found[-1] if found else None


def _feeds_address(code: Sequence[Instruction], order: Sequence[int], x: int) -> bool:
    """Is its result the address of the next memory operation that reads it?"""
    written = {r for r in code[x].writes if GPR <= r < PRED}
    at = order.index(x)
    for y in order[at + 1 :]:
        if written & code[y].reads:
            base = _base_register(code[y]) if touches_memory(code[y]) else None
            return (
                base is not None
                and base.startswith("R")
                and bool({int(base[1:]), int(base[1:]) + 1} & written)
            )
    return False

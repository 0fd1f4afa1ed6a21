"""Distances that follow from no register: how close ptxas issues instructions of given classes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from ..control import SCOREBOARDS
from ..instruction import Instruction
from ..opcodes import Memory, Op, Queue
from ..program import Function
from .files import Key
from .flow import HORIZON, issue_cycles
from .keys import opcode_key

#: opcode keys are paired with one another only inside these queues (few keys, shared issue ports)
_PAIRED = frozenset([Queue.TENSOR, Queue.XU, Queue.CONST, Queue.SPECIAL, Queue.FP64])


@lru_cache(maxsize=512)
def classes(op: Op) -> tuple[str, ...]:
    """Classes of an opcode: its queue, and ``@memory`` for loads, stores and atomics of a thread."""
    memory = op.memory not in (Memory.NONE, Memory.CONSTANT) and op.queue in (Queue.LSU, Queue.MIO)
    return (f"@{op.queue}", "@memory") if memory else (f"@{op.queue}",)


class _Last:
    """When each class was last issued, going back over the edges that fall through only."""

    def __init__(self) -> None:
        self.time = 0
        self.classes: dict[str, int] = {}
        self.fences: dict[str, int] = {}  # by opcode key
        self.keys: dict[Queue, dict[str, int]] = {}
        self.set: dict[int, tuple[int, str]] = {}  # scoreboard -> time, opcode key
        self.waited = -HORIZON

    def before(self, times: dict[str, int]) -> list[tuple[str, int]]:
        """What was issued within the horizon and with no wait since: (name, cycles ago)."""
        oldest = max(self.time - HORIZON, self.waited)
        return [(name, self.time - time) for name, time in times.items() if time > oldest]


def spacing(function: Function, reachable: list[bool]) -> Iterator[tuple[Key, int, int]]:
    """Yield (row key, cycles, instruction index) of one function.

    Pairs are looked for in the order of the text, across block edges that may fall through (a real path), not
    across jumps. Where something between the two (or the second one itself) waits for a scoreboard, their
    stall counts tell nothing.
    """
    last = _Last()
    for block in function.blocks:
        if not reachable[block.index]:
            last = _Last()
            continue
        for i in function.instructions[block.start : block.end]:
            yield from _one(i, last)
            last.time += issue_cycles(i.control)
        if block.index + 1 not in block.successors:
            last = _Last()


def _one(i: Instruction, last: _Last) -> Iterator[tuple[Key, int, int]]:
    key, now = opcode_key(i.opcode), last.time
    if i.control.stall:
        yield ("issue", key, "", "*", ""), i.control.stall, i.index
    for barrier in range(SCOREBOARDS):
        if i.control.wait_mask >> barrier & 1 and barrier in last.set:
            time, setter = last.set[barrier]
            if now - time < HORIZON:
                yield ("issue", "@setter", "", "@waiter", ""), now - time, i.index
                yield ("issue", setter, "", "@waiter", ""), now - time, i.index
    if i.control.wait_mask:
        last.waited = now
    if i.guard == "!PT":
        return
    own = classes(i.op)
    for second in own:
        for first, cycles in last.before(last.classes) + last.before(last.fences):
            yield ("issue", first, "", second, ""), cycles, i.index
    if i.op.queue in _PAIRED:
        keys = last.keys.setdefault(i.op.queue, {})
        for first, cycles in last.before(keys):
            yield ("issue", first, "", key, ""), cycles, i.index
        keys[key] = now
    elif i.op.queue == Queue.CONTROL:
        last.fences[key] = now
    for name in own:
        last.classes[name] = now
    for barrier_set in (i.control.write_barrier, i.control.read_barrier):
        # USETMAXREG has a stall count of 0: it is not known what that means
        if barrier_set is not None and i.control.stall:
            last.set[barrier_set] = (now, key)

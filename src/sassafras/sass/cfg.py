"""Basic blocks and the edges between them, for one function."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sassafras.core.errors import DisassemblyError

from .instruction import Instruction
from .opcodes import BRANCHES

_TARGET = re.compile(r"`\(([^)]+)\)")


@dataclass(frozen=True, slots=True)
class Block:
    """Instructions ``start <= i < end`` that run in a row.

    Attributes:
        index: position in the list of blocks.
        start, end: instruction indices.
        successors: indices of blocks that may follow.
        exits: True when control may leave the function (EXIT, RET, an unknown target).
    """

    index: int
    start: int
    end: int
    successors: tuple[int, ...]
    exits: bool


def _targets(i: Instruction, labels: dict[str, int]) -> list[int]:
    found = []
    for label in _TARGET.findall(i.text):
        if label in labels:
            found.append(labels[label] // 16)
    return found


def build(
    instructions: tuple[Instruction, ...], labels: dict[str, int], indirect: dict[int, tuple[int, ...]]
) -> tuple[Block, ...]:
    """Split into basic blocks.

    A CALL ends its block: its successors are the callee's entry and the return point (the callee's RET has
    the return points of every CALL as successors). BSYNC goes on after itself or at the target of a BSSY of
    its barrier that reaches it. A label that cannot be resolved, or an indirect branch without a target
    list, makes every block with a label a successor: conservative, never wrong.

    Args:
        instructions: the function, in order.
        labels: label -> byte offset.
        indirect: offset of an indirect branch -> offsets of its targets (`.nv.info`).

    Raises:
        DisassemblyError: a branch goes outside the function.
    """
    count = len(instructions)
    labelled = sorted({at // 16 for at in labels.values() if at // 16 < count})
    leaders = {0, *labelled}
    for i in instructions:
        if i.base in BRANCHES and i.index + 1 < count:
            leaders.add(i.index + 1)
        for target in _targets(i, labels):
            if target >= count:
                raise DisassemblyError("branch target outside the function", where=str(i))
            leaders.add(target)
    for targets in indirect.values():
        leaders.update(t // 16 for t in targets if t // 16 < count)
    starts = sorted(leaders)
    block_of = {start: n for n, start in enumerate(starts)}
    returns = [block_of[i.index + 1] for i in instructions if i.base == "CALL" and i.index + 1 < count]
    everywhere = tuple(sorted({block_of[t] for t in labelled} | set(returns)))
    syncs: dict[str, list[int]] = {}
    for i in instructions:
        if i.base == "BSSY" and i.operands:
            syncs.setdefault(i.operands[0], []).extend(_targets(i, labels))
    blocks = []
    for n, start in enumerate(starts):
        end = starts[n + 1] if n + 1 < len(starts) else count
        last = instructions[end - 1]
        follow, exits = _successors(last, labels, indirect, everywhere, returns, syncs, block_of)
        falls = last.base not in _NO_FALL_THROUGH or last.guard not in ("", "PT")
        if falls and n + 1 < len(starts):
            follow.add(n + 1)
        elif falls:
            exits = True
        blocks.append(Block(n, start, end, tuple(sorted(follow)), exits))
    return _synchronise(tuple(blocks), instructions, labels, syncs, block_of)


def _synchronise(
    blocks: tuple[Block, ...],
    instructions: tuple[Instruction, ...],
    labels: dict[str, int],
    syncs: dict[str, list[int]],
    block_of: dict[int, int],
) -> tuple[Block, ...]:
    """Give each BSYNC the targets of those BSSYs of its barrier that reach it.

    Barrier registers are few and reused, so that all BSSYs of one barrier would join unrelated regions. A
    barrier that BMOV restores, or that no BSSY is seen to reach, keeps all targets.
    """
    if not syncs:
        return blocks
    every = {barrier: frozenset(block_of[t] for t in targets) for barrier, targets in syncs.items()}
    last = [instructions[b.end - 1].base for b in blocks]
    follow = [
        ({b.index + 1} & set(b.successors)) if last[b.index] == "BSYNC" else set(b.successors) for b in blocks
    ]
    entry: list[dict[str, frozenset[int]] | None] = [None] * len(blocks)
    entry[0] = {}
    work = {0}
    while work:
        number = work.pop()
        state = dict(entry[number] or {})
        for i in instructions[blocks[number].start : blocks[number].end]:
            barrier = i.operands[0] if i.operands else ""
            if i.base == "BSSY":
                state[barrier] = frozenset(block_of[t] for t in _targets(i, labels))
            elif i.base == "BMOV" and barrier in every:
                state[barrier] = every[barrier]
            elif i.base == "BSYNC":
                follow[number] |= state.get(barrier) or every.get(barrier, frozenset())
        for successor in follow[number]:
            known = entry[successor]
            merged = dict(known or {})
            for barrier, targets in state.items():
                merged[barrier] = merged.get(barrier, frozenset()) | targets
            if known is None or merged != known:
                entry[successor] = merged
                work.add(successor)
    return tuple(
        b
        if entry[b.index] is None
        else Block(b.index, b.start, b.end, tuple(sorted(follow[b.index])), b.exits)
        for b in blocks
    )


_NO_FALL_THROUGH = frozenset(["BRA", "BRX", "BRXU", "JMP", "JMX", "JMXU", "RET", "EXIT", "KILL", "RTT"])


def _successors(
    last: Instruction,
    labels: dict[str, int],
    indirect: dict[int, tuple[int, ...]],
    everywhere: tuple[int, ...],
    returns: list[int],
    syncs: dict[str, list[int]],
    block_of: dict[int, int],
) -> tuple[set[int], bool]:
    name = last.base
    if name in ("EXIT", "KILL", "RTT", "BPT"):
        return set(), True
    if name == "RET":
        return set(returns), True
    if name in ("BRA", "JMP", "CALL"):
        targets = _targets(last, labels)
        if targets:
            return {block_of[t] for t in targets}, False
        # a conditional branch on uniform state always names its label; anything else is unknown
        return set(everywhere), True
    if name == "BSYNC":
        barrier = last.operands[0] if last.operands else ""
        return {block_of[t] for t in syncs.get(barrier, ())}, False
    if name in ("BRX", "BRXU", "JMX", "JMXU"):
        known = indirect.get(last.offset, ())
        return ({block_of[t // 16] for t in known} if known else set(everywhere)), not known
    return set(), False

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


_NO_FALL_THROUGH = frozenset(["BRA", "BRX", "BRXU", "JMP", "JMX", "JMXU", "RET", "EXIT", "KILL", "RTT"])


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
    return _Builder(instructions, labels, indirect).blocks()


class _Builder:
    def __init__(
        self,
        instructions: tuple[Instruction, ...],
        labels: dict[str, int],
        indirect: dict[int, tuple[int, ...]],
    ) -> None:
        self.code, self.labels, self.indirect = instructions, labels, indirect
        count = len(instructions)
        labelled = sorted({at // 16 for at in labels.values() if at // 16 < count})
        leaders = {0, *labelled}
        for i in instructions:
            if i.base in BRANCHES and i.index + 1 < count:
                leaders.add(i.index + 1)
            for target in self._targets(i):
                if target >= count:
                    raise DisassemblyError("branch target outside the function", where=str(i))
                leaders.add(target)
        for targets in indirect.values():
            leaders.update(t // 16 for t in targets if t // 16 < count)
        self.starts = sorted(leaders)
        self.ends = [*self.starts[1:], count]
        self.number = {start: n for n, start in enumerate(self.starts)}
        self.returns = {
            self.number[i.index + 1] for i in self.code if i.base == "CALL" and i.index + 1 < count
        }
        self.everywhere = {self.number[t] for t in labelled} | self.returns
        #: by barrier, where its BSSYs lead to
        self.joins: dict[str, set[int]] = {}
        for i in instructions:
            if i.base == "BSSY" and i.operands:
                self.joins.setdefault(i.operands[0], set()).update(self._blocks(i))

    def _targets(self, i: Instruction) -> list[int]:
        return [self.labels[x] // 16 for x in _TARGET.findall(i.text) if x in self.labels]

    def _blocks(self, i: Instruction) -> set[int]:
        return {self.number[t] for t in self._targets(i)}

    def blocks(self) -> tuple[Block, ...]:
        """See `build`."""
        follow: list[set[int]] = []
        leaves: list[bool] = []
        for n, end in enumerate(self.ends):
            last = self.code[end - 1]
            after, exits = self._successors(last)
            falls = last.base not in _NO_FALL_THROUGH or last.guard not in ("", "PT")
            if falls and n + 1 < len(self.ends):
                after.add(n + 1)
            follow.append(after)
            leaves.append(exits or (falls and n + 1 == len(self.ends)))
        if self.joins:
            self._synchronise(follow)
        rows = zip(self.starts, self.ends, follow, leaves, strict=True)
        return tuple(Block(n, a, b, tuple(sorted(f)), e) for n, (a, b, f, e) in enumerate(rows))

    def _successors(self, last: Instruction) -> tuple[set[int], bool]:
        """Blocks that an instruction at the end of its block leads to, and whether it may leave the function;
        BSYNC to all joins of its barrier."""
        name = last.base
        if name in ("EXIT", "KILL", "RTT", "BPT"):
            return set(), True
        if name == "RET":
            return set(self.returns), True
        if name in ("BRA", "JMP", "CALL"):
            # a conditional branch on uniform state always names its label; anything else is unknown
            found = self._blocks(last)
            return found or set(self.everywhere), not found
        if name == "BSYNC":
            return set(self.joins.get(last.operands[0] if last.operands else "", ())), False
        if name in ("BRX", "BRXU", "JMX", "JMXU"):
            found = {self.number[t // 16] for t in self.indirect.get(last.offset, ())}
            return found or set(self.everywhere), not found
        return set(), False

    def _synchronise(self, follow: list[set[int]]) -> None:
        """Leave each BSYNC the targets of those BSSYs of its barrier that reach it, in place.

        Barrier registers are few and reused, so that all BSSYs of one barrier would join unrelated regions. A
        barrier that BMOV restores, or that no BSSY is seen to reach, keeps all targets.
        """
        found = [
            {n + 1} & after if self.code[end - 1].base == "BSYNC" else set(after)
            for n, (end, after) in enumerate(zip(self.ends, follow, strict=True))
        ]
        entry: list[dict[str, frozenset[int]] | None] = [None] * len(follow)
        entry[0] = {}
        work = {0}
        while work:
            n = work.pop()
            state = dict(entry[n] or {})
            for i in self.code[self.starts[n] : self.ends[n]]:
                barrier = i.operands[0] if i.operands else ""
                every = frozenset(self.joins.get(barrier, ()))
                if i.base == "BSSY":
                    state[barrier] = frozenset(self._blocks(i))
                elif i.base == "BMOV" and every:
                    state[barrier] = every
                elif i.base == "BSYNC":
                    found[n] |= state.get(barrier) or every
            for m in found[n]:
                known = entry[m]
                merged = dict(known or {})
                for barrier, targets in state.items():
                    merged[barrier] = merged.get(barrier, frozenset()) | targets
                if known is None or merged != known:
                    entry[m] = merged
                    work.add(m)
        for n, state_there in enumerate(entry):
            if state_there is not None:
                follow[n] = found[n]

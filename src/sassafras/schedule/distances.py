"""Minimum issue distances between pairs of instructions, from the latency table.

A distance is counted in issue cycles: the sum of the stall counts from the first instruction (included) to
the second (excluded). Waiting on scoreboards only adds to it. Where the table does not know a pair, the
original distance is kept, or what the table holds for certainly enough, up to `HORIZON`: no fixed-latency
result takes longer than that (the longest seen is a HMMA's, 35 cycles).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from sassafras.sass import Instruction, Queue
from sassafras.sass.latency import LatencyTable, opcode_key, slots
from sassafras.sass.opcodes import BRANCHES
from sassafras.sass.registers import UGPR, UPRED

#: cycles after which no fixed-latency effect is still under way
HORIZON = 64

RAW, WAW, WAR = "raw", "waw", "war"


class Distances:
    """Looks up pairs of instructions, with the operand slots of each worked out once."""

    def __init__(self, instructions: tuple[Instruction, ...], table: LatencyTable) -> None:
        self.code = instructions
        self.table = table
        self.keys = [opcode_key(i.opcode) for i in instructions]
        self._reads: list[dict[int, list[str]]] = []
        self._writes: list[dict[int, list[str]]] = []
        for i in instructions:
            reads: dict[int, list[str]] = {}
            writes: dict[int, list[str]] = {}
            for use in slots(i):
                (writes if use.write else reads).setdefault(use.register, []).append(use.slot)
            if i.base in ("IMAD", "UIMAD") and "HI" in i.opcode.split("."):
                # the addend of the high half is a 64-bit pair
                for register in [r for r, names in reads.items() if "3" in names]:
                    reads.setdefault(register + 1, []).append("3+1")
            if i.op.queue is Queue.TMA or i.base == "CCTL":
                # bulk copies read more uniform registers than they print, and the validator does not read
                # the address of CCTL: nothing is known of when
                reads = {r: ["?"] for r in reads}
            elif "UR" not in i.text:
                # before sm_90 the descriptor of an access is not printed: nothing is known of its latency
                reads.update({r: ["?"] for r in reads if UGPR <= r < UPRED})
            self._reads.append(reads)
            self._writes.append(writes)
        self._ask = lru_cache(maxsize=None)(table.needed)

    def least(self, kind: str, a: int, b: int, registers: Iterable[int], original: int) -> int:
        """Cycles that must lie between instructions `a` and `b`.

        Args:
            kind: ``raw``, ``waw`` or ``war`` (then `a` reads and `b` writes).
            a, b: instruction indices, in program order.
            registers: what they conflict on.
            original: their distance in the original schedule, which is always enough.
        """
        from_a = self._reads[a] if kind == WAR else self._writes[a]
        to_b = self._reads[b] if kind == RAW else self._writes[b]
        need, most = 1, min(original, HORIZON)
        for register in registers:
            for p in from_a.get(register, ["?"]):
                for c in to_b.get(register, ["?"]):
                    if p == "?" or c == "?":
                        return most  # an operand that the text does not explain
                    cycles = self._ask(kind, self.keys[a], p, self.keys[b], c, most)
                    need = max(need, cycles, self._floor(kind, a, b, register))
                    if need >= most:
                        return most
        return need

    def _floor(self, kind: str, a: int, b: int, register: int) -> int:
        """Rules found the hard way, should the table have too few samples to show them."""
        first, second = self.code[a], self.code[b]
        if kind == WAR:
            if first.op.queue is Queue.UNIFORM and UGPR <= register < UPRED:
                return 3 if second.base in ("ULDC", "UMOV") else 2
            if first.op.queue is Queue.TENSOR:
                return 7
            if second.op.variable and not first.op.variable:
                return 3 if first.base == "F2FP" else 2
        if kind == WAW and second.op.variable and not first.op.variable:
            return 6
        return 1

    def own(self, i: int) -> int:
        """The smallest stall count that an instruction may have."""
        code = self.code[i]
        if code.base in BRANCHES:
            return code.control.stall
        found = self.table.own_stall(self.keys[i])
        return code.control.stall if found is None else min(found.cycles, code.control.stall)

"""The slice of a kernel that a walk along its paths has to follow: accesses, and what they depend on.

Most instructions compute values. A walk needs the others: accesses of shared memory, waits and barriers, and
what addresses of shared memory and branches depend on.
"""

from __future__ import annotations

from collections.abc import Sequence

from sassafras.sass import Instruction

from .classes import COPIES, WARPGROUP_PRODUCTS
from .effects import Effects
from .graph import GraphBlock
from .integers import modelled
from .operands import UP, UR, Operand, Role
from .products import waits_for
from .slots import FILLS
from .spills import spills

#: threads meet here, or tell each other something: what came before is visible behind it
MEETING = COPIES | {"BAR", "ATOM", "ATOMG", "ATOMS", "RED", "REDG", "UCGABAR_WAIT", "UCGABAR_ARV", "CCTL"}
#: a set of registers as one number: bits from here on are spilled words
_SPILLED = 1024
ACCESS = frozenset(["LDS", "LDSM", "STS", "STSM", "LDGSTS"])


class Slice:
    """The slice of one kernel.

    Args:
        code, ops, effects, blocks: the kernel as the validator reads it.

    Attributes:
        ring: whether the copy engine fills shared memory, so that barriers in it matter.
        spills: see `spills`.
        reads: of each instruction, the registers that it reads.
        written: of each instruction, the registers and spilled words that it writes, in the order of the
            text; () where nothing in the slice reads one.
        work: of each block, the instructions in the slice.
        joins: of each block, the one where all its ways lead with nothing in the slice between, or None.
    """

    def __init__(
        self,
        code: Sequence[Instruction],
        ops: Sequence[tuple[Operand, ...]],
        effects: Sequence[Effects],
        blocks: Sequence[GraphBlock],
    ) -> None:
        self._code, self._ops, self._effects, self._blocks = code, ops, effects, blocks
        self._bases = [i.base for i in code]
        self.ring = not FILLS.isdisjoint(self._bases)
        self._copies = "LDGSTS" in self._bases
        self.spills = spills(code, ops, effects)
        self._made = [tuple(dict.fromkeys(a.register for a in e.accesses if a.write)) for e in effects]
        for n, (targets, _) in self.spills.items():
            self._made[n] = targets
        self.reads = [tuple(e.reads) for e in effects]
        self._needs = [self._uses(n) for n in range(len(code))]
        self.joins: list[int | None] = [None] * len(blocks)
        self._before: list[list[int]] = [[] for _ in blocks]
        for b, block in enumerate(blocks):
            for m in block.follow:
                self._before[m].append(b)
        self._spins, again = self._repeated()
        for _ in range(2):  # what only a branch depends on whose ways are one is not needed
            self.written = self._live()
            self.work = [
                [n for n in range(b.start, b.end) if k not in again and self._matters(n)]
                for k, b in enumerate(blocks)
            ]
            self._leads: dict[int, int] = {}
            self.joins = [self._join(b) for b in range(len(blocks))]

    def _uses(self, n: int) -> int:
        """Registers that an instruction in the slice reads, whatever comes behind it; as bits."""
        i, e = self._code[n], self._effects[n]
        needed: set[int] = set()
        if e.never:
            return 0
        if i.base in ACCESS:
            for o in self._ops[n]:
                if o.role is Role.ADDRESS and "desc" not in o.text:
                    needed |= {named.register for named in o.named}
        elif i.base in WARPGROUP_PRODUCTS:
            needed |= {r for r in e.reads if UR <= r < UP}
        elif i.base in ("SYNCS", *FILLS):
            places = [o for o in self._ops[n] if o.role is Role.ADDRESS]
            needed |= {named.register + k for o in places for named in o.named for k in (0, i.base in FILLS)}
        if i.base in ("BRA", "EXIT", "SYNCS", *ACCESS) and e.guard is not None:
            needed.add(e.guard)
        return _bits(needed)

    def _repeated(self) -> tuple[set[int], set[int]]:
        """Blocks that repeat themselves to wait for a barrier; of these, the ones that only try again.

        A wait that is tried again shows nothing new.
        """
        waits = set()
        for b, block in enumerate(self._blocks):
            guard = self._effects[block.end - 1].guard
            for n in range(block.start, block.end):
                if "PHASECHK" in self._code[n].opcode and guard in self._effects[n].writes:
                    waits.add(b)
        spins = {b for b in waits if b in self._blocks[b].follow}
        return spins, {b for b in spins if all(m in waits for m in self._before[b])}

    def _live(self) -> list[tuple[int, ...]]:
        """Registers that each instruction writes, where one is read in the slice behind it."""
        # of a result that is never known only the guard matters
        reads = [
            _bits(e.reads) if modelled(i) else _bits(() if e.guard is None else (e.guard,))
            for i, e in zip(self._code, self._effects, strict=True)
        ]
        for n, (_, sources) in self.spills.items():
            reads[n] |= _bits(sources)
        makes = [_bits(registers) for registers in self._made]
        # a write under a guard leaves the old value to the other threads
        kills = [0 if e.guard is not None else bits for e, bits in zip(self._effects, makes, strict=True)]
        entry = [0] * len(self._blocks)
        written: list[tuple[int, ...]] = [()] * len(self._code)
        waiting = set(range(len(self._blocks)))
        while waiting:
            b = max(waiting)
            waiting.remove(b)
            live = 0
            for m in self._blocks[b].follow:
                live |= entry[m]
            for n in range(self._blocks[b].end - 1, self._blocks[b].start - 1, -1):
                if makes[n] & live:
                    written[n] = self._made[n]
                    live = live & ~kills[n] | reads[n]
                branch = self._bases[n] == "BRA" and self.joins[b] is not None
                live |= 0 if branch else self._needs[n]
            if live != entry[b]:
                entry[b] = live
                waiting.update(self._before[b])
        return written

    def _matters(self, n: int) -> bool:
        """Whether a walk does anything at an instruction."""
        base = self._bases[n]
        return not self._effects[n].never and (
            bool(self.written[n])
            or base in ACCESS | MEETING | WARPGROUP_PRODUCTS
            or (base in ("LDGDEPBAR", "DEPBAR") and self._copies)
            or waits_for(self._code[n]) is not None
            or (self.ring and base in ("SYNCS", *FILLS))
        )

    def _lead(self, b: int) -> int:
        """The first block from this one on, all ways taken together, that has anything in the slice."""
        if b not in self._leads:
            self._leads[b] = b  # of a loop, itself
            join = None if self.work[b] else self._join(b)
            self._leads[b] = b if join is None else join
        return self._leads[b]

    def _join(self, b: int) -> int | None:
        follow = self._blocks[b].follow
        ends = {self._lead(m) for m in follow if m != b or b not in self._spins}
        one = len(ends) == 1 and b not in ends and self._bases[self._blocks[b].end - 1] != "EXIT"
        return ends.pop() if one else None


def _bits(registers: frozenset[int] | set[int] | tuple[int, ...]) -> int:
    """A set of registers and spilled words as one number."""
    bits = 0
    for r in registers:
        bits |= 1 << (r if r >= 0 else _SPILLED - r)
    return bits

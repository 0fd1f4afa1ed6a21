"""What a new schedule must keep, as order edges and smallest issue distances between instructions.

Everything here is worked out once, on the original schedule; moves only look it up. Register dependences
come from `Instruction.reads` and `.writes` (the disassembler's oracle with its gaps closed), so this
reading shares nothing with the validator's.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from sassafras.sass import Fence, Function, Instruction, Queue
from sassafras.sass.cfg import Block
from sassafras.sass.opcodes import IMMOVABLE
from sassafras.sass.registers import BREG, GPR, PRED, UGPR, UPRED

from . import flow, memory, scoreboards
from .distances import HORIZON, RAW, WAR, WAW, Distances

#: queues whose instructions are left alone and not passed: too little is known of them
_FENCED_QUEUES = frozenset([Queue.TEX, Queue.TMA, Queue.CONTROL])
_FENCED = frozenset(["NOP", "LEPC", "R2B", "B2R", "LDGMC", "QSPC", "LDTRAM", "LDCU", "MOV64IUR"])
#: special registers that stand still while a warp runs; reading any other is a fence
_STILL = (
    "SR_TID", "SR_CTAID", "SR_NTID", "SR_NCTAID", "SR_LANEID", "SR_CgaCtaId", "SRZ", "SR_EQMASK", "SR_LTMASK",
    "SR_LEMASK", "SR_GTMASK", "SR_GEMASK",
)  # fmt: skip


def is_fence(i: Instruction) -> bool:
    """True when nothing may pass this instruction and it stays where it is."""
    if i.op.fence is not Fence.NONE or i.base in IMMOVABLE or i.base in _FENCED or i.unexplained:
        return True
    if i.op.queue in _FENCED_QUEUES:
        return True
    if i.base == "LDS" and i.guard in ("!PT", "!UPT"):
        return True  # ptxas emits three of these before LDGSTS groups, as a workaround for the hardware
    if i.base == "R2UR" and i.operands and i.operands[0].startswith("P"):
        return True  # also compares lanes, and says so in a predicate; the validator does not know this form
    if i.base in ("S2R", "S2UR", "CS2R", "CS2UR"):
        return not all(o.startswith(_STILL) for o in i.operands[1:])
    return False


@dataclass(slots=True)
class Graph:
    """The constraints of one function.

    Attributes:
        order: (first, second) instructions of one block that keep their order.
        least: (first, second) -> cycles, where more than one is needed.
        head: cycles from its block's first issue that an instruction must wait for.
        tail: cycles that must pass from an instruction's issue to the end of its block.
        fence: whether nothing passes an instruction.
        pinned: whether it stays in its place (fences, and others that are merely not moved).
        blocks: the basic blocks; see `flow`.
        successors: blocks that may follow each block.
        unprotected: conflicts of variable-latency operations that no wait covers.
        events: for each block, (instruction, cycles since its issue) that may be recent on entry.
    """

    order: set[tuple[int, int]] = field(default_factory=set)
    least: dict[tuple[int, int], int] = field(default_factory=dict)
    head: dict[int, int] = field(default_factory=dict)
    tail: dict[int, int] = field(default_factory=dict)
    fence: list[bool] = field(default_factory=list)
    pinned: list[bool] = field(default_factory=list)
    blocks: tuple[Block, ...] = ()
    successors: list[tuple[int, ...]] = field(default_factory=list)
    unprotected: set[tuple[int, int, int]] = field(default_factory=set)
    events: list[dict[int, int]] = field(default_factory=list)

    def need(self, first: int, second: int, cycles: int) -> None:
        """Keep `second` behind `first`, and by so many cycles."""
        self.order.add((first, second))
        if cycles > self.least.get((first, second), 1):
            self.least[first, second] = cycles


def issue_cycles(i: Instruction) -> int:
    """Cycles until the next issue; a stall count of 0 (only in code never left) counts as 1."""
    return max(1, i.control.stall)


def build(function: Function, distances: Distances, waits: bool = True) -> Graph:
    """Work out the constraints of a function.

    Args:
        function, distances: the function and what its pairs need.
        waits: keep the original's scoreboards and waits, by order edges; False: they are regenerated for each
            schedule (`schedule.control`), and only true dependences bind the order.
    """
    return _Builder(function, distances, waits).build()


def _lists() -> dict[int, list[int]]:
    return defaultdict(list)


@dataclass(slots=True)
class _Ends:
    """By register, the instructions of a block whose accesses what came before, or comes after, can see;
    and the registers that the block overwrites for certain."""

    early_reads: dict[int, list[int]] = field(default_factory=_lists)
    early_writes: dict[int, list[int]] = field(default_factory=_lists)
    late_reads: dict[int, list[int]] = field(default_factory=_lists)
    late_writes: dict[int, list[int]] = field(default_factory=_lists)
    kills: set[int] = field(default_factory=set)


class _Builder:
    def __init__(self, function: Function, distances: Distances, waits: bool) -> None:
        self.code = function.instructions
        self.waits = waits
        self.blocks = flow.blocks(function)
        self.distances = distances
        self.fixed_fp64 = scoreboards.fixed_double(self.code)
        #: calls of functions that the driver brings, which may read and write any of these
        self.driver = {offset // 16 for offset in function.system_calls}
        self.unknown = frozenset(
            base + n
            for base, count in ((GPR, function.registers), (PRED, 7), (UGPR, 63), (UPRED, 7))
            for n in range(count)
        )
        self.graph = Graph()
        self.graph.blocks = self.blocks
        self.graph.successors = [b.successors for b in self.blocks]
        self.graph.fence = [is_fence(i) for i in self.code]
        self.graph.pinned = [
            fence or i.op.queue is Queue.WGMMA for fence, i in zip(self.graph.fence, self.code, strict=True)
        ]
        self.time = [0] * len(self.code)
        self.length = [0] * len(self.blocks)
        self.ends = [_Ends() for _ in self.blocks]
        for b in self.blocks:
            now = 0
            for i in range(b.start, b.end):
                self.time[i] = now
                now += issue_cycles(self.code[i])
            self.length[b.index] = now

    def build(self) -> Graph:
        graph = self.graph
        self.protection = scoreboards.analyse(self.code, self.blocks, graph.successors, graph.fence)
        graph.unprotected = self.protection.unprotected
        if self.waits:
            graph.order |= self.protection.edges
            for a, b, _ in graph.unprotected:
                graph.pinned[a] = graph.pinned[b] = True
            self._waits_between({(a, b) for a, b, _ in graph.unprotected})
        self.uncovered = {(a, b) for a, b, _ in graph.unprotected}
        for block in self.blocks:
            self._registers(block)
            self._memory(block)
            self._chains(block)
        self._across()
        graph.events = self._recent()
        return graph

    def _waits_between(self, pairs: set[tuple[int, int]]) -> None:
        """Keep what may protect the `unprotected`, as the validator knows more of what covers what: setters
        stay behind the first of a pair, and waits before the second."""
        block_of = [b for b in self.blocks for _ in range(b.start, b.end)]
        sets: dict[int, list[int]] = defaultdict(list)
        waits: dict[int, list[int]] = defaultdict(list)
        for i in self.code:
            home = block_of[i.index].index
            if i.control.write_barrier is not None or i.control.read_barrier is not None:
                sets[home].append(i.index)
            if i.control.wait_mask:
                waits[home].append(i.index)
        for a, b in pairs:
            first, second = block_of[a], block_of[b]
            near = first is second and a < b
            end, start = (b, a + 1) if near else (first.end, second.start)
            self.graph.order.update((a, x) for x in sets[first.index] if a < x < end)
            self.graph.order.update((x, b) for x in waits[second.index] if start <= x < b)

    def _pair(self, kind: str, a: int, b: int, registers: frozenset[int] | set[int], original: int) -> int:
        """Cycles needed between `a` and `b`; 1 where scoreboards or fences take care."""
        first = self.code[a]
        if kind == WAR:
            # whether uniform registers are read late is not known: a wait and a distance, both
            timed = {r for r in registers if r not in self.protection.late[a] or not GPR <= r < PRED}
        elif first.op.queue is Queue.WGMMA:
            timed = set()  # its results come behind WARPGROUP.DEPBAR, a fence
        else:
            timed = set(registers)
            if first.op.variable and not (first.op.queue is Queue.FP64 and self.fixed_fp64):
                timed -= self.protection.results[a]
        if kind == WAR and timed and first.op.queue is Queue.FP64:
            return min(original, HORIZON)  # the table does not tell these from reads that a wait covers
        calls = a in self.driver or b in self.driver
        if calls or (a, b) in self.uncovered or any(r >= BREG for r in registers):
            return min(original, HORIZON)
        return self.distances.least(kind, a, b, timed, original) if timed else 1

    def _registers(self, block: Block) -> None:
        ends = self.ends[block.index]
        writers, readers = ends.late_writes, ends.late_reads
        for b in range(block.start, block.end):
            i = self.code[b]
            pairs: dict[tuple[str, int], set[int]] = defaultdict(set)
            asked = self.unknown if b in self.driver else frozenset[int]()
            reads, writes = i.reads | asked, i.writes | asked
            if i.op.queue is Queue.TMA:
                reads |= writes  # which of its operands it reads is not known
            for r in reads:
                for a in writers[r]:
                    pairs[RAW, a].add(r)
                if r not in ends.kills:
                    ends.early_reads[r].append(b)
            for r in writes:
                for a in writers[r]:
                    pairs[WAW, a].add(r)
                for a in readers[r]:
                    pairs[WAR, a].add(r)
                if r not in ends.kills:
                    ends.early_writes[r].append(b)
            for (kind, a), registers in pairs.items():
                original = self.time[b] - self.time[a]
                self.graph.need(a, b, self._pair(kind, a, b, registers, original))
            for r in reads:
                readers[r].append(b)
            for r in writes:
                if i.guard in ("", "PT") and not asked:
                    writers[r] = [b]
                    readers[r] = []
                    ends.kills.add(r)
                else:
                    writers[r].append(b)

    def _memory(self, block: Block) -> None:
        self.graph.order.update(memory.before_copies(self.code[block.start : block.end]))
        earlier: list[tuple[int, tuple[memory.MemoryAccess, ...]]] = []
        versions: dict[int, int] = {}
        for b in range(block.start, block.end):
            i = self.code[b]
            if self.graph.fence[b]:
                earlier = []  # nothing passes it anyway
            found = memory.accesses(i, versions)
            if found:
                for a, before in earlier:
                    if memory.must_keep_order(before, found):
                        self.graph.order.add((a, b))
                earlier.append((b, found))
            for r in i.writes:
                versions[r] = b

    def _chains(self, block: Block) -> None:
        """Warpgroup products keep their order and, where none smaller is known, their distances from one
        another and from the ARRIVE before them; setters of a scoreboard that is counted keep their order."""
        last = -1
        counted = {
            int(n)
            for i in self.code[block.start : block.end]
            if i.base == "DEPBAR" and len(i.operands) > 1 and i.operands[1] != "0x0"
            for n in scoreboards.scoreboard_names(i.operands[0])
        }
        latest: dict[int, int] = {}
        for b in range(block.start, block.end):
            i = self.code[b]
            if i.op.queue is Queue.WGMMA:
                if last >= 0:
                    self.graph.order.add((last, b))
                    before = (
                        "@wgmma" if self.code[last].op.queue is Queue.WGMMA else self.distances.keys[last]
                    )
                    known = self.distances.table.spacing(before, "@wgmma")
                    kept = min(self.time[b] - self.time[last], HORIZON)
                    self.graph.need(last, b, kept if known is None else known.cycles)
                last = b
            elif i.opcode == "WARPGROUP.ARRIVE":
                last = b
            for barrier in {i.control.write_barrier, i.control.read_barrier} & counted:
                if barrier is None:
                    continue
                if barrier in latest:
                    self.graph.order.add((latest[barrier], b))
                latest[barrier] = b

    def _across(self) -> None:
        """Split the distances that cross block edges into what the first block's tail keeps and what the
        second one's head does.

        The tail takes as much as it had; blocks between keep their length up to `HORIZON` (`tables`). An
        instruction far from its block's end counts too: it may move there.
        """
        sources: dict[int, list[int]] = defaultdict(list)
        for n, ends in enumerate(self.ends):
            for r in {r for late in (ends.late_writes, ends.late_reads) for r, who in late.items() if who}:
                sources[r].append(n)
        for register, found in sources.items():
            for n in found:
                for target, between in self._reach(n, register).items():
                    self._crossings(register, self.ends[n], self.ends[target], between, n)
        for b in self.blocks:
            a = b.end - 1
            scoreboards_set = {self.code[a].control.write_barrier, self.code[a].control.read_barrier}
            if issue_cycles(self.code[a]) >= 2 or scoreboards_set == {None}:
                continue
            for n in self.graph.successors[b.index]:
                for i in range(self.blocks[n].start, self.blocks[n].end):
                    mask = self.code[i].control.wait_mask
                    if self.time[i] >= 1 and any(mask >> s & 1 for s in scoreboards_set if s is not None):
                        self.graph.head[i] = max(self.graph.head.get(i, 0), 1)

    def _reach(self, source: int, register: int) -> dict[int, int]:
        """Blocks entered with what `source` did to a register still to be seen -> least cycles between."""
        best = dict.fromkeys(self.graph.successors[source], 0)
        work = list(best)
        while work:
            n = work.pop()
            if register in self.ends[n].kills:
                continue
            cycles = best[n] + min(self.length[n], HORIZON)
            if cycles >= HORIZON:
                continue
            for m in self.graph.successors[n]:
                if best.get(m, HORIZON) > cycles:
                    best[m] = cycles
                    work.append(m)
        return best

    def _crossings(self, register: int, out: _Ends, into: _Ends, between: int, home: int) -> None:
        for kind, late, early in (
            (RAW, out.late_writes, into.early_reads),
            (WAW, out.late_writes, into.early_writes),
            (WAR, out.late_reads, into.early_writes),
        ):
            for a in late.get(register, ()):
                tail = self.length[home] - self.time[a]
                for b in early.get(register, ()):
                    original = tail + between + self.time[b]
                    need = self._pair(kind, a, b, {register}, original)
                    if need <= 1:
                        continue
                    kept = min(tail, need)
                    self.graph.tail[a] = max(self.graph.tail.get(a, 0), kept)
                    if need > kept + between:
                        self.graph.head[b] = max(self.graph.head.get(b, 0), need - kept - between)

    def _recent(self) -> list[dict[int, int]]:
        """For each block, instructions that may have issued less than `HORIZON` cycles before its entry."""
        entry: list[dict[int, int]] = [{} for _ in self.blocks]
        work = list(range(len(self.blocks)))
        while work:
            n = work.pop()
            block, length = self.blocks[n], self.length[n]
            out = {a: e + length for a, e in entry[n].items() if e + length < HORIZON}
            for i in range(block.end - 1, block.start - 1, -1):
                if length - self.time[i] >= HORIZON:
                    break
                out[i] = length - self.time[i]
            for s in self.graph.successors[n]:
                changed = False
                for a, elapsed in out.items():
                    if elapsed < entry[s].get(a, HORIZON):
                        entry[s][a] = elapsed
                        changed = True
                if changed and s not in work:
                    work.append(s)
        return entry

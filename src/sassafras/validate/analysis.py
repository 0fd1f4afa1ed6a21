"""Everything about the original that no candidate changes, as arrays: done once per kernel."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sassafras.core.errors import DisassemblyError
from sassafras.sass import Function, Instruction
from sassafras.sass.latency import LatencyTable, opcode_key

from . import classes, dependences, effects, graph, memory, operands, rules_jit
from .dependences import KIND_NAMES, MEMORY, ORDER, RAW, WAR, WAW, Pair
from .flow import flow_of
from .pending import Scoreboards
from .words import CLEAN

#: cycles after which every fixed-latency result is there; unknown distances are kept up to here
HORIZON = 64
#: BAR.SYNC -> next memory operation (no lower case in 6,000 pairs); to a fence no less than the original has
BARRIER_TO_MEMORY = 6
#: a product -> WARPGROUP.DEPBAR (115 of 197 pairs have just this, none has less; an H200 does not wait at 1)
PRODUCT_TO_WAIT = 3
#: between two of a queue whose results meet, with no wait (no lower case in thousands of pairs), and from
#: LDGSTS to the LDGDEPBAR that closes its group (229 of 233 pairs have just this, none has less)
IN_QUEUE = 4
#: a result of the uniform unit -> a writer over it that takes less time: an H200 lost the second value at 5
UNIFORM_RESULT = 6


@dataclass(slots=True)
class Edges:
    """Ordered pairs with their least distances, as columns.

    Attributes:
        first, second: instruction indices, int32.
        need: cycles; 0 where only the order matters.
        pairs: the pair behind each row.
        known: the distance comes from the table, not from the original.
    """

    first: np.ndarray
    second: np.ndarray
    need: np.ndarray
    pairs: list[Pair]
    known: list[bool]


class Analysis:
    """The original kernel, read by the validator.

    Args:
        function: the kernel.
        table: least distances of its architecture.
        first: the analysis of the compiler's own code, of which `function` is a renamed copy with the same
            control codes: where the table does not know a pair, only the compiler's distance between
            the same two operands counts.
        place: for a copy in which instructions moved over branches, the first one's instruction at each
            place. Then the compiler's distances are those of its own code, and what may be pending at
            fences is what may be pending there.
    """

    def __init__(
        self,
        function: Function,
        table: LatencyTable,
        first: Analysis | None = None,
        place: Sequence[int] | None = None,
    ) -> None:
        self.function, self.table = function, table
        #: the compiler's distance between two operands, where it was asked for
        self.known_pairs: dict[tuple[int, int, str, int, str], int] = {}
        #: its distances between asynchronous products
        self.windows: dict[tuple[int, int], int] = {}
        self._first, self._place = first, place
        self.code: tuple[Instruction, ...] = function.instructions
        self.count = len(self.code)
        self.hopper = hopper = function.arch.startswith("sm_90")
        self.effects = [
            effects.read(i.guard, i.opcode, i.operands, i.low, i.high, i.reads, i.writes) for i in self.code
        ]
        #: calls of functions that the driver brings: what these do is not in the cubin
        self.system = frozenset(
            n for n, i in enumerate(self.code) if i.offset in function.system_calls and i.base == "CALL"
        )
        if len(self.system) != len(function.system_calls):
            raise DisassemblyError(".nv.info names a system call where no CALL stands", where=function.name)
        for n in self.system:
            self.effects[n] = effects.of_a_system_call(self.effects[n], function.registers)
        self.kinds, self.operands = [], []
        for i in self.code:
            try:
                ops = operands.read(i.operands)
            except ValueError:
                ops = ()
            self.operands.append(ops)
            self.kinds.append(classes.classify(i.base, tuple(i.opcode.split(".")[1:]), i.guard, ops, hopper))
        self.pinned = [
            bool(e.problem) or bool(i.unexplained) for e, i in zip(self.effects, self.code, strict=True)
        ]
        self.fence = np.array(
            [k.fence or p for k, p in zip(self.kinds, self.pinned, strict=True)], dtype=np.bool_
        )
        self.variable = [
            k.variable or i.control.write_barrier is not None
            for k, i in zip(self.kinds, self.code, strict=True)
        ]
        self.keys = [opcode_key(i.opcode) for i in self.code]
        own = [table.own_stall(key) for key in self.keys]
        self.own_stall = np.array([0 if d is None or d.cycles < 2 else d.cycles for d in own], dtype=np.int64)
        self.blocks = graph.build(self.code, function.labels, function.indirect, self.system)
        self.parts = [dependences.BlockPairs(b, self.effects) for b in self.blocks]
        self.words = function.words.copy()
        self.words[:, 1] &= CLEAN
        self.held = [
            (k.memory and not e.never) or (f and i.base not in classes.BRANCHING)
            for k, e, f, i in zip(self.kinds, self.effects, self.fence.tolist(), self.code, strict=True)
        ]
        self._regions()
        self.flow = flow_of(self.blocks)
        lengths = self.flow.end - self.flow.start
        self.block_of = np.repeat(np.arange(len(self.blocks), dtype=np.int32), lengths)
        self.memory = memory.accesses(self.blocks, self.kinds, self.effects)
        self._refuse_counted_results()
        self.scoreboards = Scoreboards(self)
        self._edges()
        self.scoreboards.allow(self._first, self._place)

    # -- places -------------------------------------------------------------------------------------------

    def _regions(self) -> None:
        """Runs of instructions that nothing may leave: between fences, within a block."""
        starts = np.zeros(self.count, dtype=np.bool_)
        starts[[b.start for b in self.blocks]] = True
        starts[self.fence] = True
        starts[1:] |= self.fence[:-1]
        self.region = np.cumsum(starts).astype(np.int32)

    @cached_property
    def original_high(self) -> np.ndarray:
        """The original's upper words, uint64."""
        return self.function.words[:, 1].copy()

    @cached_property
    def original_times(self) -> tuple[np.ndarray, np.ndarray]:
        """`issue_times` of the original."""
        return self.issue_times(np.array([i.control.stall for i in self.code]))

    def _refuse_counted_results(self) -> None:
        """ptxas lets DEPBAR.LE count DMMAs in flight; here it only counts groups of asynchronous copies."""
        named = {i.operands[0] for i in self.code if i.base == "DEPBAR" and i.operands}
        for i in self.code:
            if i.base == "DMMA" and f"SB{i.control.write_barrier}" in named:
                raise DisassemblyError(
                    "DEPBAR.LE counts the results of DMMA, which is not followed", where=str(i)
                )

    def _late(self, index: int, register: int) -> bool:
        """Whether an instruction reads a register some time after its issue.

        Predicates are read at issue, and so are uniform registers (LDG's descriptors too: ptxas overwrites
        them with no wait), but for the copy engine's operations that set a read barrier. Where SYNCS reads a
        general register as well, its barrier is for that one: ptxas overwrites the uniform address at once.
        """
        i = self.code[index]
        barrier = i.control.read_barrier is not None
        uniform = operands.UR <= register < operands.UP and barrier and i.base in classes.COPIES
        if uniform and i.base == "SYNCS":
            uniform = all(read >= operands.P for read in self.effects[index].reads)
        return uniform or (register < operands.P and (self.variable[index] or barrier))

    # -- distances ----------------------------------------------------------------------------------------

    def _edges(self) -> None:
        inside: list[tuple[Pair, int, bool]] = []
        across: list[tuple[Pair, int, bool]] = []
        checks: set[tuple[int, int, int]] = set()  # (second, number, 0 written or 1 read)
        # no candidate runs a block in fewer cycles: one each, and fences keep theirs
        least = np.where(self.fence, [max(1, i.control.stall) for i in self.code], 1)
        shortest = np.add.reduceat(least, self.flow.start).tolist()
        now, _ = self.original_times
        self.asynchronous = [i.base in classes.WARPGROUP_PRODUCTS for i in self.code]
        self.waits = [i.opcode.startswith("WARPGROUP.DEPBAR") for i in self.code]
        self.closers = [i.base == "LDGDEPBAR" for i in self.code]
        barriers = [self._barrier_pairs(n, shortest) for n in range(len(self.blocks))]
        for n, block in enumerate(self.blocks):
            for pair in (*self.parts[n].pairs, *barriers[n][0]):
                rule = self._rule(pair)
                if rule is not None:
                    checks.add((pair.second, int(self.scoreboards.number[pair.first]), rule))
                    inside.append((pair, 0, True))
                    continue
                need, known = self._need(pair)
                kept = self._compilers(pair, int(now[pair.second] - now[pair.first]))
                inside.append((pair, need if known or kept is None else min(need, kept), known))
            inside += self._window_pairs(block, now)
            padded = sorted(memory.padding(block, self.kinds, self.effects))
            inside += [(Pair(MEMORY, n, "padding", m, "", -1), 0, True) for n, m in padded]
        unknown: list[tuple[Pair, int]] = []
        crossing = dependences.crossing(self.blocks, self.parts, shortest, HORIZON)
        for pair, near in itertools.chain(crossing, ((pair, True) for row in barriers for pair in row[1])):
            rule = self._rule(pair)
            if rule is not None:
                checks.add((pair.second, int(self.scoreboards.number[pair.first]), rule))
            elif near:
                need, known = self._need(pair)
                kept = None if known else self._compilers(pair, HORIZON)
                if kept is not None and self._place is None:
                    unknown.append((pair, need))
                elif need > 1:
                    across.append((pair, need if kept is None else min(need, kept), known))
        self.inside = _columns(inside)
        self.scoreboards.ask(checks)
        self._across(across, unknown)

    def _compilers(self, pair: Pair, cycles: int) -> int | None:
        """The distance that the compiler keeps between these two operands, None where its code has no such
        pair. Here it is `cycles`, which is noted for copies; a copy with moves asks the original."""
        first, second = pair.first, pair.second
        if self._place is not None:
            first, second = self._place[first], self._place[second]
        key = (pair.kind, first, pair.slot, second, pair.other)
        self.known_pairs[key] = min(cycles, self.known_pairs.get(key, cycles))
        if self._first is None:
            return cycles
        kept = self._first.known_pairs.get(key)
        return kept if kept is None or self._place is not None else cycles

    def _rule(self, pair: Pair) -> int | None:
        """0 or 1 when the pair is guarded by scoreboards (write, read), None when by distance."""
        first, second = pair.first, pair.second
        if pair.register >= operands.B:
            return None  # convergence barriers: only fences touch them
        if pair.second in self.system:
            return None  # `Scoreboards.allow` says what may be pending there
        if self._queued_result(pair):
            return None  # results of this queue come in order
        if pair.kind in (RAW, WAW, ORDER):
            if self.code[first].base == "ATOM" and operands.P <= pair.register < operands.UR:
                return 1  # which memory the address is of: known as soon as it is read
            return 0 if self.variable[first] else None
        if pair.kind == WAR and self._late(first, pair.register):
            queued = classes.QUEUED_WRITERS.get(self.kinds[first].queue, ())
            if self.variable[second] and self.kinds[second].queue in queued:
                return None  # the later one cannot write before the earlier one has read
            return 1
        return None

    def _queued_result(self, pair: Pair) -> bool:
        """Whether the second overwrites what the first writes in a queue that keeps the two in order."""
        queued = classes.QUEUED_RESULTS.get(self.kinds[pair.first].queue, ())
        written = pair.kind in (WAW, ORDER) and pair.register < operands.P
        return written and self.variable[pair.second] and self.kinds[pair.second].queue in queued

    def _need(self, pair: Pair) -> tuple[int, bool]:
        """The least distance of a pair, and True; or for an unknown one the most that may be asked of it, and
        False: it keeps its original distance up to there."""
        first, second = pair.first, pair.second
        if pair.kind == MEMORY:
            if self.code[first].base == "LDGSTS":
                return IN_QUEUE, False
            access = self.kinds[second].memory and not self.effects[second].never
            return (PRODUCT_TO_WAIT, True) if self.asynchronous[first] else (BARRIER_TO_MEMORY, access)
        if pair.kind == ORDER or (self.asynchronous[first] and pair.kind in (RAW, WAW)):
            return 1, True  # a reader in between, WARPGROUP.DEPBAR or the queue of products keeps them apart
        if self.pinned[first] or self.pinned[second] or pair.register >= operands.B:
            return HORIZON, False
        if self._queued_result(pair):
            return IN_QUEUE, True
        sooner = self.hopper and self.code[second].base in classes.UNIFORM_SOONER
        if pair.kind == WAW and sooner and self.code[first].base in classes.UNIFORM_RESULTS:
            return UNIFORM_RESULT, True
        if pair.kind == WAR and (
            self._late(first, pair.register) or self.code[first].base in classes.ENDS_BLOCK
        ):
            return 1, True  # a branch has read its operands before it is taken
        if pair.kind == WAR and self.code[first].base in classes.FP64:
            return HORIZON, False  # the table's rows leave out every pair with a wait between
        key = (KIND_NAMES[pair.kind], self.keys[first], pair.slot, self.keys[second], pair.other)
        found = self.table.distance(*key)
        if found is not None:
            return max(1, found.cycles), True
        enough = self.table.bound(*key)
        return HORIZON if enough is None else min(enough, HORIZON), False

    def _window_pairs(self, block: graph.GraphBlock, now: np.ndarray) -> list[tuple[Pair, int, bool]]:
        """Asynchronous matrix products stay in their order (gsb0 closes a group) and as far apart as they
        need, from one another and from the WARPGROUP.ARRIVE before them."""
        found = []
        last = -1
        for n in range(block.start, block.end):
            product = self.asynchronous[n]
            if product and last >= 0:
                known = self.table.spacing("@wgmma" if self.asynchronous[last] else self.keys[last], "@wgmma")
                kept = self._window_kept(last, n, min(int(now[n] - now[last]), HORIZON))
                pair = Pair(MEMORY, last, "", n, "", -1)
                found.append((pair, kept if known is None else known.cycles, known is not None))
            if product or self.code[n].opcode == "WARPGROUP.ARRIVE":
                last = n
        return found

    def _window_kept(self, first: int, second: int, cycles: int) -> int:
        """The compiler's distance between two products, or ARRIVE and a product; here it is `cycles`."""
        if self._place is not None and self._first is not None:
            return self._first.windows.get((self._place[first], self._place[second]), HORIZON)
        self.windows[first, second] = cycles
        return cycles

    def _barrier_pairs(self, number: int, shortest: list[int]) -> tuple[list[Pair], list[Pair]]:
        """Each BAR, product or LDGSTS, and what ptxas has no sooner behind it, in its block and in others."""
        start, end = self.blocks[number].start, self.blocks[number].end
        behind = {"BAR": self.held, "LDGSTS": self.closers}
        behind |= dict.fromkeys(classes.WARPGROUP_PRODUCTS, self.waits)
        held = {n: behind[i.base] for n, i in enumerate(self.code[start:end], start) if i.base in behind}
        firsts = sorted(held)
        reached = dependences.reach(self.blocks, self.parts, shortest, number, -1) if firsts else {}
        soon = [self.blocks[b] for b, cycles in reached.items() if cycles < BARRIER_TO_MEMORY]
        inside = [Pair(MEMORY, n, "", k, "", -1) for n in firsts for k in range(n + 1, end) if held[n][k]]
        over = [k for b in soon for k in range(b.start, b.end)]
        return inside, [Pair(MEMORY, n, "", k, "", -1) for n in firsts for k in over if held[n][k]]

    def issue_times(self, stall: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Issue cycle by position, counted from the start of its block, and each block's cycles (int32).

        Args:
            stall: stall counts by position; 0 counts as 1.
        """
        cycles = np.maximum(stall, 1).astype(np.int32)
        after = np.cumsum(cycles, dtype=np.int32)
        begin = (after - cycles)[self.flow.start]
        return after - cycles - begin[self.block_of], after[self.flow.end - 1] - begin

    def _across(self, rows: list[tuple[Pair, int, bool]], unknown: list[tuple[Pair, int]]) -> None:
        """Pairs over block edges; an unknown one keeps the original's shortest distance."""
        times, lengths = self.original_times
        between = rules_jit.block_distances(lengths, self.flow, HORIZON) if unknown else None
        for pair, most in unknown:
            assert between is not None
            source, target = int(self.block_of[pair.first]), int(self.block_of[pair.second])
            kept = int(lengths[source] - times[pair.first] + between[source, target] + times[pair.second])
            kept = min(kept, most)
            noted = (pair.kind, pair.first, pair.slot, pair.second, pair.other)
            self.known_pairs[noted] = min(max(kept, 1), self.known_pairs.get(noted, HORIZON))
            if kept > 1:
                rows.append((pair, kept, False))
        self.across = _columns(rows)


def _columns(rows: list[tuple[Pair, int, bool]]) -> Edges:
    # the same two instructions may meet in many registers: keep the strictest
    strictest: dict[tuple[int, int], tuple[Pair, int, bool]] = {}
    for row in rows:
        key = (row[0].first, row[0].second)
        if key not in strictest or strictest[key][1] < row[1]:
            strictest[key] = row
    rows = list(strictest.values())
    return Edges(
        np.array([r[0].first for r in rows], dtype=np.int32),
        np.array([r[0].second for r in rows], dtype=np.int32),
        np.array([r[1] for r in rows], dtype=np.int32),
        [r[0] for r in rows],
        [r[2] for r in rows],
    )

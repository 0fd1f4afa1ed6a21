"""Control codes from scratch: which scoreboard each instruction sets, and which it waits for, for any order.

The scheduler's other mode lets barriers and wait masks travel with their instructions, and pays with order
edges for every wait. Here only true dependences bind the order; scoreboards and waits are worked out again
for each schedule, from the registers that instructions write late and read late:

1. with a scoreboard for everything, walk the control-flow graph: where is what still pending that an
   instruction needs (a late result that it touches, a late read of what it overwrites, what a fence found
   done in the original)? That is where a wait belongs, the latest place that is legal.
2. two that share a scoreboard cost whatever a wait for the one takes longer because of the other, by expected
   latencies, weighed by loop depth. The six scoreboards are given out so that the sum is small: greedily, and
   from the compiler's own choice; then single changes as long as they help.
3. with the scoreboards given out, walk again and set the waits.

Queues are leaned on where ptxas does: within one, results return and operands are read in order, so that
what waits for a later operation need not wait for an earlier one, and a load may overwrite an operand of an
earlier operation of its own queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sassafras.sass import Block, Function, Instruction, Memory, Queue
from sassafras.sass.control import READ_BARRIER_SHIFT, WAIT_SHIFT, WRITE_BARRIER_SHIFT
from sassafras.sass.in_order_completion import COVERING, covered_by, covers, unit
from sassafras.sass.opcodes import BRANCHES
from sassafras.sass.registers import COUNT, GPR, PRED, UGPR, UPRED

from . import scoreboards
from .graph import Graph

_WORDS = (COUNT + 63) // 64
#: no barrier
NONE = 7
#: copies that read uniform registers late when they set a read barrier
_COPIES = frozenset("SYNCS UBLKCP UBLKPF UBLKRED UTMALDG UTMASTG UTMAREDG UTMAPF UTMACCTL ARRIVES".split())  # noqa: SIM905
#: control transfers and convergence: what is pending there is not their business
_STEERING = frozenset(
    "BRA BRX BRXU JMP JMX JMXU RET CALL BREAK BSYNC BSSY RTT BPT BMOV YIELD NANOSLEEP ENDCOLLECTIVE".split()  # noqa: SIM905
)
#: never seen with a wait mask; nvdisasm calls WARPGROUP.DEPBAR with one an illegal instruction
NO_WAIT = frozenset(
    "WARPGROUP.DEPBAR.LE WARPGROUP.DEPBAR DEPBAR LDGDEPBAR HGMMA IGMMA QGMMA BGMMA NOP BSSY MEMBAR".split()  # noqa: SIM905
)
#: what closes a group of copies: its scoreboard is one that DEPBAR counts, as a rule
_GROUPS = ("LDGDEPBAR", "UTMACMDFLUSH")
#: reader -> writers whose result cannot overtake its operands: no wait (seen in ptxas output)
_QUEUED = {
    "LDG": "LDG LDL",
    "LDS": "LDS LDSM SHFL",
    "LDSM": "LDSM",
    "STG": "LDS LDSM SHFL",
    "STL": "LDS LDSM SHFL",
    "STS": "LDS LDSM SHFL",
    "STSM": "LDS LDSM",
    "SHFL": "SHFL LDS",
    "MOVM": "MOVM",
    "MUFU": "MUFU",
    "I2F": "I2F F2I",
    "F2I": "F2I",
}
#: expected cycles until a result is there, and until operands are read; only for sharing scoreboards well
RESULT = {
    Queue.LSU: 400,
    Queue.MIO: 30,
    Queue.XU: 24,
    Queue.CONST: 40,
    Queue.SPECIAL: 40,
    Queue.FP64: 40,
    Queue.TMA: 200,
    Queue.TEX: 400,
    Queue.CONTROL: 40,
}
READ = {Queue.LSU: 24, Queue.MIO: 14, Queue.XU: 10, Queue.TMA: 40}
_LOOP = 8.0
#: by how much what the compiler shares may get worse, as expected, before it is shared otherwise
_TOLERANCE = 1.1
#: rounds of giving scoreboards to what has none and needs one
_TRIALS = 6


class ScoreboardProblem(NamedTuple):
    """What does not depend on the order, as arrays by instruction (original index) or by item.

    Items are numbered 2 * v for the result and 2 * v + 1 for the late reads of tracked instruction v.

    Attributes:
        number: tracked number of an instruction, or -1.
        tracked: instruction of each tracked number.
        conflict_at, conflict: CSR by instruction: items that must not be pending when it issues.
        keeps: by item: a scoreboard that is named in an operand and stays, or -1.
        hint: by item: the compiler's own scoreboard, or -1.
        covers: by tracked number: its number in `sass.in_order_completion.COVERING`, or -1.
        covered_by: by item: bit mask of the operations, numbered so, that cover it.
        usable: bit mask of scoreboards that may be given out.
        latency: by item: expected cycles.
        weight: by block: expected executions.
        start, end, follow_at, follow: blocks by position and their successors (CSR).
        may_wait: whether an instruction can carry a wait mask (`NO_WAIT`).
        frozen: 1 where the stall count must not be raised.
        shared, accepted: pairs of items that share a scoreboard in the original, (pairs, 2), and what that
            costs there.
    """

    number: np.ndarray
    tracked: np.ndarray
    conflict_at: np.ndarray
    conflict: np.ndarray
    keeps: np.ndarray
    hint: np.ndarray
    covers: np.ndarray
    covered_by: np.ndarray
    usable: int
    latency: np.ndarray
    weight: np.ndarray
    start: np.ndarray
    end: np.ndarray
    follow_at: np.ndarray
    follow: np.ndarray
    may_wait: np.ndarray
    frozen: np.ndarray
    shared: np.ndarray
    accepted: np.ndarray


@dataclass(frozen=True, slots=True)
class Codes:
    """Control codes by position; 7 for no barrier.

    Attributes:
        write, read: scoreboards set (uint8).
        wait: masks (uint8).
        stall: stall counts, some raised to keep a waiter two cycles behind its setter.
        cost: expected cycles lost to shared scoreboards.
        placed: False where something must be waited for directly before an instruction that can carry no
            wait: no control codes make this order legal.
    """

    write: np.ndarray
    read: np.ndarray
    wait: np.ndarray
    stall: np.ndarray
    cost: float
    placed: bool


def facts(function: Function, graph: Graph) -> ScoreboardProblem:
    """Work out what regeneration needs of a function."""
    from .control_sharing import conflicts

    code = function.instructions
    fixed = scoreboards.fixed_double(code)
    count = len(code)
    number = np.full(count, -1, dtype=np.int32)
    tracked: list[int] = []
    sets: list[tuple[frozenset[int], frozenset[int]]] = []
    reserved = {
        int(n)
        for i in code
        if i.base == "DEPBAR" and i.operands
        for n in scoreboards.scoreboard_names(i.operands[0])
    }
    for i in code:  # a group that nothing counts names its scoreboard, too
        if i.base in _GROUPS:
            barriers = i.control.write_barrier, i.control.read_barrier
            reserved |= {b for b in barriers if b is not None}
    runs = [i.guard not in ("!PT", "!UPT") for i in code]
    for i in code:
        if not runs[i.index]:
            continue
        result, late = _late(i, fixed)
        barrier = i.control.write_barrier is not None or i.control.read_barrier is not None
        if result or late or barrier:
            number[i.index] = len(tracked)
            tracked.append(i.index)
            sets.append((result, late))
    items = 2 * len(tracked)
    late_bits = np.zeros((items, _WORDS), dtype=np.uint64)
    keeps, hint = np.full(items, -1, dtype=np.int32), np.full(items, -1, dtype=np.int32)
    latency = np.zeros(items, dtype=np.float64)
    covering, by = np.full(len(tracked), -1, dtype=np.int32), np.zeros(items, dtype=np.uint64)
    queued = np.full(len(tracked), -1, dtype=np.int32)
    classes = sorted(_QUEUED)
    for v, n in enumerate(tracked):
        i = code[n]
        queue = i.op.queue
        for k, registers, barrier_set, usual in (
            (2 * v, sets[v][0], i.control.write_barrier, RESULT.get(queue, 20)),
            (2 * v + 1, sets[v][1], i.control.read_barrier, READ.get(queue, 14)),
        ):
            late_bits[k] = _bits(registers)
            latency[k] = usual
            if barrier_set is not None:
                hint[k] = barrier_set
                # DEPBAR counts this scoreboard, or it belongs to an instruction that stays as it is
                if barrier_set in reserved and i.base in (*_GROUPS, "DEPBAR"):
                    keeps[k] = barrier_set
        name = unit(i.opcode)
        covering[v] = COVERING.get(name, -1)
        by[2 * v : 2 * v + 2] = covered_by(name, True), covered_by(name, False)
        if name in _QUEUED:
            queued[v] = classes.index(name)
    behind = np.zeros(count, dtype=np.int64)
    for i in code:
        behind[i.index] = sum(
            1 << k for k, name in enumerate(classes) if unit(i.opcode) in _QUEUED[name].split()
        )
    row, done = _fences(function, graph, number, tracked, keeps)
    touches = np.array([_bits(i.reads | i.writes) * np.uint64(runs[i.index]) for i in code])
    writes = np.array([_bits(i.writes) * np.uint64(runs[i.index]) for i in code])
    at, conflict = conflicts(
        late_bits,
        touches,
        writes,
        number,
        np.array(tracked, dtype=np.int32),
        queued,
        behind,
        row,
        done,
        (hint >= 0) | late_bits.any(axis=1),
    )
    follow_at = np.zeros(len(graph.blocks) + 1, dtype=np.int32)
    follow_at[1:] = np.cumsum([len(s) for s in graph.successors])
    made = ScoreboardProblem(
        number=number,
        tracked=np.array(tracked, dtype=np.int32),
        conflict_at=at,
        conflict=conflict,
        keeps=keeps,
        hint=hint,
        covers=covering,
        covered_by=by,
        usable=sum(1 << s for s in range(6) if s not in reserved),
        latency=latency,
        weight=block_weights(graph.blocks),
        start=np.array([b.start for b in graph.blocks], dtype=np.int32),
        end=np.array([b.end for b in graph.blocks], dtype=np.int32),
        follow_at=follow_at,
        follow=np.array([s for successors in graph.successors for s in successors], dtype=np.int32),
        may_wait=np.array([_may_wait(i) for i in code], dtype=np.bool_),
        frozen=np.array([i.base in BRANCHES or i.control.stall == 0 for i in code], dtype=np.int32),
        shared=np.zeros((0, 2), dtype=np.int32),
        accepted=np.zeros(0),
    )
    shared, accepted = _accepted(made, np.array([i.control.stall for i in code], dtype=np.uint8))
    return made._replace(shared=shared, accepted=accepted)


def _accepted(f: ScoreboardProblem, stall: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of items that share a scoreboard in the original, and what that costs there by expectation.

    The compiler knows better than these latencies which results return together: what it shares is no worse
    than it was there, until a schedule makes it so.
    """
    from .control_sharing import demand

    _, cost = demand(f, np.arange(len(stall), dtype=np.int32), stall)
    pairs = np.argwhere((cost > 0) & (f.hint[:, None] == f.hint[None, :]) & (f.hint >= 0)[:, None])
    # row by row, as an empty list is: numba compiles all that takes `f` once for every memory layout
    return np.ascontiguousarray(pairs, dtype=np.int32), _TOLERANCE * cost[pairs[:, 0], pairs[:, 1]]


def _late(i: Instruction, fixed_fp64: bool) -> tuple[frozenset[int], frozenset[int]]:
    """Registers that an instruction writes late, and reads late."""
    found = scoreboards.effects(i, fixed_fp64)
    late = frozenset(r for r in found.late if GPR <= r < PRED)
    if i.base in _COPIES and found.read_bit:
        late |= frozenset(r for r in i.reads if UGPR <= r < UPRED)
    return found.results, late


def _may_wait(i: Instruction) -> bool:
    """Whether it can carry a wait mask: one that has one in the original can (`MEMBAR` behind `MEMBAR`)."""
    return bool(i.control.wait_mask) or (i.base not in NO_WAIT and i.opcode not in NO_WAIT)


def _bits(registers: frozenset[int]) -> np.ndarray:
    out = np.zeros(_WORDS, dtype=np.uint64)
    for r in registers:
        out[r // 64] |= np.uint64(1 << (r % 64))
    return out


def block_weights(blocks: Sequence[Block]) -> np.ndarray:
    """Expected executions of each block: a factor for every loop around it (back edges in address order)."""
    weight = np.ones(len(blocks))
    for b in blocks:
        for s in b.successors:
            if s <= b.index:
                weight[s : b.index + 1] *= _LOOP
    return np.minimum(weight, _LOOP**4)


def _fences(
    function: Function, graph: Graph, number: np.ndarray, tracked: list[int], keeps: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """What the original had done at its fences stays done there, though no register may show why."""
    code = function.instructions
    strict = [
        i.index
        for i in code
        if graph.fence[i.index] and i.base not in _STEERING and i.guard not in ("!PT", "!UPT")
    ]
    setters = [v for v, n in enumerate(tracked) if graph.fence[n]]
    loose = []
    if setters:
        loose = [
            i.index
            for i in code
            if not graph.fence[i.index]
            and i.op.memory not in (Memory.NONE, Memory.CONSTANT)
            and i.guard not in ("!PT", "!UPT")
        ]
    rows = strict + loose
    row = np.full(len(code), -1, dtype=np.int32)
    row[rows] = np.arange(len(rows))
    done = np.zeros((len(rows), 2 * len(tracked)), dtype=np.bool_)
    may = _original_pending(function, graph, number, tracked)
    for r, n in enumerate(rows):
        done[r] = ~may[n]
        if n not in strict:
            mask = np.zeros(2 * len(tracked), dtype=np.bool_)
            for v in setters:
                mask[2 * v : 2 * v + 2] = True
            done[r] &= mask
    # what never had a scoreboard and needs none is never done
    return row, done


def _original_pending(
    function: Function, graph: Graph, number: np.ndarray, tracked: list[int]
) -> dict[int, np.ndarray]:
    """By instruction: which items may be pending when it issues in the original, after its own waits.

    A later operation of the same in-order queue covers an earlier one, as ptxas leans on it.
    """
    code = function.instructions
    names = [unit(code[n].opcode) for n in tracked]
    out: dict[int, np.ndarray] = {}

    def walk(n: int, state: dict[int, int], keep: bool = False) -> dict[int, int]:
        block = graph.blocks[n]
        for index in range(block.start, block.end):
            i = code[index]
            mask = i.control.wait_mask
            if mask:
                state = {k: m for k, m in state.items() if not m & mask}
            if keep:
                found = np.zeros(2 * len(tracked), dtype=np.bool_)
                found[list(state)] = True
                out[index] = found
            write = 0 if i.control.write_barrier is None else 1 << i.control.write_barrier
            read = 0 if i.control.read_barrier is None else 1 << i.control.read_barrier
            v = int(number[index])
            if v < 0:
                continue
            if write or read:
                for k in state:
                    other = names[k // 2]
                    if not k & 1 and covers(names[v], other, True):
                        state[k] |= write
                        if k + 1 in state:
                            state[k + 1] |= write
                    if k & 1 and covers(names[v], other, False):
                        state[k] |= write | read
            state[2 * v], state[2 * v + 1] = write, write | read
        return state

    for n, state in enumerate(scoreboards.entries(graph.successors, walk)):
        walk(n, state, keep=True)
    return out


def regenerate(f: ScoreboardProblem, order: np.ndarray, stall: np.ndarray) -> Codes:
    """Scoreboards, waits and the stall counts that they need, for one schedule.

    Args:
        f: `facts` of the function.
        order: int32 (instructions,), by position.
        stall: uint8 (instructions,), by position; not changed.
    """
    from .control_sharing import assign, demand
    from .control_waits import waits

    order, stall = order.copy(), stall.copy()  # writable: what is compiled is compiled for one type
    needed, cost = demand(f, order, stall)
    a, b = f.shared[:, 0], f.shared[:, 1]
    cost[a, b] = np.maximum(0.0, cost[a, b] - f.accepted)
    for trial in range(_TRIALS + 1):
        color, total = assign(f, needed, cost)
        given = np.where(color >= 0, color, NONE).astype(np.uint8)
        own = _bit(given)
        clears = np.repeat(own[::2], 2)  # late reads are done when the result is, too
        clears[1::2] |= own[1::2]
        # (an instruction without a number reads the last row)
        barriers = np.append(given, np.full(2, NONE, dtype=np.uint8)).reshape(-1, 2)
        write, read = np.ascontiguousarray(barriers[f.number[order]].T)
        wait, missing = waits(f, order, color, clears, write, read)
        if not missing.any():
            break
        # what was left to a later operation of its queue, on all paths but one: it gets its own after all
        needed |= missing | (trial == _TRIALS - 2)
    # no waiter issues less than two cycles behind a setter of its scoreboard
    behind = np.append(wait[1:], np.uint8(0))
    for block, end in enumerate(f.end):
        follow = f.follow[f.follow_at[block] : f.follow_at[block + 1]]
        behind[end - 1] = np.bitwise_or.reduce(wait[f.start[follow]], initial=0)
    sets = _bit(write) | _bit(read)
    stall[(stall == 1) & (f.frozen[order] == 0) & (sets & behind != 0)] = 2
    stall.setflags(write=False)
    placed = not missing.any() and not (wait.astype(np.bool_) & ~f.may_wait[order]).any()
    return Codes(write, read, wait, stall, float(total), bool(placed))


def _bit(barrier: np.ndarray) -> np.ndarray:
    """Masks of scoreboards, 0 for none."""
    return np.where(barrier == NONE, 0, 1 << (barrier & 7)).astype(np.uint8)


def put(words: np.ndarray, made: Codes) -> None:
    """Write barriers and wait masks into encodings by position, in place (uint64, (instructions, 2))."""
    high = words[:, 1]
    for shift, mask, value in (
        (WRITE_BARRIER_SHIFT, 7, made.write),
        (READ_BARRIER_SHIFT, 7, made.read),
        (WAIT_SHIFT, 63, made.wait),
    ):
        high &= ~np.uint64(mask << shift)
        high |= value.astype(np.uint64) << np.uint64(shift)

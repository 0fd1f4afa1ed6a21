"""Shared memory between its writers and readers: copies waited for, barriers between threads.

One block of threads is walked along paths of the control-flow graph, with the whole numbers that can be known
from the cubin (`integers`). What is unknown is left out: an access whose address is not known counts as none,
and a branch whose condition is not known is followed both ways. A finding is therefore a pair of accesses
that meet in a byte on a path through the kernel.

- ``LDGSTS`` copies belong to groups that ``LDGDEPBAR`` closes; ``DEPBAR.LE SBn, N`` returns when at most N
  are open. Before that, their bytes may be neither read nor written.
- Bytes that another warp wrote are read, and bytes that another warp read are written, only behind a barrier.
- Operands of an asynchronous product may be overwritten only when its group has been waited for, and the copy
  engine may be told to overwrite them no earlier (`slots`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from sassafras.sass import Instruction

from .classes import WARPGROUP_PRODUCTS
from .effects import Effects
from .graph import GraphBlock
from .integers import Block, Value, results
from .operands import UP, UR, Operand, Role, spell
from .products import waits_for
from .report import Violation
from .slicing import ACCESS, MEETING, Slice
from .slots import FILLS, Slots, Turn

#: bytes of shared memory that a block can name, in words of 4
_WORDS = 1 << 16
#: how often a path takes one way of a branch that may go either way
_TURNS = 6
#: instructions walked in all, paths, and paths begun that are kept for later
_STEPS, _PATHS, _KEPT = 40_000, 48, 64


@dataclass(slots=True)
class _State:
    """One path so far. By word of shared memory: who wrote it and when, who read it and when."""

    values: dict[int, Value]
    live: np.ndarray
    turns: dict[tuple[int, int], int]
    written: np.ndarray  # (5, words): instruction + 1, warp, epoch, group of copies or 0; product group
    read: np.ndarray  # (2, words): warp + 1 or -1 for several, epoch
    epoch: int = 1
    closed: int = 0  # groups of copies closed
    done: int = 0  # of these, waited for
    products: int = 0
    products_done: int = 0
    turn: Turn = field(default_factory=Turn)
    shared: bool = False  # another path has the same arrays

    def fork(self) -> _State:
        self.shared = True
        return replace(self, values=dict(self.values), turns=dict(self.turns), turn=replace(self.turn))

    def own(self) -> None:
        """Ahead of a change of `written` or `read`: most paths that are begun are never walked."""
        if self.shared:
            self.written, self.read, self.shared = self.written.copy(), self.read.copy(), False


class Walk:
    """Walks one kernel.

    Args:
        code, ops, effects, blocks: the kernel as the validator reads it.
        shape: threads of a block, None if the cubin does not say.
    """

    def __init__(
        self,
        code: Sequence[Instruction],
        ops: Sequence[tuple[Operand, ...]],
        effects: Sequence[Effects],
        blocks: Sequence[GraphBlock],
        shape: tuple[int, int, int] | None,
    ) -> None:
        self._code, self._ops, self._effects, self._blocks = code, ops, effects, blocks
        self._block = Block(shape)
        self._starts = {b.start: n for n, b in enumerate(blocks)}
        self._waits = {
            m for m, b in enumerate(blocks) if any("PHASECHK" in i.opcode for i in code[b.start : b.end])
        }
        self._arrivals = [e for i, e in zip(code, effects, strict=True) if _arrives(i)]
        self._slice = Slice(code, ops, effects, blocks)
        self._slots = Slots() if self._slice.ring else None
        self._bases = [i.base for i in code]
        self._known: dict[tuple[int, ...], tuple[list[Value], list[Value]]] = {}
        self._found: dict[tuple[int, str], Violation] = {}

    def findings(self) -> Iterator[Violation]:
        """Pairs of accesses that meet, one of each instruction and rule."""
        if self._slots is None and not any(base in ACCESS for base in self._bases):
            return
        count = self._block.count
        words = np.zeros((5, _WORDS), dtype=np.int32), np.zeros((2, _WORDS), dtype=np.int32)
        work = [((-1, 0), 0, _State({}, np.ones(count, dtype=bool), {}, *words))]
        steps = paths = 0
        visits: Counter[tuple[int, int]] = Counter()
        while work and steps < _STEPS and paths < _PATHS:
            # in turn the way that paths have taken least, and what was left behind first
            least = min(range(len(work)), key=lambda k: visits[work[k][0]])
            (source, b), begin, state = work.pop(least if paths % 2 else 0)
            paths += 1
            while True:
                visits[source, b] += 1
                steps += max(1, len(self._slice.work[b]) - begin)
                for k in range(begin, len(self._slice.work[b])):
                    if self._slots and (other := self._fork(self._slice.work[b][k], state)) is not None:
                        work.append(((source, b), k, other))
                    self._step(self._slice.work[b][k], state)
                begin = 0
                ways = self._ways(b, state)
                if not ways or steps >= _STEPS:
                    break
                for way, live in ways[1:]:
                    other = state.fork()
                    self._turn(other, b, way, live)
                    work.append(((b, way), 0, other))
                    if len(work) > _KEPT:
                        work.pop(-1 if visits[b, way] else -2)
                way, live = ways[0]
                self._turn(state, b, way, live)
                source, b = b, way
        yield from self._found.values()
        yield from self._slots.findings(self._code) if self._slots else ()

    # -- the way ------------------------------------------------------------------------------------------

    def _turn(self, state: _State, source: int, way: int, live: np.ndarray) -> None:
        state.live = live
        if self._slice.joins[source] is not None:
            return
        block = self._blocks[source]
        i, e = self._code[block.end - 1], self._effects[block.end - 1]
        if e.guard is not None and _plain(i) and len(block.follow) == 2 and state.values.get(e.guard) is None:
            taken = way != self._starts.get(block.end)
            state.values[e.guard] = np.full(self._block.count, taken != e.negated)
        if len(self._blocks[source].follow) > 1:
            state.turns[source, way] = state.turns.get((source, way), 0) + 1

    def _ways(self, b: int, state: _State) -> list[tuple[int, np.ndarray]]:
        """Blocks that may come next, with the threads that go there."""
        follow, last = self._blocks[b].follow, self._code[self._blocks[b].end - 1]
        behind = self._starts.get(self._blocks[b].end)
        if (join := self._slice.joins[b]) is not None:
            return [(join, state.live)]
        if last.base == "EXIT":
            guard = self._guard(self._blocks[b].end - 1, state)
            stay = state.live if guard is None else state.live & ~guard
            return [(m, stay) for m in follow] if stay.any() else []
        if len(follow) == 2 and behind in follow and last.base == "BRA":
            away = next(m for m in follow if m != behind)
            taken = self._taken(self._blocks[b].end - 1, state)
            if taken is not None:
                # a wait that the first turns leave out is looked at all the same: it names a slot's barrier
                for m in follow if self._slots else ():
                    if m in self._waits and set(follow) - {m} <= set(self._blocks[m].follow):
                        return [(m, state.live)]
                both = (away, state.live & taken), (behind, state.live & ~taken)
                return [(m, live) for m, live in both if live.any()]
            # of a loop twice round first; of two ways onwards the one that this path took before
            back = min(follow) <= b
            turns = {m: state.turns.get((b, m), 0) for m in follow}
            ways = sorted(follow, key=lambda m: (turns[m] // (1 + (m <= b)) if back else -turns[m], m > b))
            return [(m, state.live) for m in ways if state.turns.get((b, m), 0) < _TURNS]
        return [(m, state.live) for m in follow if state.turns.get((b, m), 0) < _TURNS]

    def _guard(self, n: int, state: _State) -> Value:
        e = self._effects[n]
        if e.guard is None:
            return np.ones(self._block.count, dtype=bool)
        return self._block.truth("!" if e.negated else "", e.guard, state.values)

    def _taken(self, n: int, state: _State) -> Value:
        i = self._code[n]
        return self._guard(n, state) if _plain(i) else None

    # -- one instruction ----------------------------------------------------------------------------------

    def _step(self, n: int, state: _State) -> None:
        i, base = self._code[n], self._bases[n]
        if base in ACCESS:
            self._access(n, state)
        elif base in WARPGROUP_PRODUCTS:
            self._product(n, state)
        elif base == "LDGDEPBAR":
            state.closed += 1
        elif base == "DEPBAR" and len(i.operands) == 2 and i.operands[1].startswith("0x"):
            state.done = max(state.done, state.closed - int(i.operands[1], 16))
            # a copy that is done is seen by its own warp; by others behind the next barrier
            state.own()
            fresh = (state.written[3] > 0) & (state.written[3] <= state.done)
            state.written[2][fresh] = state.epoch
            state.written[3][fresh] = 0
        elif (most := waits_for(i)) is not None:
            state.products_done = max(state.products_done, state.products - most)
        elif base in MEETING:
            state.epoch += 1
        if self._slots and base in ("SYNCS", *FILLS):
            self._ring(n, state)
        if not self._slice.written[n]:
            return
        made = self._results(n, state)
        if self._effects[n].guard is None:
            for k, register in enumerate(self._slice.written[n]):
                state.values[register] = made[k] if k < len(made) else None
            return
        guard = self._guard(n, state)
        runs = None if guard is None else guard[state.live]
        if runs is not None and not runs.any():
            return
        for k, register in enumerate(self._slice.written[n]):
            value = made[k] if k < len(made) else None
            if runs is None or not runs.all():
                old = state.values.get(register)
                if guard is not None and value is not None and old is not None:
                    value = np.where(guard, value, old)
                elif self._slots and guard is not None and value is None and old is not None:
                    state.live = state.live & ~guard  # the path of those of which more is known
                    value = old
                # a guard that is not known: as one way of a branch, where that overwrites nothing known
                elif (guard is not None or old is not None) and not self._for_arrival(n, register):
                    value = None
            state.values[register] = value

    def _results(self, n: int, state: _State) -> list[Value]:
        """Results of an instruction, of the same operands the same arrays: paths have most in common."""
        if n in self._slice.spills:
            return [state.values.get(source) for source in self._slice.spills[n][1]]
        given = [state.values.get(register) for register in self._slice.reads[n]]
        key = n, *map(id, given)
        if key not in self._known:
            made = results(self._code[n], self._ops[n], self._block, state.values)
            if not made and self._slots and self._bases[n] in ("VIMNMX", "IMNMX"):
                made = self._bound(n, state)
            self._known[key] = given, made  # the operands are kept, so that no other has their id
        return self._known[key][1]

    def _fork(self, n: int, state: _State) -> _State | None:
        """A path on which an unknown predicate selects the second of two known values; here, the first.

        Of a ring of barriers only: elsewhere two predicates that depend on one number would both be free.
        """
        if self._bases[n] not in ("SEL", "USEL") or state.turns.get((n, -1)):
            return None
        *_, a, b, predicate = self._ops[n]
        if not predicate.named or state.values.get(predicate.named[0].register) is not None:
            return None
        first, second = (self._block.number(o, state.values) for o in (a, b))
        if first is None or second is None or (first == second).all():
            return None
        state.turns[n, -1] = 1
        other = state.fork()
        true = np.full(self._block.count, not predicate.text.startswith("!"))
        state.values[predicate.named[0].register] = true
        other.values[predicate.named[0].register] = ~true
        return other

    def _bound(self, n: int, state: _State) -> list[Value]:
        """A least value of which one side is not known may be the other: a loop of stages is long enough."""
        *_, a, b, predicate = self._ops[n]
        numbers = (self._block.number(o, state.values) for o in (a, b))
        sides: list[Value] = [x for x in numbers if x is not None]
        return sides if len(sides) == 1 and predicate.text in ("PT", "UPT") else []

    def _for_arrival(self, n: int, register: int) -> bool:
        """Whether an arrival under the guard of instruction `n` reads the register."""
        guard = self._effects[n].guard, self._effects[n].negated
        return any((e.guard, e.negated) == guard and register in e.reads for e in self._arrivals)

    # -- accesses -----------------------------------------------------------------------------------------

    def _access(self, n: int, state: _State) -> None:
        i = self._code[n]
        places = [o for o in self._ops[n] if o.role is Role.ADDRESS and "desc" not in o.text]
        guard = self._guard(n, state)
        address = self._address(places[0], state) if places else None
        if address is None:
            return
        live = state.live if guard is None else state.live & guard
        if guard is None and i.base != "LDGSTS":
            return  # it may not happen; a copy's threads are taken to take part
        mods = i.opcode.split(".")
        size = 16 if "128" in mods or i.base in ("LDSM", "STSM") else 8 if "64" in mods else 4
        if i.base in ("LDSM", "STSM"):  # each group of eight threads names the rows of one matrix
            rows = 32 if "4" in mods else 16 if "2" in mods else 8
            live = live & (np.arange(self._block.count) % 32 < rows)
        words, warps = self._words(address, live, size)
        if i.base in ("LDS", "LDSM"):
            self._reads(n, words, warps, state)
        else:
            self._writes(n, words, warps, state, i.base == "LDGSTS")

    def _address(self, o: Operand, state: _State) -> Value:
        total = np.zeros(self._block.count, dtype=np.int64)
        inner = o.text.strip("[]")
        for part in inner.split("+"):
            negative = part.startswith("-")
            text = part.lstrip("-")
            if text.startswith("0x"):
                total = total + (-int(text, 16) if negative else int(text, 16))
                continue
            named = next((x for x in o.named if spell(x.register) == text.split(".")[0]), None)
            if text.split(".")[0] in ("RZ", "URZ"):
                continue
            value = state.values.get(named.register) if named is not None else None
            if value is None:
                return None
            scale = next((int(s[1:]) for s in named.suffixes if s[:1] == "X" and s[1:].isdigit()), 1)  # type: ignore[union-attr]
            total = total + value * scale
        return total & 0xFFFFFFFF

    def _words(self, address: np.ndarray, live: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
        live = live & (address < 4 * _WORDS - 16)
        first, warps = address[live] // 4, self._block.warp[live]
        count = max(1, size // 4)
        return (first[:, None] + np.arange(count)).ravel(), np.repeat(warps, count)

    def _reads(self, n: int, words: np.ndarray, warps: np.ndarray, state: _State) -> None:
        state.own()
        w = state.written[:, words]
        self._report("copy", n, words, state, w[3] > state.done, "is read before the wait for its group")
        unseen = (w[0] > 0) & (w[3] <= state.done) & (w[2] == state.epoch) & (w[1] != warps)
        self._report("barrier", n, words, state, unseen, "by another warp is read with no barrier between")
        several = (state.read[1, words] == state.epoch) & (state.read[0, words] != warps + 1)
        state.read[0, words] = np.where(several, -1, warps + 1)
        state.read[1, words] = state.epoch
        # threads of several warps may read one word at once
        clash = state.read[0, words] != warps + 1
        state.read[0, words[clash]] = -1

    def _writes(self, n: int, words: np.ndarray, warps: np.ndarray, state: _State, copy: bool) -> None:
        state.own()
        w, r = state.written[:, words], state.read[:, words]
        self._report(
            "copy",
            n,
            words,
            state,
            (w[3] > state.done) & (w[3] <= state.closed),
            "is written over before the wait for its group",
        )
        busy = w[4] > state.products_done
        self._report(
            "wgmma", n, words, state, busy, "", "overwrites an operand of a product that may be at work"
        )
        early = (r[1] == state.epoch) & (r[0] != warps + 1)
        self._report(
            "barrier", n, words, state, early, "", "overwrites what another warp read with no barrier between"
        )
        state.written[0, words] = n + 1
        state.written[1, words] = warps
        state.written[2, words] = state.epoch
        state.written[3, words] = state.closed + 1 if copy else 0

    def _product(self, n: int, state: _State) -> None:
        """A product's group, and the bytes at which its matrices in shared memory begin."""
        begins: list[np.ndarray] = []
        for o in self._ops[n]:
            if o.role is Role.MATRIX and o.named:
                first = o.named[0].register
                # with A in registers only the second descriptor, B's, is read
                descriptors = (first, first + 2) if o.position == 1 else (first + 2,)
                wide = {a.register for a in self._effects[n].accesses if UR <= a.register < UP}
                for register in descriptors:
                    value = state.values.get(register) if register in wide else None
                    if value is None:
                        continue
                    begins.append((value & 0x3FFF) << 4)
                    words, warps = self._words(begins[-1], state.live, 16)
                    self._reads(n, words, warps, state)
                    state.written[4, words] = state.products + 1
        if self._slots:
            group = state.products + 1
            self._slots.product(state.turn, n, group, state.products_done, tuple(begins))
        if "gsb0" in self._code[n].operands:
            state.products += 1

    def _ring(self, n: int, state: _State) -> None:
        """Waits for barriers, arrivals, and copies of the copy engine."""
        i = self._code[n]
        place = next((o for o in self._ops[n] if o.role is Role.ADDRESS), None)
        if self._slots is None or place is None:
            return
        if i.base in FILLS:
            first = place.named[0].register if place.named else -1
            slot, barrier = state.values.get(first), state.values.get(first + 1)
            self._slots.fill(state.turn, slot, barrier, state.live)
        elif "PHASECHK" in i.opcode:
            self._slots.wait(state.turn, self._address(place, state), state.live)
        elif _arrives(i):
            guard = self._guard(n, state)  # not known: it may be so, as with a branch
            live = state.live if guard is None else state.live & guard
            self._slots.arrive(state.turn, n, self._address(place, state), live, state.products_done)

    def _report(
        self,
        kind: str,
        n: int,
        words: np.ndarray,
        state: _State,
        wrong: np.ndarray,
        how: str,
        whole: str = "",
    ) -> None:
        if not wrong.any() or (n, kind) in self._found:
            return
        word = int(words[np.flatnonzero(wrong)[0]])
        writer = int(state.written[0, word]) - 1
        what = whole
        if not whole:
            other = self._code[writer]
            what = f"shared memory at {4 * word:#x}, written by {other.text} ({other.offset:#x}), {how}"
        self._found[n, kind] = Violation.at(kind, self._code[n], what)


def _plain(i: Instruction) -> bool:
    """A branch that its guard alone decides."""
    return i.base == "BRA" and "." not in i.opcode and len(i.operands) == 1


def _arrives(i: Instruction) -> bool:
    return i.base == "SYNCS" and "ARRIVE" in i.opcode

"""One program for the second model: its operations as arrays, and what is in flight where blocks begin."""

from __future__ import annotations

import hashlib
import re

import numpy as np

from . import flow, kinds, machine, raises, state
from .cached import slots
from .latency import HORIZON, Side, latencies
from .reading import Listing, Op
from .state import Facts, Learnt, State, Values

#: kind of what is learnt about opcodes whose operands the compiler leaves unread at a fence
_UNREAD = "queued at a fence"


class Kernel:
    """One program: its operations as arrays, and what is in flight at the beginning of every block."""

    def __init__(self, code: Listing, of: Kernel | None = None) -> None:
        self.code = code
        self.ops = code.ops
        self.count = len(code.ops)
        self.blocks = flow.blocks(code)
        self.high = np.array(code.control, dtype=np.uint64)
        self.words = np.array([(o.low, o.high) for o in self.ops], dtype=np.uint64)
        self.order = np.arange(self.count, dtype=np.int32)
        self.block_of = np.zeros(self.count, dtype=np.int32)
        for k, block in enumerate(self.blocks):
            self.block_of[block.start : block.end] = k
        self._number_registers()
        #: least stall of each fence and branch: what the compiler gave it, here or in the code copied
        self.least_stalls = dict(of.least_stalls) if of is not None else {}
        self.facts = self._facts()
        self.learnt = self._learnt()
        self._scratch = (np.zeros(self.tracked + 1, np.uint64), np.zeros(self.tracked + 1, np.uint8))
        self._learn(of)

    # -- arrays -------------------------------------------------------------------------------------------

    def _number_registers(self) -> None:
        used = {u.register for o in self.ops for u in (*o.reads, *o.writes)} | {o.guard for o in self.ops} - {
            -1
        }
        self.registers = sorted(used)
        self.index = {r: n for n, r in enumerate(self.registers)}
        self._leaf = np.array([digest(f"register {r}") for r in self.registers], np.uint64)
        self._tokens = [np.uint64(digest(f"block {k}")) for k in range(len(self.blocks))]
        self.live_out = [
            np.array([n for n, r in enumerate(self.registers) if b.live_out >> r & 1], dtype=np.int32)
            for b in self.blocks
        ]

    def _facts(self) -> Facts:
        ops, count, table = self.ops, self.count, latencies()
        self.names = names = sorted({o.base for o in ops})
        name = {base: n for n, base in enumerate(names)}
        producers: dict[tuple[str, str], int] = {}
        consumers: dict[tuple[str, str], int] = {}
        reads: list[tuple[int, int, int]] = []
        writes: list[tuple[int, int]] = []
        read_at, write_at = np.zeros(count + 1, np.int32), np.zeros(count + 1, np.int32)
        cached = np.full((count, 3), -1, np.int32)
        tracked: list[int] = []
        number = np.full(count, -1, np.int32)
        variable = np.zeros(count, np.uint8)
        control = self.high
        for n, o in enumerate(ops):
            key = table.name(o.base, o.mods)
            place = str(o.address[3]) if o.address else ""
            written = {u.register for u in o.writes}
            for u in o.reads:
                cc = consumers.setdefault((key, u.slot), len(consumers))
                inside = u.slot.rstrip("+0123456789")[-1:] in ("a", "u", "d")
                source = o.base in kinds.PRODUCTS and u.register < 256 and u.register not in written
                # LDGSTS has two addresses: the second one's registers may be the first one's neighbours
                flags = int(inside and re.match(r"\d*", u.slot)[0] == place) | 2 * source  # type: ignore[index]
                reads.append((self.index[u.register], cc, flags))
            for u in o.writes:
                writes.append((self.index[u.register], producers.setdefault((key, u.slot), len(producers))))
            read_at[n + 1], write_at[n + 1] = len(reads), len(writes)
            mine = {u.register for u in o.reads}
            for slot, register in enumerate(slots(o)):
                if register in mine and o.base not in kinds.STEERING:
                    cached[n, slot] = self.index[register]
            wb, rb = int(control[n]) >> 46 & 7, int(control[n]) >> 49 & 7
            variable[n] = o.base in kinds.VARIABLE or wb < 6
            if (variable[n] or rb < 6) and not o.never:
                number[n] = len(tracked)
                tracked.append(n)
        self.tracked = len(tracked)
        self.relative = np.array([bool(o.targets) or "`" in o.what for o in ops])
        self.resultless = np.array([
            not o.writes and o.base not in ("LDGSTS", "LDGDEPBAR") and int(c) >> 46 & 7 == 7
            for o, c in zip(ops, control, strict=True)
        ])  # fmt: skip
        self.producers, self.consumers = list(producers), list(consumers)
        width = len(self.registers) // 64 + 1
        results, late = np.zeros((len(tracked), width), np.uint64), np.zeros((len(tracked), width), np.uint64)
        for v, n in enumerate(tracked):
            o = ops[n]
            rb = int(control[n]) >> 49 & 7
            for u in o.writes:
                if variable[n] and u.register < 528:
                    _set(results[v], self.index[u.register])
            for u in o.reads:
                uniform = 264 <= u.register < 520 and rb < 6 and o.base in kinds.COPIES
                if uniform and o.base == "SYNCS":
                    uniform = all(w.register >= 256 for w in o.reads)
                if u.register < 256 or uniform:
                    _set(late[v], self.index[u.register])
        has = np.array(
            [int(r.any()) | 2 * int(q.any()) for r, q in zip(results, late, strict=True)], np.uint8
        )
        least = self.least_stalls
        kind = np.array([kinds.kind(o.base, o.operands, o.never) for o in ops], np.uint8)
        for n, o in enumerate(ops):
            if kind[n] >= kinds.FENCE:
                stall = int(control[n]) >> 41 & 15
                least[o.what] = min(stall, least.get(o.what, 15))
        counted = [0 if o.base in kinds.UNCOUNTED else 1 for o in ops]
        groups = ("LDGDEPBAR", "UTMACMDFLUSH")
        memory = [kinds.MEMORY.get(o.base, (2, 0) if o.base in kinds.PRODUCTS else (0, 0)) for o in ops]
        ordered = [
            (bool({"STRONG", "MMIO"} & set(o.mods)) and o.base in kinds.MEMORY)
            or (o.base.startswith(("ATOM", "RED")) and o.base in kinds.MEMORY) for o in ops
        ]  # fmt: skip
        size = [o.address[2] if o.address is not None and o.base in kinds.PLAIN else 0 for o in ops]
        row = np.full(count, 0, np.int32)
        self.fence_rows = 0
        for n in range(count):
            if kind[n] == kinds.FENCE:
                row[n] = self.fence_rows
                self.fence_rows += 1
        follow_at = np.zeros(len(self.blocks) + 1, np.int32)
        follow_at[1:] = np.cumsum([len(b.follow) for b in self.blocks])
        depbar = [_groups_left(o) for o in ops]
        alone = raises.free()
        heeds = np.full((max(1, self.fence_rows), max(1, len(tracked))), 3, np.uint8)
        for n in np.flatnonzero(kind == kinds.FENCE).tolist():
            for v, m in enumerate(tracked):
                base, is_a = ops[m].base, int(kind[m])
                if kinds.reads_are_past(base, is_a, ops[n].base):
                    heeds[row[n], v] = 0 if kinds.result_is_past(base, is_a, ops[n].base) else 1
        pairs = self._pairs()
        return Facts(
            hash=np.array([digest(o.what) for o in ops], np.uint64), kind=kind,
            never=np.array([o.never for o in ops], np.uint8),
            guard=np.array([self.index.get(o.guard, -1) for o in ops], np.int32),
            negated=np.array([o.negated for o in ops], np.uint8),
            read_at=read_at, read_reg=_column(reads, 0, np.int32), read_cc=_column(reads, 1, np.int16),
            read_flag=_column(reads, 2, np.uint8),
            write_at=write_at, write_reg=_column(writes, 0, np.int32), write_pc=_column(writes, 1, np.int16),
            loads=np.array([m[0] for m in memory], np.uint8),
            stores=np.array([m[1] for m in memory], np.uint8),
            ordered=np.array(ordered, np.uint8),
            offset=np.array([o.address[1] if o.address else 0 for o in ops], np.int64),
            size=np.array(size, np.int64), shape=np.array([_shape(o) for o in ops], np.uint64), cached=cached,
            variable=variable, number=number, name=np.array([name[o.base] for o in ops], np.int32),
            least=np.array([least.get(o.what, 0) if kind[n] >= kinds.FENCE else 0 for n, o in enumerate(ops)],
                           np.int32),
            counted=np.array([c | (0 if o.base in groups else 2) for c, o in zip(counted, ops, strict=True)],
                             np.uint8),
            lone=np.array([[alone.get((o.base, late), 0) for late in (False, True)] for o in ops], np.int16),
            drains=np.array([_drains(o) for o in ops], np.uint8),
            products=np.array([_product(o) for o in ops], np.uint8), depbar=np.array(depbar, np.int32),
            barrier=np.array([o.base == "BAR" for o in ops], np.uint8), row=row, heeds=heeds,
            owner=np.array([name[ops[n].base] for n in tracked], np.int32), has=has,
            results=results, operands=late, by_result=_pairs_of(names, kinds.IN_ORDER_RESULTS),
            by_read=_pairs_of(names, kinds.IN_ORDER_READS),
            raw=pairs[0], waw=pairs[1], war=pairs[2], most_war=pairs[2].max(axis=1, initial=0),
            start=np.array([b.start for b in self.blocks], np.int32),
            end=np.array([b.end for b in self.blocks], np.int32),
            follow_at=follow_at, follow=np.array([m for b in self.blocks for m in b.follow], np.int32),
        )  # fmt: skip

    def _pairs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Least distances of every pair of producer and consumer slots of this kernel."""
        table, p, c = latencies(), self.producers, self.consumers
        raw, waw = np.zeros((len(p), len(c)), np.int32), np.zeros((len(p), len(p)), np.int32)
        war = np.zeros((len(c), len(p)), np.int32)
        self.exact = np.zeros((len(p), len(c)), np.bool_)
        for a, first in enumerate(p):
            for b, second in enumerate(c):
                raw[a, b], self.exact[a, b] = table.need("raw", first, second)
            for b, second in enumerate(p):
                waw[a, b] = table.need("waw", first, second)[0]
        for a, first in enumerate(c):
            for b, second in enumerate(p):
                war[a, b] = table.need("war", first, second)[0]
        return raw, waw, war

    def _learnt(self) -> Learnt:
        p, c, n = len(self.producers), len(self.consumers), int(self.facts.by_result.shape[0])
        return Learnt(
            raw=np.full((p, c), 1000, np.int32), waw=np.full((p, p), 1000, np.int32),
            war=np.full((c, p), 1000, np.int32), queue_write=np.zeros((n, n), np.uint8),
            queue_read=np.zeros((n, n), np.uint8),
            pending=np.zeros((max(1, self.fence_rows), max(1, self.tracked)), np.uint8),
            raised=np.zeros(6, np.int32), counts=np.zeros(4, np.int64),
            near_raw=np.full((p, c), 1000, np.int32), near_waw=np.full((p, p), 1000, np.int32),
            near_war=np.full((c, p), 1000, np.int32),
        )  # fmt: skip

    # -- simulation ---------------------------------------------------------------------------------------

    def fresh(self, rows: int) -> State:
        """Nothing in flight, in so many rows."""
        r, d, t = len(self.registers), state.DEPTH, self.tracked
        return State(
            np.zeros((rows, r), np.int32), np.zeros((rows, r, d), np.int16), np.zeros((rows, r, d), np.int32),
            np.zeros((rows, r, d), np.uint8), np.zeros((rows, r), np.int32), np.zeros((rows, r, d), np.int16),
            np.zeros((rows, r, d), np.int32), np.zeros((rows, r, d), np.uint8),
            np.full((rows, t), state.CLEAR, np.uint8), np.full((rows, t), state.CLEAR, np.uint8),
            np.full((rows, 6), -1000, np.int32), np.zeros((rows, 6), np.int32),
            np.zeros((rows, 6), np.int16),
            np.zeros((rows, r), np.uint8), np.zeros((rows, r), np.uint8), np.full(rows, -1000, np.int32),
            np.zeros(rows, np.uint8),
        )  # fmt: skip

    def leaves(self) -> Values:
        """Every register holds its own name."""
        return Values(self._leaf.copy(), self._leaf.copy(), np.zeros(len(self._leaf), np.uint64))

    def settle(self, order: np.ndarray, high: np.ndarray, mode: int) -> tuple[State, State]:
        """What is in flight at the beginning and the end of every block, by iteration from nothing."""
        states, ends, one = self.fresh(len(self.blocks)), self.fresh(len(self.blocks)), self.fresh(1)
        states.seen[0] = 1
        work, queued = [0], {0}
        note = np.zeros(4, np.int64)
        while work:
            k = work.pop(0)
            queued.discard(k)
            state.copy_state(one, 0, states, k)
            self.walk(order, high, k, one, 0, self.leaves(), mode, note)
            state.copy_state(ends, k, one, 0)
            for m in self.blocks[k].follow:
                if state.join(states, m, one, 0) and m not in queued:
                    queued.add(m)
                    work.append(m)
        return states, ends

    def walk(
        self, order: np.ndarray, high: np.ndarray, k: int, state: State, row: int, values: Values, mode: int,
        note: np.ndarray,
    ) -> tuple[int, int, int]:  # fmt: skip
        made = machine.walk(
            self.facts, self.learnt, order, high, k, state, row, values,
            self._tokens[k], mode, *self._scratch, note,
        )  # fmt: skip
        return int(made[0]), int(made[1]), int(made[2])

    def _learn(self, of: Kernel | None) -> None:
        """Take from the compiler's own code (`of`, or this) what it proves to be enough; run every block."""
        if of is None:
            self.settle(self.order, self.high, 1)
        else:
            self._adopt(of)
        self._queues()
        self._unread_at_fences()
        self.unexplained = self.learnt.counts.copy()
        f = self.facts
        self.closer = int(((f.raw > self.learnt.raw) & self.exact).sum())
        np.minimum(f.raw, self.learnt.raw, out=f.raw)
        np.minimum(f.waw, self.learnt.waw, out=f.waw)
        np.minimum(f.war, self.learnt.war, out=f.war)
        self.begins, self.ends = self.settle(self.order, self.high, 0)
        self.done = []
        self.held = []
        for k in range(len(self.blocks)):
            effects, held, _, _ = self.block(self.order, self.high, k, self.begins)
            self.done.append(effects)
            self.held.append(held)
        self.hazards = [k for k, done in enumerate(self.done) if done[2] and self.begins.seen[k]]

    def seen(self) -> dict[tuple[str, Side, Side], int]:
        """The least distances of this kernel within its blocks, of pairs that were not measured."""
        table, found = latencies(), {}
        for kind, near, first, second in (
            ("raw", self.learnt.near_raw, self.producers, self.consumers),
            ("waw", self.learnt.near_waw, self.producers, self.producers),
            ("war", self.learnt.near_war, self.consumers, self.producers),
        ):
            for a, b in zip(*np.nonzero(near < HORIZON), strict=True):
                key = (kind, first[a], second[b])
                if not table.measured(key):
                    found[key] = int(near[a, b])
        for kind, pairs in self._own_queues.items():
            for later, earlier in zip(*np.nonzero(pairs), strict=True):
                found[kind, (self.names[later], ""), (self.names[earlier], "")] = 1
        for fence, opcode in self._own_unread:
            found[_UNREAD, (fence, ""), (opcode, "")] = 1
        return found

    def _queues(self) -> None:
        """Pairs of opcodes of which the compiler lets the later overwrite what the earlier has pending."""
        known = {"queued write": self.learnt.queue_write, "queued read": self.learnt.queue_read}
        self._own_queues = {kind: pairs.copy() for kind, pairs in known.items()}
        # whose scoreboard or result tells that an earlier one has read cannot have written before that
        self.learnt.queue_read[:] |= self.facts.by_read | self.facts.by_result
        for kind, pairs in known.items():
            for later, earlier in np.ndindex(*pairs.shape):
                if latencies().queued(kind, self.names[later], self.names[earlier]):
                    pairs[later, earlier] = 1

    def _unread_at_fences(self) -> None:
        """A fence cannot tell the operations of a queue apart: where the compiler leaves the operands of one
        STS unread, here or at such a fence in other kernels, those of another STS may be unread too. Not
        where the fence gives registers away."""
        f, names = self.facts, self.names
        ordered = {n for n in range(len(names)) if f.by_read[n, n]}
        self._own_unread: set[tuple[str, str]] = set()
        for n in np.flatnonzero(f.kind == kinds.FENCE).tolist():
            op, left = self.ops[n], self.learnt.pending[f.row[n]]
            if op.base == "USETMAXREG":
                continue
            fence = ".".join((op.base, *op.mods[:1]))
            unread = ordered.intersection(f.owner[(left & 2) != 0].tolist())
            self._own_unread |= {(fence, names[m]) for m in unread}
            elsewhere = {m for m in ordered if latencies().queued(_UNREAD, fence, names[m])}
            left[np.isin(f.owner, sorted(unread | elsewhere))] |= 2

    def _adopt(self, of: Kernel) -> None:
        """What the compiler's code of another program shows, for the same slots, opcodes and fences here."""
        for mine, theirs, rows, columns in (
            (self.learnt.raw, of.learnt.raw, "producers", "consumers"),
            (self.learnt.waw, of.learnt.waw, "producers", "producers"),
            (self.learnt.war, of.learnt.war, "consumers", "producers"),
        ):
            at = [{key: n for n, key in enumerate(getattr(of, name))} for name in (rows, columns)]
            for a, first in enumerate(getattr(self, rows)):
                for b, second in enumerate(getattr(self, columns)):
                    if first in at[0] and second in at[1]:
                        mine[a, b] = theirs[at[0][first], at[1][second]]
        if self.names == of.names:
            self.learnt.queue_write[:] = of.learnt.queue_write
            self.learnt.queue_read[:] = of.learnt.queue_read
        if self.learnt.pending.shape == of.learnt.pending.shape:
            self.learnt.pending[:] = of.learnt.pending
        self.learnt.raised[:] = of.learnt.raised

    def block(
        self, order: np.ndarray, high: np.ndarray, k: int, begins: State
    ) -> tuple[tuple[int, int, int], np.ndarray, State, np.ndarray]:
        """(effects, values of the live registers, what is in flight behind it, first hazard) of a block."""
        one, values, note = self.fresh(1), self.leaves(), np.zeros(4, np.int64)
        state.copy_state(one, 0, begins, k)
        effects = self.walk(order, high, k, one, 0, values, 0, note)
        held = state.held(values, self.live_out[k])
        return effects, held, one, note


def _set(mask: np.ndarray, bit: int) -> None:
    mask[bit >> 6] |= np.uint64(1 << (bit & 63))


def _column(rows: list[tuple[int, ...]], n: int, kind: type) -> np.ndarray:
    return np.array([row[n] for row in rows], dtype=kind)


def digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _shape(op: Op) -> int:
    """An address' form without its registers and offset."""
    if op.address is None:
        return 0
    form = re.sub(r"\d+", "#", re.sub(r"\+?-?0x[0-9a-f]+", "", op.operands[op.address[3]]))
    return digest(form + ("S" if op.base in ("LDS", "STS") else ""))


def _groups_left(op: Op) -> int:
    """How many groups of products WARPGROUP.DEPBAR lets go on; -1 for anything else."""
    if op.base != "WARPGROUP" or op.mods[:1] != ("DEPBAR",):
        return -1
    return int(op.operands[-1], 16) if len(op.operands) > 1 else 0


def _drains(op: Op) -> int:
    """Bit mask of the scoreboard that ``DEPBAR.LE SB0, 0x0`` waits for."""
    if op.base != "DEPBAR" or len(op.operands) != 2 or op.operands[1] != "0x0":
        return 0
    found = re.fullmatch(r"SB([0-5])", op.operands[0])
    return 1 << int(found[1]) if found else 0


def _product(op: Op) -> int:
    """1 for an asynchronous matrix product, 2 for one that closes its group."""
    if op.base not in kinds.PRODUCTS:
        return 0
    return 2 if any("gsb" in text for text in op.operands) else 1


def _pairs_of(names: list[str], table: dict[str, frozenset[str]]) -> np.ndarray:
    """[later, earlier]."""
    made = np.zeros((len(names), len(names)), np.uint8)
    for earlier, others in table.items():
        for later in others:
            if earlier in names and later in names:
                made[names.index(later), names.index(earlier)] = 1
    return made

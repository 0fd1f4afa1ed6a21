"""The second dependence model: does a candidate do, on symbols, what the compiler's kernel does?

`SecondModel` simulates both, block by block (`machine`), and compares: the order of what can be seen (memory,
fences, branches), the expressions in it, and what every register that is read later holds at the end of the
block. It shares nothing with ``sassafras.validate`` and ``sassafras.schedule``: operands are read by
`reading`, flow by `flow`, and latencies are those measured on a GPU (`latency`), where the validator takes
mined ones.

"different" means wrong or not known to be right.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from . import state
from .kernel import Kernel, digest
from .reading import CONTROL_BITS, Unread, listing
from .state import State, Values

EQUAL, IDLE, DIFFERENT = "equal", "idle", "different"
_CLEAN = np.uint64(2**64 - 1 - CONTROL_BITS)
#: stall, barriers and waits: what of a control code the simulation depends on whatever the registers hold
_TIMING = np.uint64((0xF << 41) | (0x3F << 46) | (0x3F << 52))
_REASONS = (
    "another effect or value", "a fence or branch stalls for less", "a result is read before it is there",
    "a late result is read", "a product in flight is touched", "a stale cached operand",
    "something is pending at a fence", "a later write lands first", "an operand is overwritten too soon",
    "a late result lands on a newer one", "a late operand is overwritten", "a scoreboard is raised too often",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Judgement:
    """`verdict`: "equal"; "idle" (the same program instruction by instruction: nothing but yield bits and
    unused reuse flags differ); "different", with `why` it is, and `where`: instruction number or ``""``."""

    verdict: str
    why: str = ""
    where: str = ""


class SecondModel:
    """Judges candidates of one kernel.

    Args:
        original: the compiler's cubin.
        name: the kernel.

    Attributes:
        sound: whether the model accepts the original itself; if not, its judgements mean nothing.
        trouble: why not.

    Raises:
        Unread: the model cannot read this kernel.
    """

    def __init__(self, original: bytes, name: str) -> None:
        self.name, self.original = name, original
        self.kernel = Kernel(listing(original, name))
        self.bases = [self.kernel]
        lost = self.kernel.unexplained
        self.trouble = ""
        if lost.any() or self.kernel.hazards:
            self.trouble = f"unexplained in the original: {lost.tolist()}, blocks {self.kernel.hazards[:4]}"
        self.sound = not self.trouble
        self._keys = [self._block_keys(self.kernel)]

    @staticmethod
    def _block_keys(k: Kernel) -> list[dict[tuple[int, int], list[int]]]:
        made = []
        for block in k.blocks:
            found: dict[tuple[int, int], list[int]] = {}
            for n in range(block.start, block.end):
                found.setdefault((int(k.words[n, 0]), int(k.words[n, 1])), []).append(n)
            made.append(found)
        return made

    def judge(self, candidate: bytes) -> Judgement:
        """Compare a candidate with the original, or with a copy of it that `via` has proved."""
        k = self.kernel
        if len(candidate) != len(self.original):
            return Judgement(DIFFERENT, "another length")
        words = np.frombuffer(candidate, "<u8", 2 * k.count, k.code.offset).reshape(-1, 2)
        low, high = words[:, 0], np.ascontiguousarray(words[:, 1])
        for base, keys in zip(self.bases, self._keys, strict=True):
            order = self._match(base, keys, low, high)
            if order is not None:
                return self._compare(base, order, high)
        return Judgement(DIFFERENT, "an instruction is not the original's, or left its block")

    def _match(
        self, base: Kernel, keys: list[dict[tuple[int, int], list[int]]], low: np.ndarray, high: np.ndarray
    ) -> np.ndarray | None:
        """Which of the base's operations stands where; None where its blocks hold others."""
        clean = high & _CLEAN
        moved = np.flatnonzero((low != base.words[:, 0]) | (clean != base.words[:, 1]))
        order = base.order
        if not len(moved):
            return order
        order = order.copy()
        for b in np.unique(base.block_of[moved]).tolist():
            start, end = base.blocks[b].start, base.blocks[b].end
            used: dict[tuple[int, int], int] = {}
            for p in range(start, end):
                key = (int(low[p]), int(clean[p]))
                found, n = keys[b].get(key), used.get(key, 0)
                if found is None or n >= len(found):
                    return None
                used[key] = n + 1
                order[p] = found[n]
                if found[n] != p and base.relative[found[n]]:
                    return None
        return order

    def _compare(self, base: Kernel, order: np.ndarray, high: np.ndarray) -> Judgement:
        differs = (order != base.order) | ((high & ~_CLEAN) != (base.high & ~_CLEAN))
        changed = np.unique(base.block_of[differs]).tolist()
        if bad := self._encoding(base, order, high):
            return Judgement(DIFFERENT, "a control code that is no code", str(bad))
        if not changed:
            return Judgement(IDLE)
        idle = (order == base.order).all() and not ((high ^ base.high) & _TIMING).any()
        made = self._incremental(base, order, high, changed)
        if made.verdict == DIFFERENT:
            made = self._whole(base, order, high)
        return Judgement(IDLE) if idle and made.verdict == EQUAL else made

    @staticmethod
    def _encoding(base: Kernel, order: np.ndarray, high: np.ndarray) -> int | None:
        """Position of a control code that no instruction may have."""
        field = (high >> np.uint64(41)) & np.uint64(31)
        write, read = (high >> np.uint64(46)) & np.uint64(7), (high >> np.uint64(49)) & np.uint64(7)
        wrong = (field == 16) | (field > 27) | (write == 6) | (read == 6) | (high >> np.uint64(62) != 0)
        # nothing lowers the write scoreboard of what writes nothing
        wrong |= (write < 7) & base.resultless[order]
        found = np.flatnonzero(wrong)
        return int(found[0]) if len(found) else None

    def _same(
        self, base: Kernel, b: int, order: np.ndarray, high: np.ndarray, begins: State
    ) -> tuple[str, int, State]:
        """("", or why a block differs; where; what is in flight behind it)."""
        effects, held, one, note = base.block(order, high, b, begins)
        if effects == base.done[b] and (held == base.held[b]).all():
            return "", 0, one
        return _REASONS[int(note[1])], int(note[0]), one

    def _incremental(
        self, base: Kernel, order: np.ndarray, high: np.ndarray, changed: list[int]
    ) -> Judgement:
        """Run the blocks that changed, and those behind in which more is in flight than in the original."""
        if 2 * len(changed) > len(base.blocks) + 4:
            return self._whole(base, order, high)
        begins: State | None = None
        work = list(changed)
        rounds = 0
        while work:
            b = work.pop(0)
            why, where, one = self._same(base, b, order, high, base.begins if begins is None else begins)
            if why:
                return Judgement(DIFFERENT, why, str(where))
            if not state.adds(base.ends, b, one, 0):
                continue
            rounds += 1
            if rounds > 4 * len(base.blocks):
                return Judgement(DIFFERENT, "no end is found")
            if begins is None:
                begins = base.fresh(len(base.blocks))
                for name, mine in zip(begins._fields, begins, strict=True):
                    mine[:] = getattr(base.begins, name)
            for m in base.blocks[b].follow:
                if state.join(begins, m, one, 0) and m not in work:
                    work.append(m)
        return Judgement(EQUAL)

    def _whole(self, base: Kernel, order: np.ndarray, high: np.ndarray) -> Judgement:
        """Run everything from nothing."""
        begins, _ = base.settle(order, high, 0)
        for b in range(len(base.blocks)):
            if begins.seen[b]:
                why, where, _ = self._same(base, b, order, high, begins)
                if why:
                    return Judgement(DIFFERENT, why, str(where))
        return Judgement(EQUAL)

    # -- copies -------------------------------------------------------------------------------------------

    def via(self, copy: bytes) -> Judgement:
        """Prove a copy under other register names or with instructions moved over branches; `judge` then
        takes schedules of it.

        Both programs run in step, block by block. Which registers of the two hold equal values is found by
        iteration, beginning with all that may be; where two paths meet, registers stay equal if they are on
        each. Whatever a warp's active lanes decide is bound to its block.
        """
        a = self.kernel
        try:
            b = Kernel(listing(copy, self.name), a)
        except Unread as error:
            return Judgement(DIFFERENT, str(error))
        if len(a.blocks) != len(b.blocks) or any(
            x.follow != y.follow for x, y in zip(a.blocks, b.blocks, strict=True)
        ):
            return Judgement(DIFFERENT, "another control flow")
        tracked = [[o.base for n, o in enumerate(k.ops) if k.facts.number[n] >= 0] for k in (a, b)]
        if tracked[0] != tracked[1]:
            return Judgement(DIFFERENT, "other operations of variable latency, or in another order")
        if b.hazards:
            note = b.block(b.order, b.high, b.hazards[0], b.begins)[3]
            return Judgement(DIFFERENT, _REASONS[int(note[1])], str(int(note[0])))
        different = self._in_step(a, b)
        if different >= 0:
            return Judgement(DIFFERENT, "another effect or value", f"block {different}")
        self.bases.append(b)
        self._keys.append(self._block_keys(b))
        return Judgement(EQUAL)

    @staticmethod
    def _in_step(a: Kernel, b: Kernel) -> int:
        """The first block whose effects differ, -1 for none."""
        first, cut = np.concatenate([a.leaves().t, b.leaves().t]), len(a.registers)
        before: list[list[int]] = [[] for _ in a.blocks]
        for k, block in enumerate(a.blocks):
            for m in block.follow:
                before[m].append(k)
        out: list[np.ndarray | None] = [None] * len(a.blocks)
        entered: list[np.ndarray | None] = [None] * len(a.blocks)

        def run(k: int, values: np.ndarray) -> tuple[tuple[int, int, int], tuple[int, int, int], np.ndarray]:
            effects, after = [], []
            for kernel, part in ((a, values[:cut]), (b, values[cut:])):
                held = Values(part.copy(), part.copy(), np.zeros(len(part), np.uint64))
                one = kernel.fresh(1)
                state.copy_state(one, 0, kernel.begins, k)
                note = np.zeros(4, np.int64)
                effects.append(kernel.walk(kernel.order, kernel.high, k, one, 0, held, 0, note))
                after.append(state.held(held, np.arange(len(part), dtype=np.int32)))
            return effects[0], effects[1], np.concatenate(after)

        work = [0]
        while work:
            k = work.pop(0)
            come = [out[m] for m in before[k] if out[m] is not None] + ([first] if k == 0 else [])
            if len(before[k]) + (k == 0) == 1:
                values = come[0]
            else:
                # registers are equal here if they are on every path; each class gets a name of this block
                _, inverse = np.unique(np.stack(come), axis=1, return_inverse=True)  # type: ignore[type-var]
                inverse = inverse.ravel()
                least = np.full(int(inverse.max()) + 1, len(inverse), np.int64)
                np.minimum.at(least, inverse, np.arange(len(inverse)))
                values = np.array([digest(f"meets {k} {least[c]}") for c in inverse], np.uint64)
            known = entered[k]
            if known is not None and values is not None and (known == values).all():
                continue
            entered[k] = values
            assert values is not None
            left = run(k, values)[2]
            last = out[k]
            out[k] = left
            if last is None or (last != left).any():
                work += [m for m in a.blocks[k].follow if m not in work]
        for k, values in enumerate(entered):
            if values is not None:
                one, two, _ = run(k, values)
                if one != two:
                    return k
        return -1

"""Blocks, the edges between them, and which registers are live where: the second model's own reading."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .reading import Listing, Op, Unread

#: after these a block ends
ENDS = frozenset("BRA BRX BRXU JMP JMX JMXU RET CALL EXIT KILL BREAK BSYNC RTT BPT WARPSYNC".split())  # noqa: SIM905
_STOPS = frozenset(["BRA", "BRX", "BRXU", "JMP", "JMX", "JMXU", "RET", "EXIT", "KILL", "RTT", "CALL"])


@dataclass(slots=True)
class Block:
    """Instructions ``start <= n < end``, the blocks that may follow, and the registers live behind it."""

    start: int
    end: int
    follow: list[int]
    live_in: int = 0
    live_out: int = 0


def blocks(code: Listing) -> list[Block]:
    """Blocks in the order of the code.

    Raises:
        Unread: an indirect branch without known targets.
    """
    ops, count = code.ops, len(code.ops)
    leaders = {0}
    for n, op in enumerate(ops):
        leaders.update(t for t in op.targets if t < count)
        leaders.update(t for t in code.indirect.get(n, ()) if t < count)
        if op.base in ENDS and n + 1 < count:
            leaders.add(n + 1)
        if op.base in ("BRX", "BRXU", "JMX", "JMXU") and n not in code.indirect:
            raise Unread("an indirect branch without targets")
    leaders.update(t for t in code.functions if t < count)
    starts = sorted(leaders)
    of = {start: k for k, start in enumerate(starts)}
    made = [Block(s, e, []) for s, e in zip(starts, [*starts[1:], count], strict=True)]
    calls: dict[int, list[int]] = {}
    for k, block in enumerate(made):
        op = ops[block.end - 1]
        follow: set[int] = set()
        if op.base == "CALL":
            # through a register: the label is what the address counts from, and any function may be meant
            pointer = op.operands[0].startswith("R")
            entries = code.functions if pointer else list(op.targets) or code.functions
            if not entries:
                raise Unread("a call whose target is not known")
            follow.update(of[t] for t in entries)
            for t in entries:
                calls.setdefault(of[t], []).append(k + 1)
        elif op.base in ("BRX", "BRXU", "JMX", "JMXU"):
            follow.update(of[t] for t in code.indirect[block.end - 1])
        elif op.base in ("BRA", "JMP"):
            if not op.targets:
                raise Unread("a branch whose target is not known")
            follow.update(of[t] for t in op.targets if t < count)
        elif op.base == "BREAK":
            follow.update(of[t] for t in op.targets if t < count)
        if (op.base not in _STOPS or _conditional(op)) and k + 1 < len(made):
            follow.add(k + 1)
        block.follow = sorted(follow)
    _converge(ops, made, of)
    _return(ops, made, calls)
    _live(ops, made)
    return made


def _conditional(op: Op) -> bool:
    if op.guard >= 0 or op.never:
        return True
    if op.base == "BRA":
        return bool(op.mods) or len(op.operands) > 1
    return op.base == "EXIT" and bool(op.operands)


def _spread(count: int, step: Callable[[int], list[int]]) -> None:
    """Call `step` for every block until none asks for another to be looked at again."""
    work = list(range(count))
    queued = [True] * count
    while work:
        k = work.pop(0)
        queued[k] = False
        for m in step(k):
            if not queued[m]:
                queued[m] = True
                work.append(m)


def _converge(ops: list[Op], made: list[Block], of: dict[int, int]) -> None:
    """BSYNC goes on where a BSSY of its barrier says that reaches it."""
    every = {of[t] for op in ops if op.base == "BSSY" for t in op.targets if t in of}
    held: list[dict[int, frozenset[int]]] = [{} for _ in made]

    def step(k: int) -> list[int]:
        state = dict(held[k])
        for op in ops[made[k].start : made[k].end]:
            if op.base == "BSSY":
                state[op.writes[0].register] = frozenset(of[t] for t in op.targets if t in of)
            elif op.base == "BMOV" and op.writes and op.writes[0].register >= 528:
                state[op.writes[0].register] = frozenset(every)
        last = ops[made[k].end - 1]
        onward = set(made[k].follow)
        if last.base == "BSYNC" and last.reads:
            barrier = next(u.register for u in last.reads if u.register >= 528)
            onward |= state.get(barrier, frozenset())
            made[k].follow = sorted(onward)
        if last.base == "CALL" and k + 1 < len(made):
            onward.add(k + 1)
        changed = []
        for m in onward:
            new = {b: held[m].get(b, frozenset()) | t for b, t in state.items()}
            if any(held[m].get(b) != t for b, t in new.items()):
                held[m].update(new)
                changed.append(m)
        return changed

    _spread(len(made), step)


def _return(ops: list[Op], made: list[Block], calls: dict[int, list[int]]) -> None:
    """RET goes back behind the calls of the function that it stands in."""
    everywhere = sorted({k for back in calls.values() for k in back if k < len(made)})
    behind: dict[int, set[int]] = {}
    for entry, back in calls.items():
        seen, work = {entry}, [entry]
        while work:
            k = work.pop()
            last = ops[made[k].end - 1]
            if last.base == "RET":
                behind.setdefault(k, set()).update(b for b in back if b < len(made))
            over = [k + 1] if last.base == "CALL" else made[k].follow
            for m in over:
                if m < len(made) and m not in seen:
                    seen.add(m)
                    work.append(m)
    for k, block in enumerate(made):
        if ops[block.end - 1].base == "RET":
            block.follow = sorted(set(block.follow) | behind.get(k, set(everywhere)))


def _live(ops: list[Op], made: list[Block]) -> None:
    """Live registers as bit masks; a write under a guard does not end a value's life."""
    use, kill = [], []
    for block in made:
        needed = killed = 0
        for op in ops[block.start : block.end]:
            if op.never:
                continue
            for read in op.reads:
                needed |= (1 << read.register) & ~killed
            if op.guard < 0:
                for write in op.writes:
                    killed |= 1 << write.register
        use.append(needed)
        kill.append(killed)
    before: list[list[int]] = [[] for _ in made]
    for k, block in enumerate(made):
        for m in block.follow:
            before[m].append(k)

    def step(k: int) -> list[int]:
        block = made[k]
        out = 0
        for m in block.follow:
            out |= made[m].live_in
        into = use[k] | (out & ~kill[k])
        changed = into != block.live_in
        block.live_out, block.live_in = out, into
        return before[k] if changed else []

    _spread(len(made), step)

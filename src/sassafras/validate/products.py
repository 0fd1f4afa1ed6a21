"""Registers of asynchronous matrix products (WGMMA): touched only after the wait for their group.

A product reads its A registers and reads and writes its accumulators long after issue, and no scoreboard
says when. ``gsb0`` closes a group of products; ``WARPGROUP.DEPBAR.LE gsb0, N`` returns when at most N closed
groups are still at work. Nothing else may touch these registers in between, but for products that add to the
same accumulators: the queue keeps these in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sassafras.sass import Instruction

from .classes import WARPGROUP_PRODUCTS
from .effects import Effects
from .graph import GraphBlock
from .operands import P, spell
from .report import Violation

#: groups closed since a product's issue are counted up to here
_MOST_GROUPS = 64

State = dict[int, int]
"""product that may be at work -> the least number of groups closed since its issue, its own included"""


def touched(
    code: Sequence[Instruction], effects: Sequence[Effects], blocks: Sequence[GraphBlock]
) -> Iterator[Violation]:
    """Registers of products that are read or written before the wait, over the whole control-flow graph.

    Args:
        code, effects: the kernel, and what each instruction reads and writes.
        blocks: its control-flow graph.
    """
    products = [n for n, i in enumerate(code) if i.base in WARPGROUP_PRODUCTS]
    if not products:
        return
    results = {n: frozenset(r for r in effects[n].writes if r < P) for n in products}
    operands = {n: frozenset(r for r in effects[n].reads if r < P) - results[n] for n in products}
    entry: list[State | None] = [None] * len(blocks)
    entry[0] = {}
    work = [0]
    while work:
        b = work.pop()
        state = dict(entry[b] or {})
        for n in range(blocks[b].start, blocks[b].end):
            _step(code[n], n, state)
        for m in blocks[b].follow:
            known = entry[m]
            merged = dict(state) if known is None else dict(known)
            for v, age in state.items():
                merged[v] = min(age, merged.get(v, age))
            if merged != known:
                entry[m] = merged
                work.append(m)
    for block, known in zip(blocks, entry, strict=True):
        state = dict(known or {})
        for n in range(block.start, block.end):
            if state and not effects[n].never:
                yield from _conflicts(code, effects[n], n, state, results, operands)
            _step(code[n], n, state)


def waits_for(i: Instruction) -> int | None:
    """N of ``WARPGROUP.DEPBAR.LE gsb0, N``, None for any other instruction."""
    if i.base == "WARPGROUP" and ".DEPBAR" in i.opcode and i.operands[:1] == ("gsb0",):
        return int(i.operands[1], 16)
    return None


def _step(i: Instruction, n: int, state: State) -> None:
    if i.base in WARPGROUP_PRODUCTS:
        state[n] = 0
        if "gsb0" in i.operands:
            for v, closed in state.items():
                state[v] = min(_MOST_GROUPS, closed + 1)
    elif (most := waits_for(i)) is not None:
        for v in [v for v, closed in state.items() if closed > most]:
            del state[v]


def _conflicts(
    code: Sequence[Instruction],
    mine: Effects,
    n: int,
    state: State,
    results: dict[int, frozenset[int]],
    operands: dict[int, frozenset[int]],
) -> Iterator[Violation]:
    reads = frozenset(r for r in mine.reads if r < P)
    writes = frozenset(r for r in mine.writes if r < P)
    for v in state:
        if n in results and results[n] == results[v]:
            early = results[v] & operands[n]  # one accumulator, in the order of the queue
        else:
            early = results[v] & (reads | writes)
        late = operands[v] & writes if n not in results or results[n] != results[v] else frozenset()
        if early or late:
            register = min(early or late)
            what = "accumulator" if early else "operand"
            does = "overwritten" if register in writes else "read"
            whose = f"{what} {spell(register)} of {code[v].text} ({code[v].offset:#x})"
            yield Violation.at("wgmma", code[n], f"{whose} is {does} before the wait for its group")
            return

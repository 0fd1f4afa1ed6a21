"""Instructions moved over the branch between a block and the only block that leads to it.

Where block B is entered from P alone, directly behind it, an instruction of B that only computes may
as well run at the end of P, if the old value of its result is not read where P branches elsewhere; and the
other way round. Upwards that helps where P waits for something; out of a loop downwards, as B runs once.
Only the copy is made here, under the compiler's control codes; whether it is the same program is for
`validate.moves` to prove.
"""

from __future__ import annotations

import numpy as np

from sassafras.core.errors import SassafrasError
from sassafras.sass import Emitter, Function, Instruction, Program
from sassafras.sass.control import WAIT_SHIFT
from sassafras.sass.opcodes import BRANCHES, LANE_LOCAL
from sassafras.sass.registers import UGPR

from . import control, flow, reuse
from .flow import Block
from .graph import is_fence
from .webs import KernelCopy, fixed_registers, live

#: a kernel with one of these may hold addresses of its code in registers
_ADDRESSES = frozenset(
    ["CALL", "RET", "LEPC", "BRX", "BRXU", "JMX", "JMXU", "JMP", "RTT", "BREAK", "WARPSYNC"]
)


def move(program: Program, name: str, most: int | None = None) -> KernelCopy:
    """Move what may move over branches, first come first.

    Args:
        program, name: the kernel.
        most: at most so many instructions.

    Raises:
        SassafrasError: nothing in this kernel can move so.
    """
    function = program.function(name)
    code = function.instructions
    if any(i.base in _ADDRESSES for i in code) or function.indirect:
        raise SassafrasError("addresses of code may stand in registers", where=name)
    blocks = flow.blocks(function)
    lists = [list(range(b.start, b.end)) for b in blocks]
    weight = control.block_weights(blocks)
    fixed = fixed_registers(function)
    once = _unique(function)
    most, moved = len(code) if most is None else most, 0
    for head, tail in doors(function, blocks):
        rises = weight[head] <= weight[tail]
        for x in _candidates(function, blocks, lists, head, tail, rises, fixed, once):
            if moved == most:
                break
            if rises:
                lists[tail].remove(x)
                lists[head].insert(len(lists[head]) - 1, x)
            else:
                lists[head].remove(x)
                lists[tail].insert(0, x)
            moved += 1
    if moved == 0:
        raise SassafrasError("nothing in this kernel may move over a branch", where=name)
    return KernelCopy(emit(program, name, lists), moved)


def emit(program: Program, name: str, lists: list[list[int]]) -> bytes:
    """The cubin whose blocks hold these instructions, under the compiler's control codes.

    Its stall counts stand for distances that are certainly enough; they are not meant to be fast.
    """
    function = program.function(name)
    blocks = flow.blocks(function)
    order = np.array([n for row in lists for n in row], dtype=np.int64)
    home = {n: b for b in blocks for n in range(b.start, b.end)}
    gone = {n for b, row in zip(blocks, lists, strict=True) for n in row if home[n] is not b}
    words = _words(function, order, gone, {n: b.start for n, b in home.items()})
    begins = dict(
        zip((b.start for b in blocks), np.cumsum([0, *(len(row) for row in lists)]).tolist(), strict=False)
    )
    for p, n in enumerate(order.tolist()):
        words[p] = _aimed(function, n, p, begins, int(words[p, 0]), int(words[p, 1]))
    return Emitter(program, name).write(order, words)


def doors(function: Function, blocks: tuple[Block, ...]) -> list[tuple[int, int]]:
    """Pairs (P, B): B stands behind P, and nothing else leads there."""
    before: dict[int, list[int]] = {b.index: [] for b in blocks}
    for b in blocks:
        for s in b.successors:
            before[s].append(b.index)
    named = {at // 16 for at in function.labels.values()}
    found = []
    for b in blocks[1:]:
        p = blocks[b.index - 1]
        last = function.instructions[p.end - 1]
        if before[b.index] == [p.index] and b.start not in named and last.opcode in ("BRA", "EXIT"):
            found.append((p.index, b.index))
    return found


def _unique(function: Function) -> set[int]:
    """Instructions of which there is no second one (the validator tells them by their words)."""
    seen: dict[tuple[int, int], list[int]] = {}
    for i in function.instructions:
        seen.setdefault((i.low, i.high & (1 << 41) - 1), []).append(i.index)
    return {who[0] for who in seen.values() if len(who) == 1}


def _candidates(
    function: Function,
    blocks: tuple[Block, ...],
    lists: list[list[int]],
    head: int,
    tail: int,
    rises: bool,
    fixed: set[int],
    once: set[int],
) -> list[int]:
    """What may pass, in the order in which it has to go."""
    code = function.instructions
    entry = live(function, blocks, lists)
    needed = set().union(*(entry[s] for s in blocks[head].successors if s != tail))
    last = code[lists[head][-1]]
    reads, writes = set(last.reads), set(last.writes)
    row = lists[tail] if rises else lists[head][-2::-1]
    found = []
    for n in row:
        i = code[n]
        if is_fence(i):
            break
        free = (
            n in once
            and _pure(i, fixed)
            and not i.reads & writes
            and not i.writes & (reads | writes | needed)
        )
        if free:
            found.append(n)
        else:
            reads |= i.reads
            writes |= i.writes
    return found


def _pure(i: Instruction, fixed: set[int]) -> bool:
    touched = i.reads | i.writes
    c = i.control
    return (
        i.base in LANE_LOCAL
        and not i.op.variable
        and i.guard in ("", "PT")
        and c.write_barrier is None
        and c.read_barrier is None
        and bool(i.writes)
        and all(r < UGPR for r in touched)
        and not touched & fixed
    )


def _words(function: Function, order: np.ndarray, gone: set[int], block_start: dict[int, int]) -> np.ndarray:
    """Encodings by position: nothing is cached where something moved, what one of the `gone` waited for its
    old successor waits for as well, and distances are as long as they were.
    """
    from .encode_jit import encode

    code = function.instructions
    where = np.empty(len(order), dtype=np.int64)
    where[order] = np.arange(len(order))
    wait = {n: code[n].control.wait_mask for n in range(len(code))}
    stall = {n: code[n].control.stall for n in range(len(code))}
    for n in sorted(gone):
        after = next((m for m in range(n + 1, len(code)) if m not in gone), None)
        if wait[n] and after is not None and _may_wait(code[after]):
            wait[after] |= wait[n]
        # what stood before it keeps its distance from what stood behind it
        missing = max(1, code[n].control.stall)
        for m in range(n - 1, block_start[n] - 1, -1):
            if m not in gone and code[m].base not in BRANCHES and missing:
                more = min(15 - stall[m], missing)
                stall[m], missing = stall[m] + more, missing - more
        stall[n] = 15
        before = int(order[where[n] - 1]) if where[n] else n
        if code[before].base not in BRANCHES:
            stall[before] = 15  # and what it now stands behind from it
    words = encode(
        np.ascontiguousarray(function.words),
        order.astype(np.int32),
        np.array([stall[n] for n in order.tolist()], dtype=np.uint8),
        reuse.reaches(function),
        np.zeros(len(code), dtype=np.bool_),
    )
    for p, n in enumerate(order.tolist()):
        words[p, 1] = int(words[p, 1]) & ~(0x3F << WAIT_SHIFT) | wait[n] << WAIT_SHIFT
    return words


def _aimed(
    function: Function, n: int, p: int, begins: dict[int, int], low: int, high: int
) -> tuple[int, int]:
    """The words of a branch or BSSY with the offset from its place to where its target's block begins now.

    The first instruction of a block may have left it: a branch from elsewhere still enters at its start.
    """
    i = function.instructions[n]
    if i.base not in ("BRA", "BSSY"):
        return low, high
    target = next(at // 16 for name, at in function.labels.items() if f"`({name})" in i.text)
    to = target if target >= len(function) else begins[target]
    offset = 16 * to - 16 * (p + 1)
    if i.base == "BSSY":
        return low & 0xFFFFFFFF | (offset & 0xFFFFFFFF) << 32, high
    offset = offset // 4 & (1 << 56) - 1
    low = low & ~(0xFF << 16 | (1 << 64) - (1 << 34)) | (offset & 0xFF) << 16
    low |= (offset >> 8 & (1 << 30) - 1) << 34
    return low, high & ~((1 << 18) - 1) | offset >> 38


def _may_wait(i: Instruction) -> bool:
    return i.base not in control.NO_WAIT and i.opcode not in control.NO_WAIT

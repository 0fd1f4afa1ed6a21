"""Pairs that keep their order, on random programs: whatever keeps them computes the same, on every path."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from sassafras.frontend._ptxas import assemble
from sassafras.sass import Program
from sassafras.sass.tools import find
from sassafras.validate import Validator
from sassafras.validate.dependences import ORDER, RAW, WAR, WAW, BlockPairs, crossing
from sassafras.validate.effects import Access, Effects
from sassafras.validate.graph import GraphBlock
from sassafras.validate.operands import UP, P

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from planted.subject import Subject, put

#: few registers, so that accesses meet; two of them are predicates
REGISTERS = (0, 1, 2, P, UP)


def instruction(rng: random.Random, guards: tuple[int, ...]) -> Effects:
    """Random effects: one or two reads, one or two writes, half of them under a guard."""
    guard = rng.choice(guards) if guards and rng.random() < 0.5 else None
    read, written = rng.sample(REGISTERS, rng.randrange(3)), rng.sample(REGISTERS, rng.choice((0, 1, 1, 2)))
    accesses = [] if guard is None else [Access(guard, "G", False)]
    accesses += [*(Access(r, "1", False) for r in read), *(Access(w, "0", True) for w in written)]
    return Effects(tuple(accesses), guard, rng.random() < 0.5, rng.random() < 0.05, "")


def run(
    program: list[Effects], order: list[int], seed: int
) -> tuple[dict[int, int], dict[int, tuple[int, ...]]]:
    """The registers behind a block, and what each instruction that ran has read."""
    state = {r: hash((seed, r)) for r in REGISTERS}
    seen = {}
    for n in order:
        e = program[n]
        if e.never or (e.guard is not None and (state[e.guard] >> 7 & 1) == e.negated):
            continue
        seen[n] = tuple(state[r] for r in sorted(e.reads))
        state.update({w: hash((n, w, seen[n])) for w in e.writes})
    return state, seen


def test_an_order_that_keeps_every_pair_computes_the_same() -> None:
    rng, moved = random.Random(5), 0
    for _ in range(1500):
        program = [instruction(rng, (P, UP)) for _ in range(rng.randrange(3, 9))]
        pairs = BlockPairs(GraphBlock(0, len(program), ()), program).pairs
        behind = {n: {pair.first for pair in pairs if pair.second == n} for n in range(len(program))}
        left, order = list(range(len(program))), list[int]()
        while left:
            order.append(rng.choice([n for n in left if not behind[n] & {*left}]))
            left.remove(order[-1])
        moved += order != sorted(order)
        for seed in range(8):
            assert run(program, order, seed) == run(program, sorted(order), seed), (program, order)
    assert moved > 700


def met(program: list[Effects], seed: int) -> Iterator[tuple[int, int, int]]:
    """(kind, first, second) of the instructions that meet in a register where the block runs once."""
    state = {r: hash((seed, r)) for r in REGISTERS}
    writer, readers = dict[int, int](), {r: set[int]() for r in REGISTERS}
    for n, e in enumerate(program):
        if e.never or (e.guard is not None and (state[e.guard] >> 7 & 1) == e.negated):
            continue
        yield from ((RAW, writer[r], n) for r in e.reads if r in writer)
        for r in e.reads:
            readers[r].add(n)
        for w in e.writes:
            yield from ((WAR, m, n) for m in readers[w] - {n})
            if w in writer and not readers[w]:
                yield WAW, writer[w], n
            writer[w], readers[w] = n, set()
        seen = tuple(state[r] for r in sorted(e.reads))
        state.update({w: hash((n, w, seen)) for w in e.writes})


def test_what_meets_in_a_block_is_a_pair() -> None:
    """Not only in order by way of others: what takes a variable time is asked for by pairs."""
    rng, found = random.Random(9), 0
    for _ in range(1000):
        program = [instruction(rng, (P, UP)) for _ in range(rng.randrange(3, 9))]
        pairs = BlockPairs(GraphBlock(0, len(program), ()), program).pairs
        given = {(pair.kind, pair.first, pair.second) for pair in pairs}
        for seed in range(8):
            missing = {*met(program, seed)} - given
            assert not missing, (missing, program)
        found += len(given)
    assert found > 3000


def paths(blocks: list[GraphBlock], start: int, most: int) -> Iterator[list[int]]:
    """Ways along at most so many edges."""
    yield [start]
    if most:
        for m in blocks[start].follow:
            yield from ([start, *rest] for rest in paths(blocks, m, most - 1))


def wanted(
    blocks: list[GraphBlock], program: list[Effects], path: list[int]
) -> Iterator[tuple[int, int, int, list[int]]]:
    """(kind, first, second, blocks between) of what meets over a path's edges; a write after a write is `WAW`
    where nothing in between always reads the register, else `ORDER`."""
    late: list[
        tuple[int, int, bool, bool, int]
    ] = []  # register, instruction, write, unread, place in the path
    for place, b in enumerate(path):
        for n in range(blocks[b].start, blocks[b].end):
            e = program[n]
            if e.never:
                continue
            for register, first, write, unread, at in late:
                if at < place and register in e.reads and write:
                    yield RAW, first, n, path[at + 1 : place]
                if at < place and register in e.writes and register not in e.reads:
                    yield (WAW if unread else ORDER) if write else WAR, first, n, path[at + 1 : place]
            always = e.guard is None
            late = [(r, i, w, u and not (always and r in e.reads), at) for r, i, w, u, at in late]
            late = [row for row in late if not (always and row[0] in e.writes)]
            late += [(r, n, False, False, place) for r in e.reads - e.writes]
            late += [(r, n, True, True, place) for r in e.writes]


def test_what_meets_over_an_edge_is_found_on_every_path() -> None:
    """Each instruction has a guard of its own or none, so that none takes another one's place."""
    rng, found, far = random.Random(2), 0, 0
    for _ in range(150):
        ends = sorted(rng.sample(range(1, 9), 3))
        follow = [tuple(sorted(rng.sample(range(4), rng.randrange(3)))) for _ in range(4)]
        blocks = [GraphBlock(*row) for row in zip([0, *ends], [*ends, 9], follow, strict=True)]
        program = [instruction(rng, (P + 2 + n,) if n < 4 else ()) for n in range(9)]
        parts = [BlockPairs(b, program) for b in blocks]
        shortest = [rng.choice((1, 30)) for _ in blocks]
        given: dict[tuple[int, int, int], bool] = {}
        for pair, near in crossing(blocks, parts, shortest, 20):
            key = pair.kind, pair.first, pair.second
            given[key] = given.get(key, False) or near
        for start in range(4):
            for path in paths(blocks, start, 3):
                for kind, first, second, between in wanted(blocks, program, path):
                    near = sum(shortest[b] for b in between) < 20
                    assert given[kind, first, second] or not near, (blocks, program, path)
                    found, far = found + 1, far + (not near)
    assert found > 3000 and far > 100


def test_what_writes_its_own_guard_stays_behind_the_guards_readers() -> None:
    """``@P1 IADD3``, then ``@!P1 ISETP P1``: never both run, but ahead of it the second one decides whether
    the first one runs.

    ptxas has ``ISETP P0, .., !P1`` ahead of the IADD3; here it is put behind it, and made to write its guard.
    """
    ptx = """
.version 8.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 p) {
.reg .b64 %a; .reg .b32 %x<6>; .reg .pred %p;
ld.param.u64 %a, [p];
ld.volatile.global.v4.b32 {%x0, %x1, %x2, %x3}, [%a]; ld.volatile.global.v2.b32 {%x4, %x5}, [%a+16];
setp.lt.s32 %p, %x0, %x1;
@!%p add.s32 %x4, %x4, %x3;
@%p setp.gt.s32 %p, %x2, %x3;
@%p mul.lo.s32 %x5, %x5, %x3;
st.volatile.global.v2.b32 [%a], {%x4, %x5};
ret;
}
"""
    s = Subject(Program.parse(assemble(ptx, "sm_90a", str(find("ptxas").path))), "k")
    setter = [i.index for i in s.code if i.base == "ISETP"][1]
    assert [i.guard for i in s.code[setter : setter + 3]] == ["", "P1", "P0"]
    # an order in which the reader of the guard comes first, then the guard's writer under the opposite one
    order, start = s.moved(setter, setter + 1), s.function.text_offset
    words = s.function.words[order]
    words[:, 1] = [s.generous(setter - 1, setter + 3)[n] for n in order]
    words[setter + 1, 0] = put(int(words[setter + 1, 0]), 12, 4, 9)
    words[setter + 1, 1] = put(int(words[setter + 1, 1]), 17, 3, 1)
    words[setter + 2, 0] = put(int(words[setter + 2, 0]), 12, 4, 1)
    data = s.program.emit("k", np.arange(s.count))
    data = data[:start] + words.tobytes() + data[start + 16 * s.count :]
    made = Subject(Program.parse(data), "k")
    assert [i.text.split(", ")[0] for i in made.code[setter : setter + 2]] == [
        "@P1 IADD3 R8",
        "@!P1 ISETP.GT.AND P1",
    ]
    validator = Validator(data)
    assert validator.check(data).ok, str(validator.check(data))
    report = validator.check(made.emit(made.moved(setter + 1, setter), made.generous(setter, setter + 2)))
    assert "order" in {v.kind for v in report.violations}, str(report)

"""Instructions moved over branches: proved where it is the same program, refused where not."""

from __future__ import annotations

import random
import sys
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sassafras.core import Kernel
from sassafras.sass import Program
from sassafras.schedule.blocks import move
from sassafras.schedule.spaces import space_of
from sassafras.targets import load
from sassafras.timing_model import ModelDevice
from sassafras.validate import Validator
from sassafras.validate import moves as proof
from sassafras.validate.effects import Access, Effects
from sassafras.validate.graph import GraphBlock

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from planted import Subject
from planted import moves as planted


@lru_cache
def kernel(name: str) -> Kernel:
    workload = load(f"suite:{name}")
    return workload.build(workload.case(None), "sm_90a")


@pytest.mark.parametrize("name", ["gemv_int4", "gemm_leakyrelu"])
def test_moved_copies_are_proved_and_their_schedules_approved(name: str) -> None:
    original = kernel(name)
    space, validator = space_of("blocks", Validator)(original), Validator(original.cubin)
    assert "moved over branches" in space.description
    assert space.emit(space.start()) == original.cubin
    assert not validator.check(space.via[0]).ok  # nothing is believed before it is proved
    report = validator.via(space.via[0])
    assert report.ok, report.violations[0]
    before, after = (Program.parse(x).function().instructions for x in (original.cubin, space.via[0]))
    assert sorted(i.text.split("`")[0].replace(".reuse", "") for i in before) == sorted(
        i.text.split("`")[0].replace(".reuse", "") for i in after
    )
    branch = [next(i.index for i in code if i.base == "BRA") for code in (before, after)]
    assert branch[1] - branch[0] >= 5  # so many went up over the first branch
    rng = np.random.default_rng(0)
    state = space.start()
    for _ in range(15):
        step = space.sample(state, rng)
        assert step is not None
        state = space.apply(state, step)
        report = validator.check(space.emit(state))
        assert report.ok, f"{step}: {report.violations[0]}"
    assert validator.check(original.cubin).ok


def test_what_somebody_could_tell_is_refused() -> None:
    seen = set()
    original = kernel("gemv_int4")
    subject = Subject(Program.parse(original.cubin), original.name)
    validator = Validator(original.cubin)
    for mutant in planted(subject, np.random.default_rng(3), 1):
        report = validator.via(mutant.cubin)
        assert not report.ok, f"{mutant.kind}: {mutant.note}"
        assert report.violations[0].kind == "moves", f"{mutant.kind}: {report}"  # for the right reason
        seen.add(mutant.kind.removeprefix("moves: "))
    assert seen >= {
        "above what it depends on, or what depends on it",
        "above a branch behind which its result's old value is needed elsewhere",
        "a branch aimed one instruction too far",
        "and two dependent neighbours swapped",
    }


def test_a_stale_offset_record_is_refused() -> None:
    original = kernel("gemv_int4")
    program = Program.parse(original.cubin)
    function = program.function()
    copy = move(program, original.name).cubin
    validator = Validator(original.cubin)
    assert validator.via(copy).ok
    at, offset = function.offset_slots[0]
    wrong = copy[:at] + (offset + 16).to_bytes(4, "little") + copy[at + 4 :]
    assert not validator.via(wrong).ok


def reading(*rows: tuple[tuple[int, ...], tuple[int, ...]], blocks: tuple[GraphBlock, ...]) -> Any:
    """A program of (reads, writes) an instruction; those that end a block before a branch read P0 = 256."""
    accesses = [[Access(r, "1", False) for r in a] + [Access(w, "0", True) for w in b] for a, b in rows]
    effects = [Effects(tuple(a), None, False, False, "") for a in accesses]
    ends = [256 in a for a, _ in rows]
    code = [
        SimpleNamespace(text=f"i{n}", offset=16 * n, opcode="BRA" if end else "MOV")
        for n, end in enumerate(ends)
    ]
    function: Any = SimpleNamespace(instructions=code)
    return proof.Reading(function, effects, ends, [not end for end in ends], blocks)


def tried(one: Any, x: int, source: int, target: int, wanted: list[list[int]]) -> str:
    lists = [list(range(b.start, b.end)) for b in one.blocks]
    return proof._move(one, lists, wanted, x, source, target, frozenset())


def test_equal_sets_of_definitions_are_not_enough_over_a_branch() -> None:
    """Block 0 sets R1 and branches; block 1 sets R1 anew; block 2 reads R1, from 0 or from 1. Moved up, the
    new value would hide the old one on the way from 0 to 2."""
    blocks = (GraphBlock(0, 2, (1, 2)), GraphBlock(2, 3, (2,)), GraphBlock(3, 4, ()))
    one = reading(((), (1,)), ((256,), ()), ((), (1,)), ((1,), ()), blocks=blocks)
    assert "passes" in tried(one, 2, 1, 0, [[2, 0, 1], [], [3]])
    apart = reading(((), (7,)), ((256,), ()), ((), (1,)), ((1,), ()), blocks=blocks)
    assert "needed" in tried(apart, 2, 1, 0, [[0, 2, 1], [], [3]])
    free = reading(((), (7,)), ((256,), ()), ((), (1,)), ((7,), ()), blocks=blocks)
    assert tried(free, 2, 1, 0, [[0, 2, 1], [], [3]]) == ""


def test_what_never_happens_ends_no_value() -> None:
    blocks = (GraphBlock(0, 2, (1, 2)), GraphBlock(2, 3, (2,)), GraphBlock(3, 5, ()))
    rows = (((), (7,)), ((256,), ()), ((), (1,)), ((), (1,)), ((1,), ()))
    one = reading(*rows, blocks=blocks)
    assert tried(one, 2, 1, 0, [[0, 2, 1], [], [3, 4]]) == ""
    one.effects[3] = Effects(one.effects[3].accesses, None, True, True, "")
    assert "needed" in tried(one, 2, 1, 0, [[0, 2, 1], [], [3, 4]])


def test_what_has_two_predecessors_or_is_not_pure_stays() -> None:
    blocks = (GraphBlock(0, 2, (1, 2)), GraphBlock(2, 3, (2,)), GraphBlock(3, 4, ()))
    one = reading(((), (7,)), ((256,), ()), ((), (5,)), ((), (9,)), blocks=blocks)
    assert "predecessor" in tried(one, 3, 2, 1, [[0, 1], [2, 3], []])
    uniform = reading(((), (7,)), ((256,), ()), ((270,), (1,)), ((), ()), blocks=blocks)
    assert "uniform" in tried(uniform, 2, 1, 0, [[0, 2, 1], [], [3]])
    predicate = reading(((), (7,)), ((256,), ()), ((), (256,)), ((), ()), blocks=blocks)
    assert "passes" in tried(predicate, 2, 1, 0, [[0, 2, 1], [], [3]])


@pytest.mark.parametrize("name", ["blocks", "renaming"])
def test_schedules_of_copies_can_be_modelled(name: str) -> None:
    workload = load("suite:gemv_int4")
    case = workload.case(None)
    original = kernel("gemv_int4")
    device = ModelDevice()
    device.open(workload, case, original)
    space = space_of(name, Validator)(original)
    assert space.via
    rng = np.random.default_rng(1)
    state = space.start()
    costs = []
    for _ in range(6):
        step = space.sample(state, rng)
        assert step is not None
        state = space.apply(state, step)
        outcome = device.run(space.candidate(state))
        assert outcome.cost is not None, outcome.detail
        costs.append(outcome.cost)
    assert all(0.8 < c < 1.3 for c in costs)
    # one draw of the warps' start times beside the mean of several
    assert device.trace(space.candidate(state).kernel).cycles == pytest.approx(outcome.cycles, rel=0.03)


def drawn(rng: random.Random) -> Any:
    """A random program of four blocks; one that may go two ways ends in a branch that reads P0 = 256."""
    registers = (0, 1, 2, 3, 256, 257)
    follow = [tuple(sorted({n + 1, rng.choice((n + 1, *range(4)))})) for n in range(3)]
    follow.append(tuple(rng.sample(range(4), rng.randrange(2))))
    blocks = tuple(GraphBlock(4 * n, 4 * n + 4, f) for n, f in enumerate(follow))
    effects, ends = [], []
    for n in range(16):
        ends.append(n % 4 == 3 and len(follow[n // 4]) == 2)
        guard = rng.choice((256, 257)) if rng.random() < 0.3 and not ends[n] else None
        found = [Access(256, "0p0", False)] if ends[n] else [Access(guard, "G", False)] if guard else []
        found += [] if ends[n] else [Access(r, "1", False) for r in rng.sample(registers, rng.randrange(3))]
        found += (
            [] if ends[n] else [Access(r, "0", True) for r in rng.sample(registers, rng.choice((0, 1, 1)))]
        )
        effects.append(Effects(tuple(found), guard, rng.random() < 0.5, rng.random() < 0.3, ""))
    code = [
        SimpleNamespace(
            text=f"i{n}", offset=16 * n, opcode=rng.choice(("BRA", "BRA", "CALL")) if end else "MOV"
        )
        for n, end in enumerate(ends)
    ]
    fence = [end or rng.random() < 0.06 for end in ends]
    pure = [e.guard is None and not (e.never or f) for e, f in zip(effects, fence, strict=True)]
    return proof.Reading(SimpleNamespace(instructions=code), effects, fence, pure, blocks)  # type: ignore[arg-type]


def told(
    one: Any, lists: list[list[int]], path: list[int], moved: set[int], seed: int
) -> list[tuple[int, ...]]:
    """What the instructions that stay have read along a path, those that ran."""
    state: dict[int, int] = {r: hash((seed, r)) for e in one.effects for r in e.reads | e.writes}
    out = []
    for n in (n for b in path for n in lists[b]):
        e = one.effects[n]
        if e.never or (e.guard is not None and (state[e.guard] >> 7 & 1) == e.negated):
            continue
        seen = tuple(state[r] for r in sorted(e.reads))
        state.update({w: hash((n, w, seen)) for w in e.writes})
        if n not in moved:
            out.append((n, *seen))
    return out


def among(one: Any, lists: list[list[int]], x: int, *two: int) -> list[int]:
    """An instruction and the fences of two blocks in their order, without the branch that it may pass."""
    passed = one.blocks[min(two)].end - 1
    free = passed if one.function.instructions[passed].opcode == "BRA" else -1
    return [n for b in sorted(two) for n in lists[b] if n == x or (one.fence[n] and n != free)]


def test_nobody_can_tell_what_a_proved_move_has_moved() -> None:
    rng, proved = random.Random(1), 0
    for _ in range(1500):
        one = drawn(rng)
        lists = [list(range(b.start, b.end)) for b in one.blocks]
        before, moved = [list(row) for row in lists], set[int]()
        for x in rng.sample(range(16), 5):
            source = x // 4
            target = rng.choice([m for m in range(4) if m != source])
            wanted = [[n for n in row if n != x] for row in lists]
            last = len(wanted[target]) - (one.fence[wanted[target][-1]] if wanted[target] else 0)
            wanted[target].insert(rng.randint(0, last), x)
            was = among(one, lists, x, source, target)
            if not proof._move(one, lists, wanted, x, source, target, frozenset([3])):
                moved.add(x)
                assert among(one, lists, x, source, target) == was
        if not moved:
            continue
        proved += 1
        assert not any(3 in one.effects[x].reads | one.effects[x].writes for x in moved)
        assert all(one.pure[x] for x in moved)
        for seed in range(12):
            path = [0]
            while len(path) < 8 and one.blocks[path[-1]].follow:
                path.append(rng.choice(one.blocks[path[-1]].follow))
            assert told(one, lists, path, moved, seed) == told(one, before, path, moved, seed), (
                before,
                lists,
            )
    assert proved > 150, proved

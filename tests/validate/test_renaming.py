"""Other register names: proved where they are the same program, refused where one operand is not."""

from __future__ import annotations

import random
import re
from functools import lru_cache

import numpy as np
import pytest

from sassafras.core import Kernel
from sassafras.sass import Function, Program
from sassafras.schedule import ScheduleSpace
from sassafras.schedule.renaming import rename
from sassafras.schedule.spaces import space_of
from sassafras.targets import load
from sassafras.validate import Validator
from sassafras.validate.effects import Access, Effects
from sassafras.validate.graph import GraphBlock
from sassafras.validate.renaming import reaching
from tests import kernels


@lru_cache
def original(name: str) -> bytes:
    if name == "scalar softmax":
        return kernels.softmax_cubin(block=2048, aligned=False)
    if name == "HGMMA":
        return kernels.matmul_cubin()
    workload = load(f"suite:{name}")
    return workload.build(workload.case(), "sm_90a").cubin


@lru_cache
def space(name: str) -> ScheduleSpace:
    function = Program.parse(original(name)).function()
    return space_of("renaming", Validator)(Kernel(original(name), function.name, function.arch, 128))


@lru_cache
def proved(name: str) -> Validator:
    validator = Validator(original(name))
    report = validator.via(space(name).via[0])
    assert report.ok, report.violations[0]
    return validator


@pytest.mark.parametrize("name", ("rotary", "HGMMA"))
def test_renamed_copies_are_proved_and_their_schedules_approved(name: str) -> None:
    s, validator = space(name), proved(name)
    assert s.emit(s.start()) == original(name)
    changed = Program.parse(s.via[0]).function()
    texts = [i.text for i in Program.parse(original(name)).function().instructions]
    assert sum(i.text.replace(".reuse", "") != t.replace(".reuse", "") for i, t in
               zip(changed.instructions, texts, strict=True)) > 8  # fmt: skip
    assert not Validator(original(name)).check(s.via[0]).ok  # nothing is believed before it is proved
    rng = np.random.default_rng(0)
    state = s.start()
    for _ in range(20):
        move = s.sample(state, rng)
        assert move is not None
        state = s.apply(state, move)
        report = validator.check(s.emit(state))
        assert report.ok, f"{move}: {report.violations[0]}"
    assert validator.check(original(name)).ok


def put(data: bytes, function: Function, n: int, word: int, at: int, width: int, value: int) -> bytes:
    out = bytearray(data)
    place = function.text_offset + 16 * n + 8 * word
    old = int.from_bytes(out[place : place + 8], "little")
    out[place : place + 8] = ((old & ~(((1 << width) - 1) << at)) | value << at).to_bytes(8, "little")
    return bytes(out)


def test_one_operand_of_another_value_is_refused() -> None:
    name = "rotary"
    data = space(name).via[0]
    validator = Validator(original(name))
    function = Program.parse(data).function()
    rng = np.random.default_rng(5)
    planted = 0
    used = sorted({r for i in function.instructions for r in i.writes if r < 255})
    for n in rng.permutation(len(function)):
        i = function.instructions[n]
        if i.base not in ("FMUL", "FFMA", "FADD", "PRMT", "IMAD", "SHF", "LOP3") or not i.writes:
            continue
        source = next((o for o in i.operands[1:] if re.fullmatch(r"-?R\d+(\.\w+)*", o)), "")
        if not source:
            continue
        number = int(re.findall(r"\d+", source)[0])
        if i.low >> 24 & 0xFF == number:  # its first source: another register's value
            other = next(r for r in rng.permutation(used) if r != number)
            mutant = put(data, function, int(n), 0, 24, 8, int(other))
            report = validator.via(mutant)
            assert not report.ok, f"{i.text} with R{other}"
            planted += 1
        target = int(i.low >> 16 & 0xFF)
        if any(target in j.reads for j in function.instructions) and planted % 2:
            other = next(r for r in rng.permutation(used) if r != target)
            mutant = put(data, function, int(n), 0, 16, 8, int(other))
            assert not validator.via(mutant).ok, f"{i.text} into R{other}"
            planted += 1
        if planted >= 8:
            break
    assert planted >= 8


def test_guards_immediates_and_pairs_are_not_for_renaming() -> None:
    data = space("rotary").via[0]
    validator = Validator(original("rotary"))
    function = Program.parse(data).function()
    code = function.instructions
    immediate = next(
        i for i in code if re.search(r", 0x[0-9a-f]+,", i.text) and i.base in ("IMAD", "SHF", "LEA")
    )
    pair = next(i for i in code if i.base == "LDG" and re.search(r"\[R\d+\.64", i.text))
    exit_ = next(i for i in code if i.base == "EXIT")
    for i, word, at, width, value in (
        (immediate, 0, 32, 8, (immediate.low >> 32 & 0xFF) ^ 1),
        (pair, 0, 24, 8, (pair.low >> 24 & 0xFF) ^ 2),
        (exit_, 0, 12, 3, (exit_.low >> 12 & 7) ^ 1),
    ):
        assert not validator.via(put(data, function, i.index, word, at, width, value)).ok, i.text


def test_the_definition_that_a_read_sees_is_found_over_a_loop() -> None:
    def effect(reads: tuple[int, ...], writes: tuple[int, ...], guard: int | None = None) -> Effects:
        made = [Access(r, "1", False) for r in reads] + [Access(r, "0", True) for r in writes]
        return Effects(tuple(made), guard, False, False, "")

    # R1 = ..; loop: read R1; @P0 R1 = ..; read R1
    code = [effect((), (1,)), effect((1,), ()), effect((), (1,), 256), effect((1,), ())]
    blocks = (GraphBlock(0, 1, (1,)), GraphBlock(1, 3, (1, 2)), GraphBlock(3, 4, ()))
    found = reaching(code, blocks)
    assert found[1, 0] == found[3, 0] == {(0, 0), (2, 0)}
    assert reaching([effect((7,), ())], (GraphBlock(0, 1, ()),))[0, 0] == {(-1, 7)}


def test_renaming_is_deterministic_and_bounded() -> None:
    program = Program.parse(original("rotary"))
    name = program.function().name
    one, two = rename(program, name), rename(program, name)
    assert one.cubin == two.cubin and one.changed > 3
    few = rename(program, name, most=2)
    assert few.changed == 2
    assert Program.parse(one.cubin).function().registers == program.function().registers


def test_a_field_that_names_nothing_keeps_its_bits() -> None:
    """nvdisasm shows the same text; what the machine makes of unused bits is not known."""
    data = original("scalar softmax")
    program = Program.parse(data)
    function = program.function()
    i = next(i for i in function.instructions if i.base == "MUFU" and not i.low >> 24 & 0xFF)
    at = function.text_offset + 16 * i.index
    changed = data[:at] + (i.low | 0x11 << 24).to_bytes(8, "little") + data[at + 8 :]
    assert Program.parse(changed).function().instructions[i.index].text == i.text
    report = Validator(data).via(changed)
    assert not report.ok
    assert "name no register" in str(report.violations[0])


def test_equal_definitions_are_equal_values_on_every_path() -> None:
    """Random programs under random names: where each read has the definitions that it had, it also finds, on
    whichever path, what it found."""
    rng, equal, names = random.Random(6), 0, (0, 1, 2, 256)
    for _ in range(1500):
        follow = [tuple(sorted({rng.randrange(5), rng.choice((n + 1, n + 2))})) for n in range(3)]
        blocks = [
            GraphBlock(*row)
            for row in zip((0, 2, 3, 5, 6), (2, 3, 5, 6, 8), (*follow, (4,), ()), strict=True)
        ]
        one = [_random_effects(rng, names) for _ in range(8)]
        two, wanted = _renamed_at_random(rng, one, (*names, 3)), reaching(one, blocks)
        same = one != two and reaching(two, blocks) == wanted
        equal += same
        for _ in range(6):
            path = [0]
            while len(path) < 8 and blocks[path[-1]].follow:
                path.append(rng.choice(blocks[path[-1]].follow))
            seed = rng.randrange(1 << 30)
            found = _supplied(one, blocks, path, random.Random(seed))
            assert all(definition in wanted[read] for read, definition in found)
            assert not same or _supplied(two, blocks, path, random.Random(seed)) == found
    assert equal > 100, equal


def _random_effects(rng: random.Random, names: tuple[int, ...]) -> Effects:
    guard = 256 if rng.random() < 0.3 else None
    accesses = [] if guard is None else [Access(guard, "G", False)]
    accesses += [Access(r, "1", False) for r in rng.sample(names, rng.randrange(3))]
    accesses += [Access(r, "0", True) for r in rng.sample(names, rng.choice((0, 1, 1, 2)))]
    return Effects(tuple(accesses), guard, False, rng.random() < 0.1, "")


def _renamed_at_random(rng: random.Random, code: list[Effects], names: tuple[int, ...]) -> list[Effects]:
    """One name becomes another from some place to some other one, in reads behind the first and writes."""
    old, new = rng.sample(names, 2)
    start, end = sorted(rng.sample(range(len(code) + 1), 2))

    def renamed(n: int, e: Effects) -> Effects:
        swap = {True: {old: new} if start <= n < end else {}, False: {old: new} if start < n <= end else {}}
        made = [Access(swap[a.write].get(a.register, a.register), a.slot, a.write) for a in e.accesses]
        return Effects(tuple(made), e.guard, e.negated, e.never, "")

    return [renamed(n, e) for n, e in enumerate(code)]


def _supplied(
    code: list[Effects], blocks: list[GraphBlock], path: list[int], rng: random.Random
) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """(read, definition that supplies it) along a path; what is under a guard may or may not happen."""
    state: dict[int, tuple[int, int]] = {}
    found = []
    for n in (n for b in path for n in range(blocks[b].start, blocks[b].end)):
        e, happens = code[n], rng.random() < 0.5
        found += [
            ((n, k), state.get(a.register, (-1, a.register))) for k, a in enumerate(e.accesses) if not a.write
        ]
        if not e.never and (e.guard is None or happens):
            state.update({a.register: (n, k) for k, a in enumerate(e.accesses) if a.write})
    return found

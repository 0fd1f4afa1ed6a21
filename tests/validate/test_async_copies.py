"""CuAsmRL's moves of LDGSTS (arXiv 2501.08071, on sm_80): which are legal, and why the others are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, lru_cache

import numpy as np
import pytest

from sassafras.core import Kernel, SassafrasError
from sassafras.sass import Emitter, Instruction, Program
from sassafras.schedule import REORDER, Move, ScheduleSpace
from sassafras.targets import load
from sassafras.validate import Validator
from sassafras.validate.report import Report
from tests import kernels


def off(i: Instruction) -> bool:
    """A predicated-off LDS: ptxas puts three before a copy."""
    return i.base == "LDS" and i.guard == "!PT"


class Code:
    """A kernel, its validator and its schedule space."""

    def __init__(self, kernel: Kernel) -> None:
        program = Program.parse(kernel.cubin)
        self.function = program.function(kernel.name)
        self.code = self.function.instructions
        self.emitter = Emitter(program, kernel.name)
        self.validator = Validator(kernel.cubin, kernel.name)
        self.space = ScheduleSpace(kernel, program, arch_by_name=True)

    @cached_property
    def blocks(self) -> list[range]:
        return [range(block.start, block.end) for block in self.function.blocks]

    def moved(self, first: int, last: int) -> Report:
        """The verdict on instruction `last` above `first`, all control codes as they are."""
        order = np.arange(len(self.code), dtype=np.int32)
        order[first : last + 1] = [last, *range(first, last)]
        return self.validator.check(self.emitter.write(order, self.function.words[order]))

    def in_space(self, first: int, last: int) -> bool:
        try:
            self.space.apply(self.space.start(), Move(REORDER, last, first))
        except SassafrasError:
            return False
        return True


@lru_cache(maxsize=1)
def product() -> Code:
    """A pipelined FP16 product for sm_80."""
    data = kernels.matmul_cubin("sm_80")
    function = Program.parse(data).function()
    return Code(Kernel(data, function.name, function.arch, 128))


@lru_cache(maxsize=1)
def attention() -> Code:
    """CuAsmRL's attention for sm_80; shuffles stand where other kernels have predicated-off LDS."""
    workload = load("suite:attention")
    return Code(workload.build(workload.case("1x4x4096x64"), "sm_80"))


def test_a_copy_passes_a_reuse_flag_which_goes() -> None:
    found = 0
    for made in (product(), attention()):
        for n, (a, b) in enumerate(zip(made.code, made.code[1:], strict=False)):
            if "LDGSTS" not in (a.base, b.base) or not (a.control.reuse or b.control.reuse):
                continue
            kept = made.moved(n, n + 1)
            assert "reuse" in {v.kind for v in kept.violations}, "the slot may hold another value"
            if not made.in_space(n, n + 1):
                continue
            state = made.space.apply(made.space.start(), Move(REORDER, n, n + 1))
            cubin = made.space.emit(state)
            assert made.validator.check(cubin).ok
            after = Program.parse(cubin).function(made.function.name).instructions
            assert not after[n].control.reuse and not after[n + 1].control.reuse
            found += 1
    assert found


@pytest.mark.parametrize("make", [product, attention])
def test_a_copy_stays_behind_predicated_off_loads(make) -> None:  # type: ignore[no-untyped-def]
    made, found = make(), 0
    for n, (a, b) in enumerate(zip(made.code, made.code[1:], strict=False)):
        if off(a) and b.base == "LDGSTS":
            assert {v.kind for v in made.moved(n, n + 1).violations} == {"place"}
            assert not made.in_space(n, n + 1)
            found += 1
    assert found >= 2


def test_a_copy_stays_behind_the_shuffles_that_pad_it() -> None:
    """Three shuffles behind a barrier, and no predicated-off LDS: above one of them only two are left."""
    made = attention()
    copies = [
        (max(n for n in range(block.start, m) if made.code[n].base == "SHFL"), m)
        for block in made.blocks
        for m in block
        if made.code[m].base == "LDGSTS"
        and [i.base for i in made.code[block.start : m] if i.base in ("BAR", "SHFL", "LDS", "LDGSTS")][-3:]
        == ["SHFL"] * 3
    ]
    assert copies
    for shuffle, copy in copies:
        messages = [v.message for v in made.moved(shuffle, copy).violations if v.kind == "memory"]
        assert any("three SHFL or @!PT LDS" in text for text in messages), messages
        assert not made.in_space(shuffle, copy)


def test_a_copy_stays_behind_loads_that_are_not_predicated_off() -> None:
    """They may read the bytes that it writes."""
    found = 0
    for made in (product(), attention()):
        for block in made.blocks:
            reads = [n for n in block if made.code[n].base in ("LDS", "LDSM") and not off(made.code[n])]
            copies = [n for n in block if made.code[n].base == "LDGSTS"]
            for n, m in [(n, m) for n in reads for m in copies if n < m][-3:]:
                assert {v.kind for v in made.moved(n, m).violations} & {"place", "memory"}
                assert not made.in_space(n, m)
                found += 1
    assert found


@pytest.mark.parametrize("made", [product, attention])
def test_a_copy_keeps_its_distance_to_the_end_of_its_group(made: Callable[[], Code]) -> None:
    """4 cycles are the least in all compiled code: sooner, the group might not have the copy."""
    this = made()
    found = [
        n for n, i in enumerate(this.code[1:]) if i.base == "LDGDEPBAR" and this.code[n].base == "LDGSTS"
    ]
    assert found and all(this.code[n].control.stall == 4 for n in found)
    kind, spacing = this.space.tables.kind, this.space.tables.spacing
    for n in found:
        for stall in (1, 3, 4, 7):
            words = this.function.words.copy()
            control = replace(this.code[n].control, stall=stall)
            words[n, 1] = np.uint64(control.encode(int(words[n, 1])))
            report = this.validator.check(this.emitter.write(np.arange(len(words), dtype=np.int32), words))
            assert ("spacing" in {v.kind for v in report.violations}) == (stall < 4) != report.ok, str(report)
        assert spacing[int(kind[n]), int(kind[n + 1])] == 4

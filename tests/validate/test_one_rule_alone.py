"""Schedules that one rule alone refuses: without it each of them would be approved."""

from __future__ import annotations

import sys
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from sassafras.core import Kernel
from sassafras.frontend._ptxas import assemble
from sassafras.sass import Program
from sassafras.sass.control import REUSE_MASK
from sassafras.sass.tools import find
from sassafras.schedule import ScheduleSpace
from sassafras.validate import Validator

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from planted.subject import READ, STALL, WAIT, WRITE, Subject, put

LOOP = """mov.u32 %x4, %tid.x; mov.u32 %x5, s; mad.lo.u32 %x5, %x4, 4, %x5; st.volatile.shared.b32 [%x5], %x0;
    mul.lo.u32 %x7, %x4, 20; ld.volatile.global.b32 %x6, [%a+16]; bar.sync 0; mul.lo.s32 %x6, %x6, %x1; {}
    L: mul.lo.s32 %x7, %x7, %x2; and.b32 %x7, %x7, 4092; ld.volatile.shared.b32 %x4, [%x7];
    ld.volatile.shared.b32 %x1, [%x5]; add.s32 %x6, %x6, %x1; xor.b32 %x6, %x6, %x4;
    setp.lt.s32 %p, %x6, %x3; @%p bra.uni L; {} st.volatile.global.b32 [%a+48], %x6;"""
#: PTX of kernels for Hopper, on four words %x0 to %x3 that are loaded from %a
KERNELS = {
    # a sum of 64 bits, and integers that need nothing of it
    "sum": """mov.b64 %d0, {%x0, %x1}; mov.b64 %d1, {%x2, %x3}; ld.volatile.global.v2.f64 {%d2, %d3}, [%a+16];
        ld.volatile.global.v4.b32 {%x0, %x1, %x2, %x3}, [%a+32]; fma.rn.f64 %d4, %d0, %d1, %d2;
        xor.b32 %x4, %x0, %x3; add.s32 %x4, %x4, %x1; add.s32 %x4, %x4, %x2; xor.b32 %x5, %x2, %x3;
        add.s32 %x6, %x2, %x3; sub.s32 %x7, %x1, %x3; st.volatile.global.v4.b32 [%a+48], {%x4, %x5, %x6, %x7};
        st.volatile.global.f64 [%a], %d4;""",
    # a sum of 64 bits that is stored long after
    "chain": """mov.b64 %d0, {%x0, %x1}; mov.b64 %d1, {%x2, %x3};
        ld.volatile.global.v2.b32 {%x4, %x5}, [%a+16]; fma.rn.f64 %d2, %d0, %d1, %d0; """
        + 16 * "mad.lo.s32 %x4, %x4, %x5, %x4;" + """
        st.volatile.global.v4.b32 [%a+48], {%x0, %x1, %x2, %x3}; st.volatile.global.b32 [%a+32], %x4;
        st.volatile.global.f64 [%a+64], %d2;""",
    # and behind a loop
    "behind": """mov.b64 %d0, {%x0, %x1}; mov.b64 %d1, {%x2, %x3}; fma.rn.f64 %d2, %d0, %d1, %d0;
        mov.u32 %x6, 7; xor.b32 %x5, %x0, %x1;
        L: add.s32 %x6, %x6, %x2; xor.b32 %x6, %x6, %x5; setp.lt.s32 %p, %x6, %x3;
        @%p bra.uni L; st.volatile.global.b32 [%a+48], %x6; st.volatile.global.f64 [%a+64], %d2;""",
    # what a store to a surface reads is overwritten
    "surface": """ld.volatile.global.b64 %l, [%a+16]; sust.b.1d.b32.trap [%l, {%x0}], {%x1};
        add.s32 %x1, %x2, %x3; xor.b32 %x0, %x2, %x3;
        st.volatile.global.v4.b32 [%a+48], {%x0, %x1, %x2, %x3};""",
    # a loop, ahead of which all threads meet; and one in another
    "loop": LOOP.format("", ""),
    "loops": LOOP.format("O: add.s32 %x2, %x2, 1;", "setp.lt.s32 %p, %x6, %x2; @%p bra.uni O;"),
    # barriers in shared memory
    "barrier": """mov.u32 %x4, s; mbarrier.init.shared.b64 [%x4], 32; and.b32 %x7, %x3, %x4;
        st.volatile.shared.v4.b32 [%x4+64], {%x0, %x1, %x2, %x7}; bar.sync 0;
        mbarrier.arrive.shared.b64 _, [%x4]; mbarrier.inval.shared.b64 [%x4];
        st.volatile.global.v4.b32 [%a+48], {%x0, %x1, %x2, %x3};""",
}  # fmt: skip


@lru_cache
def program() -> Program:
    """All of them in one file: nvdisasm takes as long for one of them as for all."""
    ptx = ".version 8.0\n.target sm_90a\n.address_size 64\n" + "".join(
        f"""
.visible .entry {name}(.param .u64 a) {{
.shared .align 16 .b8 s[4096]; .reg .b64 %a, %l; .reg .b32 %x<8>; .reg .f64 %d<5>; .reg .pred %p;
ld.param.u64 %a, [a]; ld.volatile.global.v4.b32 {{%x0, %x1, %x2, %x3}}, [%a];
{body}
ret;
}}
"""
        for name, body in KERNELS.items()
    )
    return Program.parse(assemble(ptx, "sm_90a", str(find("ptxas").path)))


FIELDS = {"stall": (STALL, 4), "wait": (WAIT, 6), "write": (WRITE, 3), "read": (READ, 3)}


class Case:
    """One of the kernels, and its validator."""

    def __init__(self, name: str) -> None:
        self.subject = Subject(program(), name)
        self.validator = Validator(program().cubin.data, name, program=program())

    def at(self, text: str, count: int = 0) -> int:
        """The instruction whose text begins so; of several the one after so many."""
        return [i.index for i in self.subject.code if i.text.startswith(text)][count]

    def found(self, order: list[int], **fields: dict[int, int]) -> set[str]:
        """What is wrong with an order under other control codes, which are named by original index."""
        high = [word & ~REUSE_MASK for word in self.subject.high]
        for name, values in fields.items():
            for n, value in values.items():
                high[n] = put(high[n], *FIELDS[name], value)
        report = self.validator.check(self.subject.emit(order, high))
        return {f"{v.kind} at {v.where.split()[1]}" for v in report.violations}


def test_an_operand_of_64_bits_is_overwritten_no_sooner_than_the_compiler_does() -> None:
    """DFMA on Hopper: the table has only those of its pairs that no wait stands between."""
    case = Case("sum")
    code = case.subject.code
    dfma, add, early, late = (case.at(*what) for what in (("DFMA",), ("IADD3",), ("LOP3",), ("LOP3", 1)))
    assert code[early].writes <= code[add].reads and code[add].writes <= code[dfma].reads and add - dfma == 5
    rest = [n for n in range(dfma + 1, add) if n not in (early, late)]
    order = [*range(dfma), early, dfma, add, *rest, late, *range(add + 1, case.subject.count)]
    for cycles, wrong in ((5, set()), (4, {"war at IADD3"}), (1, {"war at IADD3"})):
        stalls = {dfma - 1: 2, early: 4, dfma: cycles, late: 11}
        assert case.found(order, wait={early: 12}, stall=stalls) == wrong


def test_a_distance_that_is_not_known_is_kept_up_to_64_cycles() -> None:
    case = Case("chain")
    dfma, first, other, store = (case.at(*what) for what in (("DFMA",), ("STG",), ("IMAD", 1), ("STG", 2)))
    times, _ = case.validator.analysis.original_times
    rest = times[store] - times[other + 1]
    assert 50 < rest < 64 < times[store] - times[dfma]
    order = [*range(dfma), *range(dfma + 1, other + 1), dfma, *range(other + 1, case.subject.count)]
    for cycles, wrong in ((64, set()), (63, {"raw at STG.E.64.STRONG.SYS"})):
        stalls = {dfma - 1: 4, other: 4, dfma: cycles - int(rest)}
        assert case.found(order, wait={first: 4}, stall=stalls) == wrong


def test_a_distance_is_kept_over_a_block_that_takes_long() -> None:
    case = Case("behind")
    dfma, load, store = case.at("DFMA"), case.at("ULDC"), case.at("STG", 1)
    code, (_, lengths) = case.subject.code, case.validator.analysis.original_times
    cycles = code[dfma].control.stall + int(lengths[1]) + code[store - 1].control.stall
    assert case.validator.analysis.block_of[store] == 2 and lengths[1] > 20 and cycles < 64
    order = case.subject.identity()
    for less, wrong in ((0, set()), (1, {"raw at STG.E.64.STRONG.SYS"})):
        stalls = {load: code[load].control.stall + 1, dfma: code[dfma].control.stall - less}
        assert case.found(order, stall=stalls) == wrong


def test_what_a_store_to_a_surface_reads_late_is_not_overwritten() -> None:
    """SUST has no result, and is not known to take a variable time: its read barrier says so."""
    case = Case("surface")
    add, store = case.at("IMAD.IADD"), case.at("STG")
    assert case.subject.code[add].control.wait_mask == 1 and case.subject.code[add - 1].base == "SUST"
    order = case.subject.identity()
    assert case.found(order, wait={store: 1}) == set()
    late = case.found(order, wait={add: 0, add + 1: 1}, stall={add: 2})
    assert late == {"scoreboard at IMAD.IADD"}


@pytest.mark.parametrize("name", ["loop", "loops"])
def test_memory_keeps_its_distance_to_a_barrier_some_blocks_before(name: str) -> None:
    """A block falls through to the next in as many cycles as its instructions stall for."""
    case = Case(name)
    bar, load, other = case.at("BAR"), case.at("LDS"), case.at("LDS", 1)
    blocks = case.validator.analysis.block_of
    between = range(bar + 1, case.validator.analysis.blocks[blocks[load]].start)
    assert blocks[load] - blocks[bar] == len(between) == (1 if name == "loop" else 2)
    order = [*range(between.stop), other, *range(between.stop, other), *range(other + 1, case.subject.count)]
    for cycles, wrong in ((6, set()), (5, {"spacing at LDS"})):
        stalls = dict.fromkeys(between, 1) | {bar + 1: cycles - len(between), other: 8}
        assert case.found(order, write={load: 0}, stall=stalls) == wrong


def test_a_fence_keeps_its_distance_to_a_barrier() -> None:
    """ptxas pads BAR for SYNCS as for a store: an arrival must not be there before the other threads are."""
    case = Case("barrier")
    bar, arrival = case.at("BAR"), case.at("SYNCS.ARRIVE")
    assert arrival == bar + 2 and case.subject.code[bar].control.stall == 1
    order = case.subject.identity()
    for cycles, wrong in ((6, set()), (5, {"spacing at SYNCS.ARRIVE.TRANS64.A1T0"})):
        stalls = {bar - 2: 11, bar + 1: cycles - 1, arrival: 11}
        assert case.found(order, stall=stalls) == wrong
    data, rng = program().cubin.data, np.random.default_rng(0)
    space = ScheduleSpace(Kernel(data, "barrier", "sm_90a", 32, 0), program(), arch_by_name=True)
    state = space.start()
    for _ in range(40):
        move = space.sample(state, rng)
        assert move is not None
        state = space.apply(state, move)
        report = case.validator.check(space.emit(state))
        assert report.ok, str(report)


def test_a_barrier_in_shared_memory_reads_its_uniform_address_at_once() -> None:
    """ptxas never gives such a SYNCS a read barrier: nothing shows that one would be lowered again."""
    case = Case("barrier")
    order = case.subject.identity()
    for text in ("SYNCS.ARRIVE.TRANS64.A1T0", "SYNCS.CCTL.IV"):
        n = case.at(text)
        assert case.found(order, stall={n: 2}) == set()
        assert case.found(order, stall={n: 2}, read={n: 0}) == {f"encoding at {text}"}

"""The order of memory operations, found in one pass, against the definition pair by pair."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from sassafras.frontend._ptxas import assemble
from sassafras.sass import Program
from sassafras.sass.tools import find
from sassafras.validate import Validator
from sassafras.validate.analysis import Analysis
from sassafras.validate.classes import SHARED, WARPGROUP_PRODUCTS, Kind, classify
from sassafras.validate.memory import pairs
from sassafras.validate.rules_jit import overtaken
from tests import kernels

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from planted.subject import Subject


def keep_order(a: Kind, b: Kind, same_base: bool) -> bool:
    """Whether two operations keep their order; `same_base`: their address registers hold the same values."""
    space, other = a.stores or a.loads, b.stores or b.loads
    copies = a.queue == "LDGSTS", b.queue == "LDGSTS"
    comparable = space == other and copies in ((False, False), (True, True))
    if a.address and b.address and same_base and comparable and not (a.ordered or b.ordered):
        (_, low, size), (_, at, width) = a.address, b.address
        return low < at + width and at < low + size
    stores = a.stores & (b.loads | b.stores) or b.stores & a.loads
    return bool(a.ordered or b.ordered or stores)


def by_pairs(a: Analysis) -> Iterator[tuple[int, int]]:
    for block in a.blocks:
        versions: dict[int, int] = {}
        seen: list[tuple[int, object]] = []
        for n in range(block.start, block.end):
            kind = a.kinds[n]
            if kind.memory and not a.effects[n].never:
                named = kind.address[0] if kind.address else ()
                base = [(r, versions.get(r[0]), versions.get(r[0] + 1)) for r in named]
                for m, other in seen:
                    if keep_order(a.kinds[m], kind, base == other):
                        yield m, n
                seen.append((n, base))
            for register in a.effects[n].writes:
                versions[register] = n


CASES = {
    "scalar softmax": lambda: kernels.softmax_cubin(aligned=False, block=2048),
    "HGMMA": lambda: kernels.matmul_cubin(),
    "sm_80": lambda: kernels.matmul_cubin("sm_80"),
}


@pytest.mark.parametrize("case", CASES)
def test_one_pass_finds_what_the_definition_finds(case: str) -> None:
    a = Validator(CASES[case]()).analysis
    keep, rng, wrong = list(by_pairs(a)), np.random.default_rng(1), 0
    assert len(keep) > 50
    for trial in range(100):
        place = np.arange(a.count, dtype=np.int32)
        for block in a.blocks:
            for _ in range(trial % 5):
                x, y = rng.integers(block.start, block.end, 2)
                place[[x, y]] = place[[y, x]]
        rows = np.empty(a.count, dtype=np.int32)
        rows = rows[: overtaken(a.memory, place, rows)]
        found = list(pairs(a.memory, rows.tolist(), place))
        assert found == [(m, n) for m, n in keep if place[m] > place[n]]
        wrong += bool(found)
    assert 10 < wrong < 100


#: PTX of accesses: global (%a, %b), generic (%g), shared (%s, %t), local (%m); volatile where ptxas would
#: leave one out, which for shared memory is the same opcode
ACCESSES = {
    "LDG": "ld.global.b32 {0}, [%a];", "STG": "st.global.b32 [%b], %v;", "LD": "ld.b32 {0}, [%g];",
    "ST": "st.b32 [%g], %v;", "LDL": "ld.local.b32 {0}, [%m];",
    "LDS": "ld.volatile.shared.b32 {0}, [%s];", "STS": "st.volatile.shared.b32 [%t], %v;",
    "LDG.STRONG": "ld.relaxed.gpu.global.b32 {0}, [%a];", "ATOMG": "atom.global.add.u32 {0}, [%b], %v;",
    "ATOMS": "atom.shared.exch.b32 {0}, [%t], %v;", "REDG": "red.global.add.u32 [%b], %v;",
    "ATOM": "atom.add.u32 {0}, [%g], %v;", "LDGSTS": "cp.async.ca.shared.global [%t], [%a], 4;",
    "LDSM": "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {{{0}}}, [%s];",
    "STSM": "stmatrix.sync.aligned.m8n8.x1.shared.b16 [%t], {{%v}};",
    # ptxas moves local accesses over barriers, but for what depends on volatile ones
    "STL": "ld.volatile.shared.b32 %v, [%s]; st.local.b32 [%l], %v; ld.local.b32 {0}, [%m];"
           "st.volatile.shared.b32 [%t], {0};",
    # bytes of one base
    "STS.128": "st.volatile.shared.v4.b32 [%s], {{%v, %x, %v, %x}};",
    "STS+0": "st.volatile.shared.b32 [%s], %v;", "LDS-4": "ld.volatile.shared.b32 {0}, [%s+-4];",
    "STS.64-8": "st.volatile.shared.v2.b32 [%s+-8], {{%v, %x}};",
    "LDS-16": "ld.volatile.shared.b32 {0}, [%s+-16];", "LDS+12": "ld.volatile.shared.b32 {0}, [%s+12];",
    "LDS+16": "ld.volatile.shared.b32 {0}, [%s+16];", "STS.U16+2": "st.volatile.shared.u16 [%s+2], %h;",
    "LDS.U8+3": "ld.volatile.shared.u8 {0}, [%s+3];", "LDS.U8+1": "ld.volatile.shared.u8 {0}, [%s+1];",
    "LDS.S16+2": "ld.volatile.shared.s16 {0}, [%s+2];", "STS.U8+3": "st.volatile.shared.u8 [%s+3], %h;",
    "STS.U8+1": "st.volatile.shared.u8 [%s+1], %h;",
}  # fmt: skip
KEPT = [
    ("STG", "LDG"), ("LDG", "STG"), ("ST", "LDG"), ("LDG", "ST"), ("STG", "LD"), ("ST", "LDS"), ("STS", "LD"),
    ("LDS", "ST"), ("STG", "ST"), ("ST", "LDL"), ("STL", "LDL"),
    ("STS", "LDS"), ("LDS", "STS"), ("STS", "LDSM"),
    ("LDSM", "STS"),
    ("STSM", "LDS"), ("STSM", "LDSM"), ("LDS", "STSM"), ("LDGSTS", "STG"), ("LDGSTS", "LDS"),
    # atomics and .STRONG: nothing passes, of whatever memory
    ("LDS", "ATOMS"), ("LDG", "ATOMS"), ("ATOMG", "LDG"), ("LDG", "ATOMG"), ("LDG", "REDG"), ("REDG", "LDS"),
    ("ATOM", "LDS"), ("LDL", "ATOM"), ("LDG.STRONG", "LDG"), ("LDG", "LDG.STRONG"), ("LDS", "LDG.STRONG"),
    ("STS.128", "LDS+12"), ("LDS+12", "STS.128"), ("STS.64-8", "LDS-4"), ("STS.U16+2", "LDS.U8+3"),
    ("LDS.S16+2", "STS.U8+3"), ("STS+0", "LDS.U8+3"),
    # its address is another lane's
    ("STS.64-8", "LDSM"),
]  # fmt: skip
FREE = [
    ("STG", "LDS"), ("STS", "LDG"), ("LDG", "LDS"), ("LD", "LDG"), ("STS.128", "LDS+16"),
    ("STS.128", "LDS-4"), ("STS.64-8", "LDS-16"), ("STS.U16+2", "LDS.U8+1"), ("LDS.S16+2", "STS.U8+1"),
]  # fmt: skip


def entry(name: str, first: str, second: str) -> str:
    """PTX of two accesses."""
    return f"""
.visible .entry {name}(.param .u64 p, .param .u64 q, .param .u64 n) {{
.shared .align 16 .b8 room[4096]; .local .align 16 .b8 own[256];
.reg .b64 %a, %b, %g; .reg .b32 %s, %t, %l, %m, %v, %x, %r, %w, %i; .reg .b16 %h;
ld.param.u64 %a, [p]; ld.param.u64 %b, [q]; ld.param.u64 %g, [n];
mov.u32 %i, %tid.x; mad.wide.u32 %a, %i, 512, %a; mad.wide.u32 %b, %i, 512, %b;
mad.wide.u32 %g, %i, 512, %g;
ld.volatile.global.v2.b32 {{%v, %x}}, [%a]; mov.u32 %r, 0; mov.u32 %w, 0; cvt.u16.u32 %h, %v;
mov.u32 %s, room; mov.u32 %l, own; mad.lo.u32 %s, %i, 32, %s; mad.lo.u32 %t, %x, 16, %s;
and.b32 %i, %x, 60; mad.lo.u32 %m, %i, 3, %l; add.u32 %l, %l, %i; st.local.b32 [%l], %x;
st.volatile.global.v2.b32 [%a+256], {{%s, %t}}; st.volatile.global.v2.b64 [%a+272], {{%b, %g}}; bar.sync 0;
{ACCESSES[first].format("%r")}
{ACCESSES[second].format("%w")}
bar.sync 0;
ld.local.b32 %i, [%m]; st.volatile.global.b32 [%b+128], %i; st.volatile.global.b32 [%g+132], %w;
st.volatile.global.b32 [%a+132], %r; st.volatile.shared.v2.b32 [%t], {{%s, %x}};
ret;
}}
"""


@lru_cache
def accesses() -> tuple[bytes, Program]:
    """A kernel a pair, all in one file: nvdisasm takes as long for one of them as for all."""
    head = ".version 8.0\n.target sm_90a\n.address_size 64\n"
    ptx = head + "".join(entry(f"k{n}", *pair) for n, pair in enumerate([*KEPT, *FREE]))
    data = assemble(ptx, "sm_90a", str(find("ptxas").path))
    return data, Program.parse(data)


@pytest.mark.parametrize("pair", [*KEPT, *FREE], ids=" then ".join)
def test_accesses_that_may_meet_keep_their_order(pair: tuple[str, str]) -> None:
    (data, program), name = accesses(), f"k{[*KEPT, *FREE].index(pair)}"
    s = Subject(program, name)
    start, end = (i.index for i in s.code if i.base == "BAR")
    bases = {re.split(r"[.+-]", access)[0] for access in pair}
    first, second = [i.index for i in s.code[start:end] if i.base in bases and i.guard != "!PT"][:2]
    validator = Validator(data, name, program=program)
    assert validator.check(data).ok
    report = validator.check(s.emit(s.moved(second, first), s.generous(start + 1, end)))
    kinds = {v.kind for v in report.violations}
    assert ("memory" in kinds) == (pair in KEPT) and not kinds & {"order", "place"}, str(report)


def test_a_product_reads_shared_memory() -> None:
    for name in WARPGROUP_PRODUCTS:
        assert classify(name, (), "", (), True).loads == SHARED

"""Which later operation's scoreboard says that an earlier one is done, pair by pair; and how often one may be
raised."""

from __future__ import annotations

import sys
from functools import lru_cache
from pathlib import Path

import pytest

from sassafras.frontend._ptxas import assemble
from sassafras.sass import Program
from sassafras.sass import in_order_completion as scheduled
from sassafras.sass.control import NO_BARRIER
from sassafras.sass.tools import find
from sassafras.validate import Validator, classes

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from planted.subject import READ, WAIT, WRITE, Subject, put

#: PTX of an operation on %f0, %f1, %d0, %i0, %l0, and what it makes; the opcode that ptxas chooses
OPERATIONS = {
    "MUFU.EX2": ("ex2.approx.ftz.f32 {0}, %f0;", "f32"), "MUFU.RCP": ("rcp.approx.ftz.f32 {0}, %f1;", "f32"),
    "F2F.F64.F32": ("cvt.f64.f32 {0}, %f0;", "f64"), "F2F.F32.F64": ("cvt.rn.f32.f64 {0}, %d0;", "f32"),
    "F2F.F16.F32.RM": ("cvt.rm.f16.f32 {0}, %f0;", "b16"),
    "I2F.F64": ("cvt.rn.f64.s32 {0}, %i0;", "f64"), "I2F.S64": ("cvt.rn.f32.s64 {0}, %l0;", "f32"),
    "F2I.S64.TRUNC": ("cvt.rzi.s64.f32 {0}, %f0;", "b64"),
    "F2I.F64.TRUNC": ("cvt.rzi.s32.f64 {0}, %d0;", "b32"),
    "F2I.TRUNC.NTZ": ("cvt.rzi.s32.f32 {0}, %f1;", "b32"), "FRND.F64": ("cvt.rni.f64.f64 {0}, %d0;", "f64"),
    "FRND": ("cvt.rni.f32.f32 {0}, %f0;", "f32"), "POPC": ("popc.b32 {0}, %i0;", "b32"),
    "DFMA": ("fma.rn.f64 {0}, %d0, %d0, %d0;", "f64"),
    "DMMA": (
        "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64"
        " {{{0}, %d9}}, {{%d0}}, {{%d0}}, {{%d0, %d0}};", "f64",
    ),
}  # fmt: skip


def entry(name: str, first: str, second: str) -> str:
    """PTX of two operations, the second one's operand being ready later, its result being stored first."""
    (one, kind), (two, other) = OPERATIONS[first], OPERATIONS[second]
    two = two.format("%b")
    for early, late in (("%f", "%g"), ("%d0", "%e0"), ("%i", "%j"), ("%l", "%m")):
        two = two.replace(early, late)
    return f"""
.visible .entry {name}(.param .u64 p) {{
.reg .b64 %p0, %l0; .reg .f32 %f0, %f1; .reg .b32 %i0; .reg .f64 %d0, %d9; .reg .f32 %g0, %g1;
.reg .f64 %e0; .reg .b32 %j0; .reg .b64 %m0; .reg .{kind} %a; .reg .{other} %b;
ld.param.u64 %p0, [p];
ld.volatile.global.f32 %f0, [%p0]; ld.volatile.global.f32 %f1, [%p0+4]; ld.volatile.global.b32 %i0, [%p0+8];
ld.volatile.global.f64 %d0, [%p0+16]; ld.volatile.global.b64 %l0, [%p0+24];
{one.format("%a")}
add.f32 %g0, %f0, %f1; mul.f32 %g0, %g0, %f0; add.f32 %g0, %g0, %f1; mul.f32 %g1, %g0, %f0;
mul.lo.s32 %j0, %i0, %i0; mad.lo.s32 %j0, %j0, %i0, %j0; mad.lo.s32 %j0, %j0, %i0, %j0;
add.f64 %e0, %d0, %d0; mul.f64 %e0, %e0, %d0; add.s64 %m0, %l0, 3;
{two}
st.volatile.global.{other} [%p0+64], %b;
st.volatile.global.{kind} [%p0+96], %a;
ret;
}}
"""


@lru_cache
def cubin(arch: str) -> bytes:
    """All pairs of an architecture, a kernel each: nvdisasm takes as long for one of them as for all."""
    pairs = ((n, pair) for n, pair in enumerate(PAIRS) if pair[2] == arch)
    head = f".version 8.0\n.target {arch}\n.address_size 64\n"
    ptx = head + "".join(entry(f"k{n}", first, second) for n, (first, second, _) in pairs)
    return assemble(ptx, arch, str(find("ptxas").path))


def leaning(data: bytes, name: str, first: str, second: str) -> bytes | None:
    """The same kernel where the first operation has no scoreboard of its own, and only the second one's has
    been waited for when its result is read; None where ptxas has not put them so."""
    s = Subject(Program.parse(data), name)
    a, b = (
        next(
            i
            for i in s.code
            if i.opcode.startswith(opcode) and scheduled.unit(i.opcode) == scheduled.unit(opcode)
        )
        for opcode in (first, second)
    )
    own, other = a.control.write_barrier, b.control.write_barrier
    high, order = list(s.high), s.identity()
    assert other is not None
    high[a.index] = put(high[a.index], WRITE, 3, NO_BARRIER)
    reader = next(i for i in s.code if i.index > max(a.index, b.index) and a.writes & i.reads)
    if a.index > b.index:
        return None
    if own is not None and own != other:
        for i in s.code[a.index + 1 :]:
            high[i.index] &= ~(1 << (WAIT + own))
    if not any(i.control.wait_mask >> other & 1 for i in s.code[b.index + 1 : reader.index + 1]):
        high[reader.index] |= 1 << (WAIT + other)
    return s.emit(order, high)


APART = [
    ("F2F.F64.F32", "MUFU.EX2", "sm_90a"), ("I2F.F64", "MUFU.EX2", "sm_90a"), ("I2F.S64", "POPC", "sm_90a"),
    ("F2I.S64.TRUNC", "F2I.TRUNC.NTZ", "sm_90a"),
    ("MUFU.EX2", "F2F.F64.F32", "sm_90a"), ("POPC", "F2F.F32.F64", "sm_90a"),
    ("F2I.TRUNC.NTZ", "F2I.F64.TRUNC", "sm_90a"), ("F2F.F64.F32", "MUFU.EX2", "sm_80"),
    ("DMMA", "DFMA", "sm_80"), ("F2F.F16.F32.RM", "F2F.F64.F32", "sm_90a"),
]  # fmt: skip
TOGETHER = [
    ("MUFU.RCP", "MUFU.EX2", "sm_90a"), ("MUFU.EX2", "POPC", "sm_90a"), ("F2F.F64.F32", "I2F.F64", "sm_90a"),
    ("F2F.F64.F32", "I2F.F64", "sm_80"), ("MUFU.EX2", "F2F.F16.F32.RM", "sm_90a"),
    # ptxas leaves these scoreboards out itself
    ("F2F.F16.F32.RM", "MUFU.EX2", "sm_90a"), ("F2F.F16.F32.RM", "FRND", "sm_80"),
    ("POPC", "F2F.F16.F32.RM", "sm_90a"), ("F2I.TRUNC.NTZ", "F2F.F16.F32.RM", "sm_80"),
]  # fmt: skip
PAIRS = [*APART, *TOGETHER]


@pytest.mark.parametrize(("first", "second", "arch"), PAIRS)
def test_only_operations_of_one_unit_vouch_for_one_another(first: str, second: str, arch: str) -> None:
    data, name = cubin(arch), f"k{PAIRS.index((first, second, arch))}"
    validator = Validator(data, name)
    assert validator.check(data).ok, str(validator.check(data))
    planted = leaning(data, name, first, second)
    assert planted is not None, "ptxas has put them the other way round"
    # (of one unit ptxas may have left the first one's scoreboard out itself)
    assert planted != data or (first, second, arch) in TOGETHER
    report = validator.check(planted)
    assert report.ok == ((first, second, arch) in TOGETHER), str(report)
    assert {v.kind for v in report.violations} <= {"scoreboard"}


#: FP64 before Hopper, of which ptxas gives one operation a scoreboard: all is one queue
QUEUE = (
    "setp.gt.f64 %p, %d0, %d3; fma.rn.f64 %r, %d0, %d1, %d2; @%p fma.rn.f64 %r, %d2, %d3, %d1;",
    "add.f64 %d4, %d0, 0d7FF0000000000000; setp.lt.f64 %p, %d0, %d1; selp.f64 %r, %d2, %d4, %p;",
    *(f"setp.lt.f64 %p, %d0, %d1; {one}; selp.f64 %r, %d0, %d4, %p;"
      for one in ("add.f64 %d4, %d2, %d3", "mul.f64 %d4, %d2, %d3", "fma.rn.f64 %d4, %d2, %d3, %d2")),
    *(f"{one}; setp.lt.f64 %p, %d2, %d3; selp.f64 %r, %d2, %d4, %p;"
      for one in ("add.f64 %d4, %d0, %d1", "mul.f64 %d4, %d0, %d1", "fma.rn.f64 %d4, %d0, %d1, %d1")),
    # what a comparison has read is overwritten
    *(f"setp.gt.f64 %p, %d3, %d0; {one}; @%p bra L; st.volatile.global.f64 [%a], %r; mul.f64 %r, %r, %d3; L:"
      for one in ("add.f64 %r, %d0, %d1", "mul.f64 %r, %d0, %d1", "fma.rn.f64 %r, %d0, %d1, %d2")),
)  # fmt: skip


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89"])
def test_sums_and_comparisons_of_64_bits_are_one_queue(arch: str) -> None:
    ptx = f".version 8.0\n.target {arch}\n.address_size 64\n" + "".join(
        f"""
.visible .entry k{n}(.param .u64 a) {{
.reg .b64 %a; .reg .f64 %d<5>, %r; .reg .pred %p;
ld.param.u64 %a, [a];
ld.volatile.global.v2.f64 {{%d0, %d1}}, [%a]; ld.volatile.global.v2.f64 {{%d2, %d3}}, [%a+16];
{body}
st.volatile.global.f64 [%a], %r;
ret;
}}
"""
        for n, body in enumerate(QUEUE)
    )
    data = assemble(ptx, arch, str(find("ptxas").path))
    alone = 0
    for n in range(len(QUEUE)):
        s = Subject(Program.parse(data), f"k{n}")
        alone += sum(i.base[0] == "D" and i.control.write_barrier is None for i in s.code)
        validator = Validator(data, f"k{n}")
        assert validator.check(data).ok, str(validator.check(data))
        last = max(i.index for i in s.code if i.control.write_barrier is not None and i.base[0] == "D")
        high = list(s.high)
        high[last] = put(high[last], WRITE, 3, NO_BARRIER)
        report = validator.check(s.emit(s.identity(), high))
        assert {v.kind for v in report.violations} == {"scoreboard"}, "nothing vouches for any of them"
    assert alone > len(QUEUE), "ptxas leans on the queue"


#: an atomic operation on shared memory, and what vouches for its result
ATOMIC = {
    "LDS": "atom.shared.exch.b32 %x4, [s], %x0; ld.volatile.shared.b32 %x5, [s+8];",
    "LDSM": "atom.shared.cas.b32 %x4, [s], %x0, %x1; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%x5}, [%x3];",
    "SHFL": "atom.shared.add.u32 %x5, [s], %x0; atom.shared.exch.b32 %x4, [s+4], %x1;",
}


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_what_reads_shared_memory_vouches_for_atomic_operations(arch: str) -> None:
    ptx = f".version 8.0\n.target {arch}\n.address_size 64\n" + "".join(
        f"""
.visible .entry {name}(.param .u64 a) {{
.shared .align 16 .b8 s[512]; .reg .b64 %a; .reg .b32 %x<8>;
ld.param.u64 %a, [a];
ld.volatile.global.v4.b32 {{%x0, %x1, %x2, %x3}}, [%a];
{body}
mad.lo.s32 %x6, %x4, %x5, %x4; xor.b32 %x7, %x5, %x2;
st.volatile.global.v4.b32 [%a], {{%x4, %x5, %x6, %x7}};
ret;
}}
"""
        for name, body in ATOMIC.items()
    )
    data = assemble(ptx, arch, str(find("ptxas").path))
    for name in ATOMIC:
        s = Subject(Program.parse(data), name)
        alone = [i for i in s.code if i.base == "ATOMS" and i.control.write_barrier is None]
        after = [i for i in s.code if i.base == name and i.control.write_barrier is not None]
        assert alone and after[-1].index > alone[-1].index, "ptxas leans on it"
        validator = Validator(data, name)
        assert validator.check(data).ok, str(validator.check(data))
        high = list(s.high)
        high[after[-1].index] = put(high[after[-1].index], WRITE, 3, NO_BARRIER)
        report = validator.check(s.emit(s.identity(), high))
        assert {v.kind for v in report.violations} == {"scoreboard"}, "nothing vouches for it"


@lru_cache
def stores(arch: str, loads: int, middle: str = "") -> bytes:
    """100 stores to shared memory, of values that stay, with something in their middle; then some loads."""
    lines = [f"st.volatile.shared.b32 [room+{4 * n}], %x{n % 4};" for n in range(100)]
    lines.insert(50, middle)
    lines += [f"ld.volatile.shared.b32 %y{n}, [room+{4 * n}];" for n in range(loads)]
    lines += [f"st.volatile.global.b32 [%p0+{4 * n}], %y{n};" for n in range(loads)]
    ptx = f"""
.version 8.0
.target {arch}
.address_size 64
.visible .entry k(.param .u64 p) {{
.shared .align 16 .b8 room[400]; .reg .b64 %p0; .reg .b32 %x<4>, %y<{loads}>;
ld.param.u64 %p0, [p];
ld.volatile.global.v4.b32 {{%x0, %x1, %x2, %x3}}, [%p0];
{chr(10).join(lines)}
ret;
}}
"""
    return assemble(ptx, arch, str(find("ptxas").path))


def raising(data: bytes, count: int, last: str, scoreboard: int | None = None) -> bytes:
    """The same code where so many operations raise one scoreboard, which nobody's mask names: stores, and at
    the end one of the named opcode."""
    s = Subject(Program.parse(data), "k")
    used = {b for i in s.code for b in (i.control.write_barrier, i.control.read_barrier)}
    free = next(b for b in range(6) if b not in used) if scoreboard is None else scoreboard
    high = list(s.high)
    chosen = [i.index for i in s.code if i.base == "STS"][: count - (last != "STS")]
    if last != "STS":
        chosen.append(next(i.index for i in s.code if i.base == last and i.index > chosen[-1]))
    for n in chosen:
        high[n] = put(high[n], READ, 3, free)
    assert len(chosen) == count
    return s.emit(s.identity(), high)


@pytest.mark.parametrize(
    ("arch", "last", "count", "accepted"),
    [
        ("sm_90a", "STS", 63, True), ("sm_90a", "STS", 64, True), ("sm_90a", "STS", 98, True),
        # another queue holds up the issue for itself only
        ("sm_90a", "LDS", 63, True), ("sm_90a", "LDS", 64, False), ("sm_90a", "LDS", 98, False),
        # nothing was measured there
        ("sm_80", "STS", 63, True), ("sm_80", "STS", 64, False), ("sm_80", "STS", 98, False),
    ],
)  # fmt: skip
def test_how_often_a_scoreboard_may_be_raised(arch: str, last: str, count: int, accepted: bool) -> None:
    data = stores(arch, 2)
    report = Validator(data, "k").check(raising(data, count, last))
    assert report.ok == accepted, str(report)
    assert all("more than 63 times" in v.message for v in report.violations)


@pytest.mark.parametrize(
    ("groups", "scoreboard", "accepted"), [(0, 0, True), (0, None, False), (1, 0, False)]
)
def test_depbar_waits_for_a_scoreboard_too(groups: int, scoreboard: int | None, accepted: bool) -> None:
    """``DEPBAR.LE SB0, 0x0`` leaves nothing under way: CUB's look-back raises SB0 in a loop that holds no
    other wait for it. ``0x1`` leaves something, and so does another scoreboard."""
    copy = "cp.async.ca.shared.global [room], [%p0], 4; cp.async.commit_group;"
    data = stores("sm_90a", 2, f"{copy} {copy} cp.async.wait_group {groups};")
    waits = [i for i in Program.parse(data).function("k").instructions if i.base == "DEPBAR"]
    assert [i.operands for i in waits] == [("SB0", f"{groups:#x}")]
    report = Validator(data, "k").check(raising(data, 80, "LDS", scoreboard))
    assert report.ok == accepted, str(report)
    assert all("more than 63 times" in v.message for v in report.violations)


def test_the_scheduler_leans_on_nothing_that_the_validator_refuses() -> None:
    """Two tables, written apart: a pair that only the scheduler has would be proposed in vain."""

    def name(unit: str) -> str:
        return unit.replace("64", ".64")

    for mine, theirs in (
        (scheduled.RESULTS, classes.RESULTS_COVERED_BY), (scheduled.READS, classes.READS_COVERED_BY),
    ):  # fmt: skip
        for first, others in mine.items():
            assert {name(o) for o in others.split()} <= theirs.get(name(first), frozenset()), first


@pytest.mark.parametrize("opcode", ["FCHK", "REDUX", "MATCH", "S2R", "LDC", "I2I", "MADE.UP"])
def test_nothing_vouches_for_what_is_not_known(opcode: str) -> None:
    assert opcode not in classes.RESULTS_COVERED_BY and opcode not in scheduled.RESULTS
    assert not scheduled.covered_by(opcode, True)

"""The reader of PTX: places in texts of Triton, nvcc and people; and what it must leave alone."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from sassafras import suite
from sassafras.core import SassafrasError
from sassafras.frontend.ptx.reader import Entry
from sassafras.frontend.ptx.rewrites import NoUnroll, Prefetch, Registers, write
from tests.frontend.ptx.compiled_ptx import LOOP, space

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", suite.names())
def test_of_every_kernel_of_the_suite_all_is_found_and_nothing_changed(name: str) -> None:
    made = space(name)
    entry = Entry.read(made.ptx, made.kernel.name)
    assert write(entry, (), made.kernel.threads) == made.ptx
    lines = re.findall(r"^\s*(?:@!?%p\d+ )?(\S+)[^\n]*;", made.ptx, re.MULTILINE)
    assert [s.opcode for s in entry.statements if s.kind == "code"] == [x for x in lines if x[0] != "."]
    wanted = [x for x in lines if re.match(r"(ld|st)\.global\.|cp\.async\.c[ag]\.", x)]
    assert [entry.statements[a.at].opcode for a in entry.accesses] == wanted
    assert [a.opcode({}) for a in entry.accesses] == wanted
    assert all(len(entry.points_to(a)) <= 1 for a in entry.accesses)
    assert entry.directives.keys() == {"reqntid"}


@pytest.mark.parametrize(
    "path", sorted((ROOT / "benchmarks" / "reproducers").glob("*.ptx")), ids=lambda p: p.stem
)
def test_published_files_are_read(path: Path) -> None:
    text = path.read_text()
    for name in re.findall(r"\.entry\s+([\w$]+)", text):
        entry = Entry.read(text, name)
        assert entry.statements and write(entry, (), 128) == text


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on PATH")
def test_what_nvcc_writes_is_read() -> None:
    from sassafras.targets import load

    workload = load(str(ROOT / "examples" / "saxpy.py"))
    text = workload.build.ptx(workload.case(), "sm_90a")  # type: ignore[attr-defined]
    name = re.findall(r"\.entry\s+([\w$]+)", text)[0]
    entry = Entry.read(text, name)
    assert write(entry, (), 256) == text and {a.kind for a in entry.accesses} == {"ld", "st"}


def one(line: str) -> Entry:
    return Entry.read(LOOP.replace("LIMIT", "%r1").replace("ld.global.f32 %f2, [%rd1];", line), "loop")


@pytest.mark.parametrize(
    "line",
    [
        "ld.volatile.global.f32 %f2, [%rd1];",
        "ld.relaxed.gpu.global.f32 %f2, [%rd1];",
        "ld.acquire.sys.global.f32 %f2, [%rd1];",
        "ld.mmio.relaxed.sys.global.u32 %r3, [%rd1];",
        "ld.global.cv.f32 %f2, [%rd1];",
        "ld.global.lu.f32 %f2, [%rd1];",
        "ld.shared.f32 %f2, [%r1];",
        "ld.local.f32 %f2, [%rd1];",
        "ld.param.f32 %f2, [a];",
        "ld.f32 %f2, [%rd1];",
        "ld.global.L1::evict_someday.f32 %f2, [%rd1];",
        "st.release.gpu.global.f32 [%rd1], %f1;",
        "atom.global.add.f32 %f2, [%rd1], %f1;",
        "red.global.add.f32 [%rd1], %f1;",
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1], %r2, [%r3];",
        "cp.async.wait_group 0;",
        "mbarrier.try_wait.shared.b64 %p1, [%r1], %rd1;",
        "prefetch.global.L2 [%rd1];",
    ],
)
def test_other_accesses_are_left_alone(line: str) -> None:
    assert [a.kind for a in one(line).accesses] == ["st"]


def test_qualifiers_are_known() -> None:
    load = one("@!%p2 ld.weak.global.ca.nc.L2::cache_hint.L2::64B.v4.b32 {%r3,%r4,%r5,%r6}, [%rd1+16], %rd5;")
    access = load.accesses[0]
    assert (access.head, access.operator, access.nc, access.prefetch) == (
        "ld.weak.global",
        "ca",
        "nc",
        "L2::64B",
    )
    assert (access.tail, access.width, access.address, access.eviction) == ("v4.b32", 16, "%rd1+16", "")
    assert access.opcode({"operator": "", "eviction": "L1::evict_last", "prefetch": "L2::256B"}) == (
        "ld.weak.global.nc.L1::evict_last.L2::cache_hint.L2::256B.v4.b32"
    )
    copy = one("cp.async.cg.shared::cta.global.L2::128B [%r1], [%rd1], 16, %r2;").accesses[0]
    assert (copy.kind, copy.operator, copy.prefetch, copy.width) == ("cp.async", "cg", "L2::128B", 16)
    assert copy.opcode({"operator": "ca", "hint": "L2::cache_hint"}) == (
        "cp.async.ca.shared::cta.global.L2::cache_hint.L2::128B"
    )


def test_loops_and_comments_are_told_from_code() -> None:
    entry = one("ld.global.f32 %f2, [%rd1];")
    assert [entry.statements[at].opcode for at in entry.loops] == ["HEAD"]
    assert [a.address for a in entry.accesses] == ["%rd1", "%rd1"], "the comment holds no access"
    assert entry.points_to(entry.accesses[1]) == {"a"}
    assert not Entry.read(space("layernorm").ptx, "layernorm_kernel").loops


def test_a_prefetch_has_no_place_ahead_of_what_it_reads() -> None:
    entry = space("layernorm").entry
    for access in (a for a in entry.accesses if a.kind == "ld"):
        found = entry.earliest(access)
        assert found is not None
        between = entry.plain[found[0] : entry.statements[access.at].start]
        for register in re.findall(r"%\w+", access.address + entry.statements[access.at].guard):
            assert not re.search(rf"^\s*[\w.]+\s+{register}\b", between, re.MULTILINE), "written in between"
        assert not re.search(r"\b(bra|ret|exit|call)\b", between)
    # in a loop the address is known from its last step on, which stands in the block before
    loop = one("ld.global.f32 %f2, [%rd1];")
    assert loop.earliest(loop.accesses[0]) == (loop.statements[loop.loops[0]].end, 0)
    scope = one("{ .reg .b64 %rd1; ld.global.f32 %f2, [%rd1]; }")
    assert scope.earliest(scope.accesses[0]) is None


#: a block in which an address is known long before its load
LONG = """.version 8.7
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 a, .param .u64 b)
{
  .reg .b64 %rd<9>; .reg .b32 %r<12>; .reg .f32 %f<2>; .reg .pred %p<2>; .reg .b64 there; .reg .pred q;
  ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; mov.u32 %r1, %tid.x;
  AHEAD
  add.s32 %r2, %r1, 3; add.s32 %r3, %r2, 3; add.s32 %r4, %r3, 3; add.s32 %r5, %r4, 3;
  add.s32 %r6, %r5, 3; add.s32 %r7, %r6, 3; add.s32 %r8, %r7, 3; add.s32 %r9, %r8, 3;
  LOAD
  st.global.f32 [%rd2], %f1; ret;
}
"""


@pytest.mark.parametrize(
    ("ahead", "load"),
    [
        ("add.s64 there, %rd1, 64;", "ld.global.f32 %f1, [there];"),
        ("setp.ne.u32 q, %r1, 0;", "@q ld.global.f32 %f1, [%rd1];"),
        ("%LOOP:", "ld.global.f32 %f1, [%rd1]; setp.lt.u32 %p1, %r9, 4; @%p1 bra %LOOP;"),
        (".loc 1 2 3 add.s64 %rd1, %rd1, 64;", "ld.global.f32 %f1, [%rd1];"),
        ("tex.1d.v4.f32.s32 {%f1,%f1,%f1,%f1}|%p1, [a, {%r1}];", "@%p1 ld.global.f32 %f1, [%rd1];"),
    ],
)
def test_a_prefetch_stays_behind_what_makes_its_address_and_guard(ahead: str, load: str) -> None:
    entry = Entry.read(LONG.replace("AHEAD", ahead).replace("LOAD", load), "k")
    assert entry.earliest(entry.accesses[0]) == (entry.text.index(ahead) + len(ahead), 8)


ORDERING = [
    "griddepcontrol.wait;",
    "bar.sync 0;",
    "barrier.cluster.wait.acquire;",
    "fence.acq_rel.gpu;",
    "membar.gl;",
    "ld.acquire.gpu.global.u32 %r1, [%rd2];",
    "ld.volatile.global.u32 %r1, [%rd2];",
    "atom.acq_rel.gpu.global.add.u32 %r1, [%rd2], 1;",
    "mbarrier.try_wait.parity.shared.b64 %p1, [%r1], 0;",
    "cp.async.bulk.wait_group 0;",
    "an.instruction.of.the.future;",
]


@pytest.mark.parametrize("ahead", ORDERING)
def test_nothing_is_fetched_into_the_first_cache_ahead_of_what_orders_memory(ahead: str) -> None:
    load = "ld.global.f32 %f1, [%rd1];"
    entry = Entry.read(LONG.replace("AHEAD", ahead).replace("LOAD", load), "k")
    assert entry.earliest(entry.accesses[0], ordered=True) == (entry.text.index(ahead) + len(ahead), 8)
    free = entry.earliest(entry.accesses[0])
    assert free is not None and free[0] < entry.text.index(ahead)
    for level, place in (("L1", entry.text.index(ahead) + len(ahead)), ("L2", free[0])):
        assert write(entry, [Prefetch(0, level)], 128)[place:].startswith(
            f"\n\tprefetch.global.{level} [%rd1]"
        )


@pytest.mark.parametrize(
    "plain", ["mul.wide.u32 %rd3, %r1, 4;", "ld.global.u32 %r1, [%rd2];", "st.shared.u32 [%r1], %r1;"]
)
def test_arithmetic_and_weak_accesses_order_nothing(plain: str) -> None:
    load = "ld.global.f32 %f1, [%rd1];"
    entry = Entry.read(LONG.replace("AHEAD", plain).replace("LOAD", load), "k")
    access = entry.accesses[-2]
    assert access.address == "%rd1" and entry.earliest(access) == entry.earliest(access, ordered=True)


def test_directives_of_an_entry_may_hold_strings_and_any_number() -> None:
    text = LONG.replace("AHEAD", "").replace("LOAD", "")
    head = '.maxntid 0x80, 1, 1\n.pragma "nounroll";\n.maxnreg 0x40\n{'
    entry = Entry.read(text.replace("{\n  .reg", head + "\n  .reg", 1), "k")
    assert entry.bounded and [entry.text[a:b] for a, b in entry.directives.values()] == [
        ".maxntid 0x80, 1, 1", ".pragma", ".maxnreg 0x40",
    ]  # fmt: skip
    assert ".maxnreg 32\n{" in write(entry, [Registers("maxnreg", 32)], 128)
    once = write(entry, [NoUnroll(-1)], 128)
    assert len(Entry.read(once, "k").statements) == len(entry.statements)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("no PTX", "no .version"),
        (".version 8.7\n.entry other() { ret; }", "no entry 'k'"),
        (".version 8.7\n.entry k() { { ret; }", "has no end"),
    ],
)
def test_what_is_no_ptx_is_named(text: str, what: str) -> None:
    with pytest.raises(SassafrasError, match=what):
        Entry.read(text, "k")


def test_a_body_that_is_not_understood_is_named_by_line() -> None:
    with pytest.raises(SassafrasError, match="line 3"):
        _ = Entry.read(".version 8.7\n.entry k()\n{ ret; ?; }", "k").statements

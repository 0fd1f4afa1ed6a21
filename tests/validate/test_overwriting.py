"""What may overwrite a register that an earlier operation reads late, without a wait between the two."""

from __future__ import annotations

import struct
import sys
from functools import lru_cache
from pathlib import Path

import pytest

from sassafras.frontend._ptxas import assemble
from sassafras.sass import Program
from sassafras.sass.tools import find
from sassafras.validate import Validator, classes

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from planted.subject import Subject, put

#: PTX of operations on %f0, %x0, %x1, %l0, %q0 and %at (an address in shared memory); results are %a and %b
OPERATIONS = {
    "LDSM": "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {{{0}}}, [%at];",
    "LDS": "ld.volatile.shared.b32 {0}, [%at];",
    "SHFL": "shfl.sync.bfly.b32 {0}, %x0, 4, 31, -1;",
    "LDG": "ld.volatile.global.b32 {0}, [%q0+64];",
    "F2I": "cvt.rzi.u32.f32 {0}, %f0;",
    "I2F": "cvt.rp.f32.u32 {0}, %x1;",
    "I2F.64": "cvt.rp.f32.s64 {0}, %l0;",
    "POPC": "popc.b32 {0}, %x1;",
}


PAIRS = [
    ("LDSM", "SHFL", True), ("LDS", "SHFL", True), ("F2I", "I2F", True),
    # another queue, and a unit of its own
    ("LDSM", "LDG", False), ("LDSM", "I2F", False), ("F2I", "SHFL", False), ("F2I", "I2F.64", False),
    # one unit, but ptxas never does it
    ("F2I", "POPC", False),
]  # fmt: skip


def entry(name: str, first: str, second: str) -> str:
    """PTX of two operations."""
    kind = "f32" if second.startswith("I2F") else "b32"
    return f"""
.visible .entry {name}(.param .u64 p) {{
.shared .align 16 .b8 room[1024];
.reg .b64 %p0, %q0, %l0; .reg .f32 %f0; .reg .b32 %x0, %x1, %at, %a, %t; .reg .{kind} %b;
ld.param.u64 %p0, [p]; mov.u32 %t, %tid.x; mul.wide.u32 %q0, %t, 32; add.s64 %p0, %p0, %q0;
ld.volatile.global.f32 %f0, [%p0]; ld.volatile.global.b32 %x0, [%p0+4]; ld.volatile.global.b32 %x1, [%p0+8];
ld.volatile.global.b64 %l0, [%p0+16]; ld.volatile.global.b32 %t, [%p0+24];
mov.u32 %at, room; and.b32 %t, %t, 496; add.u32 %at, %at, %t;
add.u32 %x0, %x0, %at; add.u32 %x1, %x1, %at; cvt.u64.u32 %q0, %at; add.s64 %q0, %q0, %p0;
bar.sync 0;
{OPERATIONS[first].format("%a")}
{OPERATIONS[second].format("%b")}
st.volatile.global.{kind} [%p0+128], %b; st.volatile.global.b32 [%p0+132], %a;
ret;
}}
"""


@lru_cache
def overwriting() -> bytes:
    """A kernel a pair, ``k0`` and on: two operations of which the second writes what the first reads, and
    which nothing keeps apart.

    ptxas gives the second a register of its own; the first one's operand is put in its place. All are in one
    file: nvdisasm takes as long for one of them as for all.
    """
    head = ".version 8.0\n.target sm_90a\n.address_size 64\n"
    ptx = head + "".join(entry(f"k{n}", first, second) for n, (first, second, _) in enumerate(PAIRS))
    data = assemble(ptx, "sm_90a", str(find("ptxas").path))
    program, changed, written = Program.parse(data), data, []
    for n, (first, second, _) in enumerate(PAIRS):
        s = Subject(program, f"k{n}")
        one, two = (
            next(i for i in s.code if i.base == name.split(".")[0] and ("S64" in i.opcode) == ("64" in name))
            if name != "LDG"
            else [i for i in s.code if i.base == "LDG"][-1]
            for name in (first, second)
        )
        assert one.index < two.index, "ptxas has put them the other way round"
        own = {b for b in (one.control.write_barrier, one.control.read_barrier) if b is not None}
        between = s.code[one.index + 1 : two.index + 1]
        assert not any(i.control.wait_mask >> b & 1 for i in between for b in own), (
            "something waits for the first"
        )
        operand = {r for r in one.reads if r < 255}
        assert len(operand) == 1, one.text
        (register,) = operand
        at = program.cubin.entries[f"k{n}"].text.offset + two.offset
        assert changed[at : at + 8] == struct.pack("<Q", two.low)
        changed = changed[:at] + struct.pack("<Q", put(two.low, 16, 8, register)) + changed[at + 8 :]
        written.append((f"k{n}", two, register))
    again = Program.parse(changed)
    for name, two, register in written:
        now = again.function(name).instructions[two.index]
        assert now.base == two.base and register in now.writes
    return changed


@pytest.mark.parametrize(("first", "second", "accepted"), PAIRS)
def test_only_a_writer_of_the_readers_queue_needs_no_wait(first: str, second: str, accepted: bool) -> None:
    data = overwriting()
    report = Validator(data, f"k{PAIRS.index((first, second, accepted))}").check(data)
    late = [v.message for v in report.violations if "reads of" in v.message]
    assert bool(late) == (not accepted), str(report)
    assert report.ok == accepted, str(report)


def test_their_order_stays() -> None:
    """The writer moved ahead of the reader is refused, whatever its scoreboard."""
    data = overwriting()
    s = Subject(Program.parse(data), "k0")
    reader, writer = (next(i.index for i in s.code if i.base == name) for name in ("LDSM", "SHFL"))
    order = s.identity()
    order[reader : writer + 1] = [writer, *range(reader, writer)]
    report = Validator(data, "k0").check(s.emit(order, list(s.high)))
    assert "order" in {v.kind for v in report.violations}, str(report)


def test_what_overwrites_without_a_wait_returns_its_result_in_order() -> None:
    """The two rare pairs rest on the results' order: without it they would have no ground."""
    for first, second in (("LDSM", "SHFL"), ("F2I", "I2F")):
        assert second in classes.QUEUED_WRITERS[first] and second in classes.RESULTS_COVERED_BY[first]

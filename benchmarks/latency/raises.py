"""Kernels that raise one scoreboard many times, wait for it once, and look whether everything is there.

A *probe* is a kind of operation and how many of them raise scoreboard 0 one behind another, 2 cycles
apart. For loads and the like each has a result register of its own, scrubbed with ones; right behind the
wait all registers are looked at, the last first. For stores the operands of the last one are overwritten
right behind the wait, and what it stored is looked at later. Three clocks are read: ahead of the first
operation, behind the last one's issue, and behind the wait. Where so many are under way at once that the
counter is full, either the issue is held up (the second clock tells), or the wait ends too early (results
are missing), or neither.

Registers, besides `frame`'s: R52 the address of this trial's line, R53 its high word, R54.. as in
`frame`, R62 a scattered shared address, R50:R51 a global address that is in the cache, R20 to R29 the
probe's own, from R64 on results.
"""

from __future__ import annotations

from dataclasses import dataclass

from . import frame
from .frame import COUNTER_BYTES, MEMORY, WAITER, Code
from .order import Line, report
from .words import Book

#: counters of a probe: lanes with a result missing, cycles until the last issue (sum over warps), until the
#: wait's end, least of the latter, trials of a warp
COUNTERS = ("bad", "issue_cycles", "wait_cycles", "wait_least", "warps")
COUNTS = (1, 32, 48, 60, 62, 63, 64, 65, 66, 70, 80, 96, 98, 112, 127, 128, 129, 160)
#: one warp a block: copies need most of the shared memory
LIVE, THREADS, SHARED_BYTES, LOCAL_BYTES = 226, 32, 25600, 64
_CONFLICTS = frame.SHARED + 16 * THREADS
_COPIED = _CONFLICTS + 128 * THREADS
_FIRST = 64
#: mask of the scoreboard that is waited for: the one that is raised
WAITED = 1
#: so many results have registers of their own where all together need too many
_LAST = 16
#: a kind -> its operation with {d} for the result, {far} for a line of its own; registers of the result
LOADS = {
    "LDG miss": ("LDG.E {d}, desc[UR4][R52.64{far}]", 1),
    "LDG hit": ("LDG.E {d}, desc[UR4][R50.64]", 1),
    "LDS": ("LDS {d}, [R46]", 1),
    "LDS conflict": ("LDS {d}, [R62]", 1),
    "LDL": ("LDL {d}, [R63]", 1),
    "LDSM": ("LDSM.16.M88 {d}, [R46]", 1),
    "SHFL": ("SHFL.BFLY PT, {d}, R4, 0x1, 0x1f", 1),
    "MUFU": ("MUFU.EX2 {d}, R4", 1),
    "I2F.F64": ("I2F.F64.U32 {d}, R4", 2),
    "POPC": ("POPC {d}, R4", 1),
    "DMMA": ("DMMA.8x8x4 {d}, R4, R4, RZ", 4),
    "LDC": ("LDC {d}, c[0x0][R61]", 1),
    "S2R": ("S2R {d}, SR_TID.X", 1),
    "MATCH": ("MATCH.ANY {d}, R4", 1),
    "ATOMS": ("ATOMS.ADD {d}, [R46], RZ", 1),
    "ATOMG": ("ATOMG.E.ADD.STRONG.GPU PT, {d}, desc[UR4][R52.64], RZ", 1),
}
#: operations whose reads are counted: the operand under test is R20
READS = {
    "STS read": ("STS [R46], {s}", "LDS R21, [R46]"),
    "STS conflict read": ("STS [R62], {s}", "LDS R21, [R62]"),
    "STS.128 read": ("STS.128 [R46], {s}", "LDS R21, [R46]"),
    "STG read": ("STG.E desc[UR4][R50.64], {s}", "LDG.E R21, desc[UR4][R50.64]"),
    "STG miss read": ("STG.E desc[UR4][R52.64{far}], {s}", "LDG.E R21, desc[UR4][R52.64{far}]"),
    "STL read": ("STL [R63], {s}", "LDL R21, [R63]"),
    "LDG read": ("LDG.E R22, desc[UR4][{s}.64]", ""),
    "LDS read": ("LDS R22, [{s}]", ""),
    "SHFL read": ("SHFL.BFLY PT, R22, {s}, 0x1, 0x1f", ""),
    "MUFU read": ("MUFU.RCP R22, {s}", ""),
}
#: in turn: two queues, which hold up the issue each for itself
MIXES = (
    "LDG miss + MATCH",
    "LDG miss + LDS conflict",
    "LDG miss + LDC",
    "LDG miss + ATOMG",
    "LDG miss + MUFU",
    "ATOMG + MATCH",
)
#: groups of asynchronous copies that DEPBAR.LE counts down to none
GROUPS = ("LDGDEPBAR",)


@dataclass(frozen=True)
class Probe:
    """A kind of operation, and how often it raises the scoreboard."""

    kind: str
    count: int


def probes() -> list[Probe]:
    """Every kind with every count that registers allow."""
    found = []
    for kind in (*MIXES, *LOADS, *READS, *GROUPS):
        found += [Probe(kind, n) for n in COUNTS if n <= LIVE - _FIRST]
    return found


def prologue(code: Code) -> None:
    frame.prologue(code)
    code.add(
        f"MOV R62, {_CONFLICTS:#x}",
        "IMAD R62, R0, 0x80, R62",
        f"MOV R35, {(1 << 32) - LOCAL_BYTES:#x}",
        "LDC R63, c[0x0][0x28]",
        "IMAD.IADD R63, R63, 0x1, R35",
        f"MOV R61, {frame.SEED:#x}",
        "STL [R63], R4",
        "STS [R62], R5",
    )
    code.idle(4, wait=3)
    code.add("BAR.SYNC.DEFER_BLOCKING 0x0")


def _far(n: int) -> str:
    """Another line for each operation of a trial."""
    return f"+{0x8000 * n:#x}" if n else ""


def section(code: Code, number: int, probe: Probe) -> None:
    """Add a probe's loop."""
    end, loop = f"end{number}", f"loop{number}"
    code.add(f"IADD3 R35, -R54, {number:#x}, RZ", "ISETP.GE.U32.AND P0, PT, R35, R55, PT")
    code.branch("@P0 BRA", end)
    code.add("MOV R45, R56", "MOV R40, RZ", "MOV R41, RZ", "MOV R42, RZ", "MOV R43, RZ")
    code.labels[loop] = len(code.lines)
    code.add(
        "IMAD R48, R48, 0x19660d, R38",
        "IMAD R49, R49, 0x19660d, R38",
        *frame.VALUES["any"],
        # a line of 1 GiB that nothing has touched yet: the warp's random bits, this lane's word in it
        "SHF.R.U32.HI R35, RZ, 0x2, R49",
        "LOP3.LUT R35, R35, 0x3fffff80, RZ, 0xc0, !PT",
        f"LDC R52, c[0x0][{MEMORY:#x}]",
        "IMAD.IADD R52, R52, 0x1, R35",
        "MOV R35, 0x10000000",
        "IMAD.IADD R52, R52, 0x1, R35",
        "LOP3.LUT R35, R0, 0x1f, RZ, 0xc0, !PT",
        "IMAD R52, R35, 0x4, R52",
        "MOV R53, R51",
    )
    if probe.kind in (*LOADS, *MIXES):
        _loads(code, probe)
    elif probe.kind in READS:
        _reads(code, probe)
    else:
        _groups(code, probe)
    code.add(
        "ISETP.NE.AND P3, PT, R24, RZ, PT",
        "@P3 IADD3 R40, R40, R58, RZ",
        "IMAD.IADD R35, R34, 0x1, -R33",
        "IADD3 R41, R41, R35, RZ",
        "IMAD.IADD R35, R36, 0x1, -R33",
        "IADD3 R42, R42, R35, RZ",
        "LOP3.LUT R35, RZ, R35, RZ, 0x33, !PT",
        "VIMNMX.U32 R43, R43, R35, !PT",
        "IADD3 R45, R45, R39, RZ",
        "ISETP.NE.AND P0, PT, R45, RZ, PT",
    )
    code.branch("@P0 BRA", loop)
    code.add(
        "REDUX.SUM UR16, R40",
        "REDUX.MAX UR17, R41",
        "REDUX.MAX UR18, R42",
        "REDUX.MAX UR19, R43",
        *(f"MOV R{16 + n}, UR{16 + n}" for n in range(4)),
        "LOP3.LUT R19, RZ, R19, RZ, 0x33, !PT",
        "LOP3.LUT R35, R0, 0x1f, RZ, 0xc0, !PT",
        "ISETP.NE.AND P0, PT, R35, RZ, PT",
    )
    report(code, COUNTER_BYTES * number, ("R16", "R17", "R18", "R19", "R56"))
    code.labels[end] = len(code.lines)
    code.idle(1)


def _clock(register: str) -> Line:
    return Line(f"CS2R.32 {register}, SR_CLOCKLO", 1)


def _places(count: int, room: int) -> list[int]:
    """Where the results go: each to a place of its own, or, where the room is too small, the last ones."""
    if count <= room:
        return list(range(count))
    shared = room - _LAST
    return [n % shared for n in range(count - _LAST)] + list(range(shared, room))


def _loads(code: Code, probe: Probe) -> None:
    """R24 is not 0 where a result was not there."""
    kinds = [LOADS[kind] for kind in probe.kind.split(" + ")]
    width = kinds[0][1]
    lines: list[Line] = code.lines  # type: ignore[assignment]
    registers = [_FIRST + width * n for n in _places(probe.count, (LIVE - _FIRST) // width)]
    lines += [Line(f"MOV R{n}, R39", 1) for n in range(_FIRST, max(registers) + width)]
    code.add(*(f"MOV R{n}, RZ" for n in range(20, 25)))
    code.idle(2)
    lines.append(_clock("R33"))
    for n, register in enumerate(registers):
        text = kinds[n % len(kinds)][0].format(d=f"R{register}", far=_far(n))
        lines.append(Line(text, 2, write=0))
    lines += [_clock("R34"), Line(WAITER, 1, WAITED), _clock("R36")]
    # the greatest of all results, four at a time: all ones where one is still missing
    for n, register in enumerate(reversed(registers)):
        at = 20 + n % 4
        lines.append(Line(f"VIMNMX.U32 R{at}, R{at}, R{register + width - 1}, !PT", 2))
    code.idle(2)
    code.add(
        "VIMNMX.U32 R20, R20, R21, !PT",
        "VIMNMX.U32 R22, R22, R23, !PT",
        "VIMNMX.U32 R20, R20, R22, !PT",
        "ISETP.EQ.AND P3, PT, R20, R39, PT",
        "@P3 MOV R24, R58",
    )
    _settle(code)


def _reads(code: Code, probe: Probe) -> None:
    text, after = READS[probe.kind]
    lines: list[Line] = code.lines  # type: ignore[assignment]
    sources = {"LDG read": ("R50", "R51"), "LDS read": ("R46", "RZ")}.get(probe.kind, ("R4", "R5"))
    poison = {"LDG read": "R52", "LDS read": "R62"}.get(probe.kind, "R6")
    far = _far(probe.count)
    early = text.replace("R22", "R30")
    if not after:
        # the right result, with waits
        code.add(f"MOV R20, {sources[0]}", f"MOV R21, {sources[1]}", text.format(s="R20"))
        code.add("MOV R25, R22")
    else:
        code.add(f"MOV R25, {sources[0]}")
    code.add(*(f"MOV R{n}, {sources[n % 2]}" for n in (8, 9, 20, 21)), "MOV R10, R4", "MOV R11, R5")
    code.add("MOV R22, R4", "MOV R23, R5", "MOV R24, RZ")
    code.idle(2)
    lines.append(_clock("R33"))
    lines += [Line(early.format(s="R8", far=_far(n)), 2, read=0) for n in range(probe.count - 1)]
    own = {} if after else {"write": 1}
    lines.append(Line(text.format(s="R20", far=far), 2, read=0, **own))
    lines += [_clock("R34"), Line(f"MOV R20, {poison}", 1, 1), _clock("R36")]
    code.idle(8, wait=3)
    if after:
        code.add(after.format(far=far), "MOV R22, R21")
    code.add("LOP3.LUT R24, R22, R25, RZ, 0x3c, !PT")
    _settle(code)


def _groups(code: Code, probe: Probe) -> None:
    """Each copy is a group; each has a word of its own, all ones before."""
    lines: list[Line] = code.lines  # type: ignore[assignment]
    code.add(*(f"MOV R{n}, RZ" for n in range(20, 25)))
    code.add(f"MOV R26, {_COPIED:#x}", f"IMAD R{_FIRST}, R0, 0x4, R26", f"MOV R27, {4 * THREADS:#x}")
    places = range(_FIRST, _FIRST + probe.count)
    lines += [Line(f"IMAD.IADD R{n}, R{n - 1}, 0x1, R27", 6) for n in places[1:]]
    code.idle(2)
    lines += [Line(f"STS [R{n}], R39", 8) for n in places]
    code.idle(8)
    lines.append(_clock("R33"))
    for n in places:
        lines += [Line(f"LDGSTS.E [R{n}], desc[UR4][R52.64], !P4", 2), Line("LDGDEPBAR", 2, write=0)]
    lines += [_clock("R34"), Line("DEPBAR.LE SB0, 0x0", 4), _clock("R36")]
    lines += [Line(f"LDS R{n}, [R{n}]", 2, write=1) for n in reversed(places)]
    code.idle(2, wait=2)
    for n in range(probe.count):
        at = 20 + n % 4
        lines.append(Line(f"VIMNMX.U32 R{at}, R{at}, R{_FIRST + n}, !PT", 2))
    code.idle(2)
    code.add(
        "VIMNMX.U32 R20, R20, R21, !PT",
        "VIMNMX.U32 R22, R22, R23, !PT",
        "VIMNMX.U32 R20, R20, R22, !PT",
        "ISETP.EQ.AND P3, PT, R20, R39, PT",
        "@P3 MOV R24, R58",
    )
    _settle(code)


def _settle(code: Code) -> None:
    code.idle(4, wait=3)
    code.add("MOV R35, 0x80")
    label = f"settle{len(code.lines)}"
    code.labels[label] = len(code.lines)
    code.add("IADD3 R35, R35, R39, RZ", "ISETP.NE.AND P0, PT, R35, RZ, PT")
    code.branch("@P0 BRA", label)


def assemble(chosen: list[Probe], book: Book) -> list[tuple[int, int]]:
    """The code of a kernel of probes, up to where its EXIT stands."""
    code = Code()
    prologue(code)
    for n, probe in enumerate(chosen):
        section(code, n, probe)
    code.idle(1)
    return code.words(book)

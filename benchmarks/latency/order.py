"""Kernels that ask whether a later operation's scoreboard says that an earlier one is done.

A *probe* is an operation A, a later one B, and a question:

- ``results``: A sets no scoreboard, B does. B is waited for: has A's result come?
- ``reads``: A sets no read barrier, B's scoreboard is waited for, then A's operand is overwritten: had A
  read it?
- ``behind``: B's result overwrites A's operand, and nothing is waited for: had A read it?
- ``over``: B's result overwrites A's, 4 cycles behind it: does B's stay?

In front of A stand `pressure` operations of its own kind, on other registers and memory, so that A is
late while B is not. Every trial runs A with a scoreboard of its own first (the right result), and then
the question, with the complement of the right result in A's registers before. Besides: what comes out
with no wait at all, cycles from A's issue until its own scoreboard falls (under the same pressure), the
same of B alone with no pressure, and from B's issue to the end of the wait. A pair is *asked* where A is
later than B by these: only there can it come out wrong.

Registers, besides `frame`'s: R8:R11 operand of B, R12:R15 result of A, R16:R19 of B, R20:R23 what was
read, R70, R72:R73, R78 B's windows of shared, global and local memory, R79 a conflicting address of B's,
R80:R83 the right result, R84:R87 its complement, R88:R91 the operand under test, R92:R95 and R104:R107
result and operand of the pressure, R96:R97 and R74:R75 scattered addresses, R98 local, R99 conflicting
addresses, R112 to R118 counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from sassafras.validate import classes

from . import frame
from .frame import COUNTER_BYTES, MEMORY, SEED, SHARED, WAITER, Code
from .operations import GLOBAL, OPS, Op
from .words import Book

#: counters of a probe: lanes with a wrong result, lanes wrong without any wait, cycles of A (sum over warps),
#: least cycles of A, cycles of B, of the question, trials of a warp
COUNTERS = ("bad", "unwaited", "a_cycles", "a_least", "b_cycles", "wait_cycles", "warps")
QUESTIONS = ("results", "reads", "behind", "over")
#: values that a container's own code keeps in registers, its threads, shared and local bytes
LIVE, THREADS, SHARED_BYTES, LOCAL_BYTES = 116, 256, 40960, 64
#: where the conflicting addresses begin in shared memory, 4 KiB a warp: behind both windows of all threads
_CONFLICTS = SHARED + 2 * THREADS * 16


@dataclass(frozen=True)
class Probe:
    """A question about a pair under one pressure.

    Attributes:
        question: of `QUESTIONS`.
        first, second: names of A and B in `OPS`.
        pressure: operations of A's kind in front of it.
        distance: cycles from A to B.
    """

    question: str
    first: str
    second: str
    pressure: int
    distance: int


def probes(pressures: tuple[tuple[int, int], ...] = ((0, 1), (6, 1), (6, 4))) -> list[Probe]:
    """All that is asked: the pairs that the validator relies on first, then every other pair of operations
    of which a result or an operand is asked about. (What overwrites an address too early ends in a fault:
    only pairs that are relied on are tried.)"""
    found, later = [], []
    for a in OPS.values():
        for b in OPS.values():
            for question in QUESTIONS:
                if not _sensible(question, a, b):
                    continue
                leaned = relied(question, a, b)
                if not leaned and question in ("behind", "over"):
                    continue
                for pressure, distance in pressures:
                    gap = distance if question != "over" else 4
                    (found if leaned else later).append(Probe(question, a.name, b.name, pressure, gap))
    return list(dict.fromkeys([*found, *later]))


def relied(question: str, a: Op, b: Op) -> bool:
    """Whether the validator believes that the pair is in order."""
    table = {
        "results": classes.RESULTS_COVERED_BY,
        "reads": classes.READS_COVERED_BY,
        "behind": classes.QUEUED_WRITERS,
        "over": classes.QUEUED_RESULTS,
    }[question]
    first, second = (classes.queue_name(n, tuple(m)) for n, *m in (op.opcode.split(".") for op in (a, b)))
    return second in table.get(first, ())


def _sensible(question: str, a: Op, b: Op) -> bool:
    if question == "results":
        return bool(a.file and b.file)
    if question == "reads":
        return a.reads and (b.reads or bool(b.file))
    if question == "behind":
        return a.reads and b.file == "R"
    return a.file == "R" == b.file


def _line(
    text: str, stall: int, wait: int = 0, write: int | None = None, read: int | None = None
) -> frame.Line:
    """An instruction that sets these scoreboards and no others."""
    return frame.Line(text, stall, wait, (write, read))


def prologue(code: Code) -> None:
    frame.prologue(code)
    code.add(
        # windows of B: as far as the first from the base; scattered addresses 4 KiB apart, 128 MiB on
        f"MOV R70, {THREADS * 16:#x}",
        "IMAD.IADD R70, R70, 0x1, R46",
        "MOV R72, 0x4000000",
        "IMAD.IADD R72, R72, 0x1, R50",
        "MOV R73, R51",
        "S2R R35, SR_CTAID.X",
        f"IMAD R36, R35, {THREADS:#x}, R0",
        "MOV R76, 0x1000",
        "IMAD R36, R36, R76, RZ",
        f"LDC R96, c[0x0][{MEMORY:#x}]",
        "MOV R35, 0x8000000",
        "IMAD.IADD R96, R96, 0x1, R35",
        "IMAD.IADD R96, R96, 0x1, R36",
        "MOV R97, R51",
        "MOV R35, 0x800",
        "IMAD.IADD R74, R96, 0x1, R35",
        "MOV R75, R51",
        f"MOV R35, {(1 << 32) - LOCAL_BYTES:#x}",
        "LDC R98, c[0x0][0x28]",
        "IMAD.IADD R98, R98, 0x1, R35",
        "MOV R35, 0x20",
        "IMAD.IADD R78, R98, 0x1, R35",
        f"MOV R36, {_CONFLICTS:#x}",
        "IMAD R99, R0, 0x80, R36",
        "MOV R35, 0x40",
        "IMAD.IADD R79, R99, 0x1, R35",
        f"MOV R119, {SEED:#x}",
        "MOV R76, RZ",
        "MOV R77, RZ",
        # what is read there: random words
        "STS [R70], R4",
        "STS [R70+0x4], R7",
        "STS [R70+0x8], R5",
        "STS [R70+0xc], R6",
        "STS [R99], R7",
        "STS [R79], R5",
        "STG.E desc[UR4][R72.64], R7",
        "STG.E desc[UR4][R72.64+0x4], R4",
        "STG.E desc[UR4][R72.64+0x8], R5",
        "STG.E desc[UR4][R72.64+0xc], R6",
        "STG.E desc[UR4][R96.64], R5",
        "STG.E desc[UR4][R74.64], R6",
        "STL [R98], R4",
        "STL [R78], R6",
    )
    code.idle(4, wait=3)
    code.add("BAR.SYNC.DEFER_BLOCKING 0x0")
    code.idle(4)


def _barrier(op: Op, operand: bool) -> dict[str, int]:
    """Scoreboard 0 for its operand, if it reads one late and that is wanted, or else for its result."""
    return {"read": 0} if operand and op.reads else {"write": 0}


def _take(op: Op, wait: int = 0, width: int | None = None) -> list[frame.Line]:
    """Copies of a result into R20, R21, ..., a cycle apart."""
    if op.file == "UR":
        return [_line("MOV R20, UR8", 1, wait)]
    if op.file == "P":
        return [_line("SEL R20, R58, RZ, P1", 1, wait)]
    return [_line(f"MOV R{20 + n}, R{12 + n}", 1, wait if n == 0 else 0) for n in range(width or op.width)]


def _scrub(op: Op) -> list[str]:
    if op.file == "UR":
        return ["R2UR UR8, R84"]
    if op.file == "P":
        return ["ISETP.NE.AND P1, PT, R80, R58, PT"]
    return [f"MOV R{12 + n}, R{84 + n}" for n in range(4)]


def _settle(code: Code, probe: Probe) -> None:
    """Until whatever has no scoreboard is long done: 10,000 cycles for what goes to global memory."""
    slow = any(
        OPS[name] in GLOBAL or name.startswith(("STG", "STL", "LDGSTS"))
        for name in (probe.first, probe.second)
    )
    code.idle(4, wait=3)
    code.add(f"MOV R108, {200 if slow else 8:#x}")
    label = f"settle{len(code.lines)}"
    code.labels[label] = len(code.lines)
    code.add("IADD3 R108, R108, R39, RZ", "ISETP.NE.AND P0, PT, R108, RZ, PT")
    code.branch("@P0 BRA", label)


def _push(code: Code, a: Op, count: int) -> None:
    code.lines += [_line(a.at("pressure"), 2)] * count


def _clock(register: str) -> frame.Line:
    return _line(f"CS2R.32 {register}, SR_CLOCKLO", 1)


def _question(code: Code, probe: Probe, waited: bool) -> None:
    """The tested phase; without `waited` A is not waited for in any way: its result should be missing."""
    a, b, question = OPS[probe.first], OPS[probe.second], probe.question
    lines = code.lines
    code.add(*_scrub(a), *a.operand("A"), *b.operand("B"), *a.reset)
    code.idle(4, wait=3)
    _push(code, a, probe.pressure)
    # its result has a scoreboard of its own where the question is not about that
    own: dict[str, int] = {"write": 1} if question in ("reads", "behind") and a.file else {}
    distance = 4 if question == "over" and probe.distance < 4 else probe.distance
    lines.append(_line(a.at("A"), distance if waited else 1, **own))
    wait = 1 if waited else 0
    if question == "results":
        if waited:
            lines += [_line(b.at("B"), 1, write=0), _clock("R33")]
        lines += _take(a, wait)
        lines.append(_clock("R34"))
    elif question == "reads":
        if waited:
            lines += [_line(b.at("B"), 1, **_barrier(b, True)), _clock("R33")]
        registers = (f"R{88 + n}" for n in range(len(a.poison)))
        for n, (register, value) in enumerate(zip(registers, a.poison, strict=False)):
            lines.append(_line(f"MOV {register}, {value}", 1, wait if n == 0 else 0))
        lines.append(_clock("R34"))
    else:
        if waited:
            lines += [_line(b.at(question), 1, write=0), _clock("R33"), _line(WAITER, 1, 1), _clock("R34")]
    _settle(code, probe)
    if question != "results":
        code.add(*a.after)
        lines += _take(a, width=b.width if question == "over" else None)
    code.idle(4)


def _count(code: Code, width: int, counter: str) -> None:
    code.add("MOV R36, RZ")
    code.add(*(f"LOP3.LUT R36, R{20 + n}, R{80 + n}, R36, 0xbe, !PT" for n in range(width)))
    code.add("ISETP.NE.AND P3, PT, R36, RZ, PT", f"@P3 IADD3 {counter}, {counter}, R58, RZ")


def section(code: Code, number: int, probe: Probe) -> None:
    """Add a probe's loop."""
    a, b, question = OPS[probe.first], OPS[probe.second], probe.question
    lines = code.lines
    width = b.width if question == "over" else a.width
    end, loop = f"end{number}", f"loop{number}"
    code.add(f"IADD3 R35, -R54, {number:#x}, RZ", "ISETP.GE.U32.AND P0, PT, R35, R55, PT")
    code.branch("@P0 BRA", end)
    code.add("MOV R45, R56", *(f"MOV R{n}, RZ" for n in range(112, 118)))
    code.labels[loop] = len(code.lines)
    code.add("IMAD R48, R48, 0x19660d, R38", "IMAD R49, R49, 0x19660d, R38", *frame.VALUES["any"])
    code.add(*a.operand("A"), *a.operand("pressure"), *b.operand("B"), *a.reset)
    # the right result
    code.idle(4, wait=3)
    code.add(a.at("A"))
    if question == "over":
        code.add(b.at("over"))
    _settle(code, probe)
    code.add(*a.after)
    lines += _take(a, width=width)
    code.idle(4)
    code.add(*(f"MOV R{80 + n}, R{20 + n}" for n in range(width)))
    code.add(*(f"LOP3.LUT R{84 + n}, RZ, R{80 + n if n < width else 80}, RZ, 0x33, !PT" for n in range(4)))
    # how long A takes under pressure, and B without
    for op, role, pressure, total in ((a, "A", probe.pressure, "R114"), (b, "B", 0, "R115")):
        operand = question == "reads" or (question == "behind" and op is a)
        code.idle(8, wait=3)
        _push(code, a, pressure)
        lines += [_line(op.at(role), 1, **_barrier(op, operand)), _clock("R33"), _line(WAITER, 1, 1)]
        lines.append(_clock("R34"))
        _settle(code, probe)
        code.add("IMAD.IADD R35, R34, 0x1, -R33", f"IADD3 {total}, {total}, R35, RZ")
        if role == "A":
            code.add("LOP3.LUT R36, RZ, R35, RZ, 0x33, !PT", "VIMNMX.U32 R117, R117, R36, !PT")
    _question(code, probe, True)
    _count(code, width, "R112")
    code.add("IMAD.IADD R35, R34, 0x1, -R33", "IADD3 R116, R116, R35, RZ")
    if question in ("results", "reads"):
        _question(code, probe, False)
        _count(code, width, "R113")
    code.add("IADD3 R45, R45, R39, RZ", "ISETP.NE.AND P0, PT, R45, RZ, PT")
    code.branch("@P0 BRA", loop)
    code.add(
        "REDUX.SUM UR16, R112",
        "REDUX.SUM UR17, R113",
        "REDUX.MAX UR18, R114",
        "REDUX.MAX UR19, R117",
        "REDUX.MAX UR20, R115",
        "REDUX.MAX UR21, R116",
        *(f"MOV R{16 + n}, UR{16 + n}" for n in range(6)),
        "LOP3.LUT R19, RZ, R19, RZ, 0x33, !PT",
        "LOP3.LUT R35, R0, 0x1f, RZ, 0xc0, !PT",
        "ISETP.NE.AND P0, PT, R35, RZ, PT",
    )
    frame.report(code, COUNTER_BYTES * number, ("R16", "R17", "R18", "R19", "R20", "R21", "R56"))
    code.labels[end] = len(code.lines)
    code.idle(1)


def assemble(chosen: list[Probe], book: Book) -> list[tuple[int, int]]:
    """The code of a kernel of probes, up to where its EXIT stands."""
    code = Code()
    prologue(code)
    for n, probe in enumerate(chosen):
        section(code, n, probe)
    code.idle(1)
    return code.words(book)

"""The code around the pairs: what one kernel of many probes consists of.

A *probe* is one pair of instructions, ``first`` and ``second``, that conflict on one register. For every
probe a loop runs three *phases* on fresh pseudo-random values, each from the same scrubbed state:

1. *right*: first, then 60 idle cycles, then second;
2. *wrong*: what comes out when second does not see first's result (for ``raw``: first is left out; for
   ``war`` and ``waw``: second comes 60 cycles before first);
3. *tested*: first, then second after the distance under test, between two reads of the clock.

A trial *counts* when right and wrong differ (a fault would have shown) and the clock says that nothing held
the pair apart for longer than its stall counts. It is *bad* when tested differs from right. Everything else
in the kernel is 15 cycles apart, or waits for its scoreboard.

Registers: R0 thread, R2:R3 counters, R4:R5 the fresh value, R6:R7 the stale one, R12..R15 the register under
test, R16..R28 a phase's own, R24 its result, R30 to R36 results and clocks, R37..R39 and R58..R61 constants,
R40..R45 counts, R46, R47 shared addresses of this lane and of its warp, R48, R49 random numbers of
the lane and of the warp, R50:R51 a global address, R52:R53 the double 1.0, R54..R57 parameters. UR4:UR5
memory descriptor, UR8..UR11 the uniform register under test, UR12.. a phase's own. P1, UP1 the predicates
under test, P4 false, P5 true.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from sassafras.sass.control import Control
from sassafras.sass.instruction import split_text
from sassafras.sass.opcodes import OPCODES, Memory, Queue, base

from .words import Book

#: idle instructions in front of a tested pair; one goes between the two for every 15 cycles of distance
IDLE = 3
#: longest distance that can be tested
LONGEST = 15 * IDLE
#: of a probe: bad, bad but not the stale result, counted trials (lanes), shortest clock, warps' trials
COUNTERS = ("bad", "odd", "counted", "shortest", "warps")
COUNTER_BYTES = 32
#: where in them stands the most that the clock may say of a trial that counts
LIMIT = 28
#: parameters, by offset in the constant bank
OUT, MEMORY, SEED, LOOPS, FIRST, COUNT = 0x210, 0x218, 0x220, 0x224, 0x228, 0x22C
#: bytes of shared and of global memory that each thread has, and where the second window of the latter is
THREAD_BYTES, WINDOW = 16, 1 << 32
#: where a block's own shared memory begins on sm_90; what is below is the system's
SHARED = 0x400
BLOCK = 1024
SHARED_BYTES = BLOCK * THREAD_BYTES

#: waits for scoreboards and does nothing else (ptxas never gives a NOP a wait mask)
WAITER = "MOV R29, RZ"
#: target of a branch under test
SKIP = "`(skip)"
_FP64 = frozenset(["DADD", "DMUL", "DFMA", "DSETP"])


@lru_cache(maxsize=1 << 14)  # probes are made of few instructions
def opcode(text: str) -> str:
    """With its modifiers, without a guard."""
    return split_text(text)[1]


@dataclass(frozen=True)
class Line:
    """One instruction: its text, how long the next one waits, and what it waits for itself.

    Attributes:
        sets: scoreboards for its result and its operands (``write_barrier``, ``read_barrier``); by default 0
            for late results, 1 for late reads.
    """

    text: str
    stall: int = 15
    wait: int = 0
    sets: tuple[int | None, int | None] | None = None

    @cached_property
    def control(self) -> Control:
        """Its control code."""
        if self.sets is not None:
            return Control(self.stall, False, *self.sets, self.wait, 0)
        name = opcode(self.text)
        op = OPCODES[base(name)]
        late = op.variable and op.queue is not Queue.CONTROL and base(name) not in _FP64
        stores = op.memory is not Memory.NONE and op.writes_memory
        writes = late and (not stores or name.startswith("ATOM"))
        reads = late and op.memory is not Memory.CONSTANT and op.queue is not Queue.SPECIAL
        return Control(self.stall, False, 0 if writes else None, 1 if reads else None, self.wait, 0)


#: an instruction that waits 15 cycles: one object for all uses, whose control code is found once
alone = lru_cache(maxsize=1 << 14)(Line)


@dataclass(frozen=True)
class Probe:
    """A pair of instructions.

    Attributes:
        name: unique.
        kind: ``raw``, ``war`` or ``waw``.
        register: what they conflict on: ``R12``, ``UR9``, ``P1``, ``UP1``.
        first, second: their texts.
        values: which values go through the register: see `VALUES`.
        high: the fresh and the stale value differ in their high words, not in their low ones.
        before: what else must be set, after the values are made.
        after: how the result comes into R24, from 60 cycles after the pair on.
        loose: the clock cannot be read right behind the pair; every trial counts.
    """

    name: str
    kind: str
    register: str
    first: str
    second: str
    values: str = "any"
    high: bool = False
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    loose: bool = False


@dataclass
class Section:
    """Where a probe stands in its kernel: instruction indices."""

    probe: Probe
    start: int = 0
    #: first of the `IDLE` idle instructions in front of the tested pair; the pair follows them
    slot: int = 0


@dataclass
class Code:
    """Instructions in the making."""

    lines: list[Line] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    targets: dict[int, str] = field(default_factory=dict)

    def add(self, *texts: str) -> None:
        """Instructions that each wait 15 cycles; what is late is waited for at once."""
        for text in texts:
            self.lines.append(line := alone(text))
            if line.control.write_barrier is not None or line.control.read_barrier is not None:
                self.lines.append(Line(WAITER, wait=3))

    def branch(self, text: str, label: str) -> None:
        """A branch to a label."""
        self.targets[len(self.lines)] = label
        self.lines.append(Line(f"{text} `({label})"))

    def idle(self, count: int = 4, wait: int = 0) -> None:
        """15 cycles each."""
        self.lines += [Line(WAITER, wait=wait) if wait else Line("NOP"), *[Line("NOP")] * (count - 1)]

    def words(self, book: Book) -> list[tuple[int, int]]:
        """Their encodings."""
        out = []
        for n, line in enumerate(self.lines):
            jump = 16 * (self.labels[self.targets[n]] - n - 1) if n in self.targets else 0
            out.append(book.assemble(line.text, line.control, jump))
        return out


def _drawn(lane: str) -> tuple[str, ...]:
    """Four independent positive normal numbers as FP32, as two FP16, and as FP64; no NaN, no infinity."""
    mixed = (("R35", 0x2C1B3C6D), ("R36", 0x297A2D39), ("R34", 0x1B56C4E9))
    made = zip(("R4", "R5", "R6", "R7"), (lane, *(to for to, _ in mixed)), strict=True)
    return (
        *(f"IMAD {to}, {lane}, {factor:#x}, R38" for to, factor in mixed),
        *(f"LOP3.LUT {to}, {of}, 0x3bff3bff, R37, 0xea, !PT" for to, of in made),
    )


_LOW = ("MOV R5, RZ", "MOV R7, RZ")


def _either(bit: int, *makes: str) -> tuple[str, ...]:
    """A value in R4 that these make, and in R6 the same with this bit turned."""
    return (*makes, f"LOP3.LUT R6, R4, {bit:#x}, RZ, 0x3c, !PT", *_LOW)


#: how values are made from R48, a lane's random number: into R4:R5 fresh, R6:R7 stale
_LANES: dict[str, tuple[str, ...]] = {
    "any": _drawn("R48"),
    # 0 or 1, and the other
    "bit": _either(1, "SHF.R.U32.HI R4, RZ, 0x1f, R48"),
    # a shift count or a lane: below 32, not the same
    "small": (
        "SHF.R.U32.HI R4, RZ, 0x1b, R48",
        "SHF.R.U32.HI R35, RZ, 0x3, R48",
        "LOP3.LUT R35, R35, 0xf, R58, 0xea, !PT",
        "LOP3.LUT R6, R4, R35, RZ, 0x3c, !PT",
        *_LOW,
    ),
    # two shared addresses that hold different words
    "shared": _either(8, "SHF.R.U32.HI R35, RZ, 0x1f, R48", "IMAD R4, R35, 0x8, R46"),
}
#: the same from R49, a warp's random number, and what only one of the two has
VALUES: dict[str, tuple[str, ...]] = {
    **_LANES,
    **{
        f"uniform {name}".removesuffix(" any"): tuple(
            t.replace("R48", "R49").replace("R46", "R47") for t in of
        )
        for name, of in _LANES.items()
    },
    "bit shifted": _either(4, "SHF.R.U32.HI R4, RZ, 0x1f, R48", "SHF.L.U32 R4, R4, 0x2, RZ"),
    # two rows for LDSM, which wants them whole
    "row": ("MOV R4, R46", "LOP3.LUT R6, R46, 0x10, RZ, 0x3c, !PT", *_LOW),
    "uniform row": _either(16, "SHF.R.U32.HI R4, RZ, 0x1f, R49", "SHF.L.U32 R4, R4, 0x4, RZ"),
    # two global addresses: `high` takes the second window for one of them
    "global": (
        "SHF.R.U32.HI R35, RZ, 0x1f, R48",
        "IMAD R4, R35, 0x8, R50",
        "LOP3.LUT R6, R4, 0x8, RZ, 0x3c, !PT",
        "MOV R5, R51",
        "MOV R7, R51",
    ),
    "global high": (
        "SHF.R.U32.HI R35, RZ, 0x1f, R48",
        "IMAD.IADD R5, R35, 0x1, R51",
        "IMAD R7, R35, -0x1, R58",
        "IMAD.IADD R7, R7, 0x1, R51",
        "MOV R4, R50",
        "MOV R6, R50",
    ),
    # an offset that a uniform register adds to a global address
    "uniform offset": _either(8, "SHF.R.U32.HI R4, RZ, 0x1f, R49", "SHF.L.U32 R4, R4, 0x3, RZ"),
}


def _scrub(register: str, probe: Probe) -> list[str]:
    """Give the register under test (and those beside it that one instruction may write) the stale values."""
    if register.startswith("UR"):
        return ["R2UR UR8, R6", "R2UR UR9, R7", "R2UR UR10, R6", "R2UR UR11, R7"]
    if register.startswith("UP"):
        return ["R2UR UR14, R6", "UISETP.NE.AND UP1, UPT, UR14, URZ, UPT"]
    if register.startswith("P"):
        return ["ISETP.NE.AND P1, PT, R6, RZ, PT"]
    return ["MOV R12, R6", "MOV R13, R7", "MOV R14, R6", "MOV R15, R7"]


def prologue(code: Code) -> None:
    """Addresses, constants and what memory holds: the registers of the module."""
    code.add(
        "S2R R0, SR_TID.X",
        "S2R R35, SR_CTAID.X",
        "ULDC.64 UR4, c[0x0][0x208]",
        f"LDC.64 R2, c[0x0][{OUT:#x}]",
        f"LDC.64 R52, c[0x0][{MEMORY:#x}]",
        f"LDC R48, c[0x0][{SEED:#x}]",
        f"LDC R56, c[0x0][{LOOPS:#x}]",
        f"LDC R54, c[0x0][{FIRST:#x}]",
        f"LDC R55, c[0x0][{COUNT:#x}]",
        "IMAD R36, R35, 0x400, R0",
        "SHF.R.U32.HI R35, RZ, 0x5, R36",
        "IMAD R49, R35, 0x35ebca6b, R48",
        "IMAD R48, R36, 0x1e3779b1, R48",
        "MOV R37, 0x4000400",
        "MOV R38, 0x3c6ef35f",
        "MOV R39, 0xffffffff",
        "MOV R58, 0x1",
        "MOV R59, 0x3f800000",
        "MOV R60, 0x3c003c00",
        "MOV R61, 0x1f",
        f"MOV R35, {SHARED:#x}",
        f"IMAD R46, R0, {THREAD_BYTES:#x}, R35",
        "LOP3.LUT R47, R46, 0xfffffe00, RZ, 0xc0, !PT",
        f"MOV R35, {THREAD_BYTES:#x}",
        "IMAD.WIDE.U32 R50, R36, R35, R52",
        "MOV R52, RZ",
        "MOV R53, 0x3ff00000",
        "ISETP.NE.AND P4, PT, RZ, RZ, PT",
        "ISETP.NE.AND P5, PT, R58, RZ, PT",
        # memory: different words at the two shared and the three global addresses of this lane
        "IMAD R4, R48, 0x2c1b3c6d, R38",
        "IMAD R5, R4, 0x2c1b3c6d, R38",
        "IMAD R6, R5, 0x2c1b3c6d, R38",
        "IMAD R7, R6, 0x2c1b3c6d, R38",
        "STS [R46], R4",
        "STS [R46+0x4], R7",
        "STS [R46+0x8], R5",
        "STS [R46+0xc], R6",
        "STG.E desc[UR4][R50.64], R4",
        "STG.E desc[UR4][R50.64+0x8], R5",
        "STG.E desc[UR4][R50.64+0x4], R7",
        "STG.E desc[UR4][R50.64+0xc], R6",
        "IMAD.IADD R13, R51, 0x1, R58",
        "MOV R12, R50",
        "STG.E desc[UR4][R12.64], R6",
        "STG.E desc[UR4][R12.64+0x4], R5",
        "STG.E desc[UR4][R12.64+0x8], R7",
        "STG.E desc[UR4][R12.64+0xc], R4",
    )
    code.idle(4, wait=3)
    code.add("BAR.SYNC.DEFER_BLOCKING 0x0")
    code.idle(4)


def _phase(code: Code, probe: Probe, which: str, result: str) -> int:
    """One phase; the index of the tested pair's idle instructions."""
    code.add(*_scrub(probe.register, probe), *probe.before)
    code.idle()
    slot = 0
    first, second = Line(probe.first), Line(probe.second)
    pair = {"right": (first, second), "wrong": (second, first)}.get(which)
    if which == "wrong" and probe.kind == "raw":
        _second(code, second)
    elif pair is not None:
        code.lines.append(pair[0])
        code.idle(4, wait=3)
        _second(code, pair[1])
    else:
        code.lines.append(Line("CS2R.32 R33, SR_CLOCKLO"))
        slot = len(code.lines)
        code.lines += [Line("NOP")] * IDLE
        code.lines.append(first)
        _second(code, second)
        code.lines.append(Line("CS2R.32 R34, SR_CLOCKLO"))
    code.idle(4, wait=3)
    code.add(*probe.after, f"MOV {result}, R24")
    return slot


def _second(code: Code, line: Line) -> None:
    """The second instruction; one that is jumped over tells whether a branch was taken."""
    if not line.text.endswith(SKIP):
        code.lines.append(line)
        return
    label = f"skip{len(code.lines)}"
    code.branch(line.text.removesuffix(SKIP).strip(), label)
    code.lines.append(Line("MOV R24, R58"))
    code.labels[label] = len(code.lines)


def section(code: Code, number: int, probe: Probe) -> Section:
    """Add a probe's loop."""
    made = Section(probe, len(code.lines))
    end, loop = f"end{number}", f"loop{number}"
    code.add(f"IADD3 R35, -R54, {number:#x}, RZ", "ISETP.GE.U32.AND P0, PT, R35, R55, PT")
    code.branch("@P0 BRA", end)
    code.add(f"LDG.E R57, desc[UR4][R2.64+{COUNTER_BYTES * number + LIMIT:#x}]")
    code.add("MOV R45, R56", *(f"MOV R{n}, RZ" for n in (40, 41, 42)), "MOV R44, RZ")
    code.labels[loop] = len(code.lines)
    code.add("IMAD R48, R48, 0x19660d, R38", "IMAD R49, R49, 0x19660d, R38", *VALUES[probe.values])
    if not probe.values.startswith("global"):
        # only one half of a pair is stale: the other one would hide or fake a fault
        code.add("MOV R6, R4" if probe.high else "MOV R7, R5")
    _phase(code, probe, "right", "R30")
    _phase(code, probe, "wrong", "R31")
    made.slot = _phase(code, probe, "tested", "R32")
    code.add(
        "IMAD.IADD R35, R34, 0x1, -R33",
        "LOP3.LUT R36, RZ, R35, RZ, 0x33, !PT",
        "VIMNMX.U32 R44, R44, R36, !PT",
        "ISETP.NE.AND P0, PT, R30, R31, PT",
        f"ISETP.GE.U32.AND P2, PT, {'R39' if probe.loose else 'R57'}, R35, P0",
        "@P2 IADD3 R42, R42, R58, RZ",
        "ISETP.NE.AND P3, PT, R32, R30, PT",
        "@P3 IADD3 R40, R40, R58, RZ",
        "ISETP.NE.AND P0, PT, R32, R31, P3",
        "@P0 IADD3 R41, R41, R58, RZ",
        "IADD3 R45, R45, R39, RZ",
        "ISETP.NE.AND P0, PT, R45, RZ, PT",
    )
    code.branch("@P0 BRA", loop)
    code.add(
        "REDUX.SUM UR16, R40",
        "REDUX.SUM UR17, R41",
        "REDUX.SUM UR18, R42",
        "REDUX.MAX UR19, R44",
        "MOV R16, UR16",
        "MOV R17, UR17",
        "MOV R18, UR18",
        "MOV R19, UR19",
        "LOP3.LUT R19, RZ, R19, RZ, 0x33, !PT",
        "LOP3.LUT R35, R0, 0x1f, RZ, 0xc0, !PT",
        "ISETP.NE.AND P0, PT, R35, RZ, PT",
    )
    report(code, COUNTER_BYTES * number, ("R16", "R17", "R18", "R19", "R56"))
    code.labels[end] = len(code.lines)
    code.idle(1)
    return made


def report(code: Code, at: int, registers: tuple[str, ...]) -> None:
    """Add a warp's counters to a probe's, from lanes in which P0 is false; the fourth is a minimum."""
    for n, register in enumerate(registers):
        place = f"+{at + 4 * n:#x}" if at + n else ""
        what = "MIN" if n == 3 else "ADD"
        code.add(f"@!P0 REDG.E.{what}.STRONG.GPU desc[UR4][R2.64{place}], {register}")


def assemble(probes: list[Probe], book: Book) -> tuple[Code, list[Section], list[tuple[int, int]]]:
    """The code of a kernel of probes, up to where its EXIT stands."""
    code = Code()
    prologue(code)
    sections = [section(code, n, p) for n, p in enumerate(probes)]
    code.idle(1)
    return code, sections, code.words(book)

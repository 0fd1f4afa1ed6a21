"""The pairs that are measured: every producer of a value with every operand that takes one.

All of them are identities: what is made is the fresh value itself, and what is computed from it tells
every bit of it, so that a stale register shows. Where an instruction cannot hand a value through (it
converts, packs, counts), it is marked and used only where any value will do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from sassafras.sass.opcodes import OPCODES, Queue, base

from .frame import SKIP, Probe


@dataclass(frozen=True)
class Maker:
    """A producer: ``{}`` stands for the register under test.

    Attributes:
        text: the instruction.
        register: which register of what it writes is under test.
        before: what it needs.
        exact: it hands the value through; else only where any value will do.
        only: values that it can make, where these are few.
    """

    text: str
    register: str = "R12"
    before: tuple[str, ...] = ()
    exact: bool = True
    only: str = ""


@dataclass(frozen=True)
class Taker:
    """A consumer: the instruction with the register under test in one operand.

    Attributes:
        text, register, before: as for `Maker`.
        values: what may go through the register (`frame.VALUES`).
        after: brings its result into R24.
        loose: see `Probe`.
    """

    text: str
    register: str = "R12"
    values: str = "any"
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    loose: bool = False


def _general() -> Iterator[Maker]:
    """Producers of a general register, from R4 (and R5)."""
    quad = ("MOV R16, R4", "MOV R17, R5", "MOV R18, R4", "MOV R19, R5")
    for text in (
        "MOV R12, R4",
        "IMAD.MOV.U32 R12, RZ, RZ, R4",
        "IMAD R12, R4, R58, RZ",
        "IADD3 R12, R4, RZ, RZ",
        "IADD3.X R12, R4, RZ, RZ, P4, !PT",
        "IMAD.X R12, R4, 0x1, RZ, P4",
        "VIADD R12, R4, 0x0",
        "LOP3.LUT R12, R4, RZ, RZ, 0xfc, !PT",
        "SHF.L.U32 R12, R4, 0x0, RZ",
        "SHF.R.S32.HI R12, RZ, 0x0, R4",
        "SHF.L.U32 R12, R4, RZ, RZ",
        "LEA R12, RZ, R4, 0x1",
        "LEA.HI R12, RZ, R4, RZ, 0x1d",
        "LEA.HI.X R12, RZ, R4, RZ, 0x1, P4",
        "PRMT R12, R4, 0x3210, RZ",
        "PRMT R12, R4, R28, RZ",
        "SEL R12, R4, RZ, P5",
        "FSEL R12, R4, RZ, P5",
        "VIMNMX.U32 R12, R4, RZ, !PT",
        "VIMNMX R12, R4, RZ, !PT",
        "VIADDMNMX R12, R4, RZ, RZ, !PT",
        "FADD R12, R4, RZ",
        "FMUL R12, R4, R59",
        "FFMA R12, R4, R59, RZ",
        "FMNMX R12, R4, RZ, !PT",
        "HADD2 R12, R4, RZ",
        "HMUL2 R12, R4, R60",
        "HFMA2.MMA R12, R4, R60, RZ",
        "HMNMX2 R12, R4, RZ, !PT",
        "IABS R12, R4",
    ):
        yield Maker(text, before=("MOV R28, 0x3210",) if "R28" in text else ())
    for text in (
        "F2FP.F16.F32.PACK_AB R12, R4, R5",
        "F2FP.BF16.F32.PACK_AB R12, R4, R5",
        "I2FP.F32.S32 R12, R4",
        "I2FP.F32.U32 R12, R4",
        "HADD2.F32 R12, -RZ, R4.H0_H0",
        "IDP.4A.S8.S8 R12, R4, R4, RZ",
        "IMAD.HI.U32 R12, R4, R5, RZ",
        "IMAD.HI R12, R4, R5, RZ",
        "SGXT.U32 R12, R4, 0x5",
        "SGXT R12, R4, 0x5",
        "BMSK R12, R61, R4",
        "P2R R12, PR, RZ, 0x7f",
        "VOTE.ANY R12, PT, P5",
        "FSET.BF.LT.AND R12, RZ, R4, PT",
        "HSET2.BF.LT.AND R12, RZ, R4, PT",
        "VABSDIFF.U32 R12, R4, RZ, RZ",
        "IMAD.SHL.U32 R12, R4, 0x2, RZ",
        "FMNMX.XORSIGN R12, |R4|, 448, PT",
        "MOV R12, UR16",
        "IMAD.U32 R12, RZ, RZ, UR16",
        "CS2R R12, SRZ",
        "FADD.SAT R12, R4, RZ",
        "HFMA2.BF16_V2 R12, R4, R60, RZ",
        "F2FP.SATFINITE.E4M3.F32.PACK_AB_MERGE_C R12, R4, R5, RZ",
        "F2FP.SATFINITE.E5M2.F32.PACK_AB_MERGE_C R12, R4, R5, RZ",
    ):
        yield Maker(text, exact=False, before=("R2UR UR16, R49",) if "UR16" in text else ())
    yield Maker("CS2R R12, SRZ", "R13", exact=False)
    for half in (0, 1):
        register = f"R{12 + half}"
        yield Maker("IMAD.WIDE.U32 R12, RZ, RZ, R4", register)
        yield Maker("IMAD.WIDE.U32 R12, R4, R5, RZ", register, exact=False)
        yield Maker("IMAD.WIDE R12, R4, R5, RZ", register, exact=False)
        yield Maker("DADD R12, R4, RZ", register)
        yield Maker("DMUL R12, R4, R52", register)
        yield Maker("DFMA R12, R4, R52, RZ", register)
    for n in range(4):
        for what in ("HMMA.16816.F32", "HMMA.16816.F32.BF16"):
            yield Maker(f"{what} R12, RZ, RZ, R16", f"R{12 + n}", quad, exact=False)
        yield Maker("IMMA.16816.S8.S8 R12, R16.ROW, R18.COL, RZ", f"R{12 + n}", quad, exact=False)


def _uses_general() -> Iterator[Taker]:
    """Operands that take a general register. The result goes to R24."""
    x = "R12"
    for text in (
        "MOV R24, R12",
        "IMAD.MOV.U32 R24, RZ, RZ, R12",
        "IMAD R24, R12, R58, RZ",
        "IMAD R24, R58, R12, RZ",
        "IADD3 R24, R12, RZ, RZ",
        "IADD3 R24, R58, R12, RZ",
        "IADD3 R24, R58, RZ, R12",
        "IADD3.X R24, R12, RZ, RZ, P4, !PT",
        "IADD3.X R24, RZ, R12, RZ, P4, !PT",
        "IADD3.X R24, RZ, RZ, R12, P4, !PT",
        "IMAD.X R24, R12, 0x1, RZ, P4",
        "IMAD.X R24, RZ, RZ, R12, P4",
        "VIADD R24, R12, 0x1",
        "LOP3.LUT R24, R12, RZ, RZ, 0xfc, !PT",
        "LOP3.LUT R24, RZ, R12, RZ, 0xfc, !PT",
        "LOP3.LUT R24, RZ, RZ, R12, 0xfe, !PT",
        "SHF.L.U32 R24, R12, 0x0, RZ",
        "SHF.R.S32.HI R24, RZ, 0x0, R12",
        "SHF.R.U32.HI R24, RZ, 0x0, R12",
        "LEA R24, R12, RZ, 0x1",
        "LEA R24, RZ, R12, 0x1",
        "LEA.HI R24, R12, RZ, RZ, 0x1d",
        "LEA.HI R24, RZ, R12, RZ, 0x1d",
        "LEA.HI R24, RZ, RZ, R12, 0x1d",
        "LEA.HI.X R24, R12, RZ, RZ, 0x1, P4",
        "LEA.HI.X R24, RZ, R12, RZ, 0x1, P4",
        "LEA.HI.X R24, RZ, RZ, R12, 0x1, P4",
        "PRMT R24, R12, 0x3210, RZ",
        "PRMT R24, RZ, 0x7654, R12",
        "PRMT R24, R58, R12, R59",
        "SEL R24, R12, RZ, P5",
        "SEL R24, RZ, R12, P4",
        "FSEL R24, R12, RZ, P5",
        "FSEL R24, RZ, R12, P4",
        "VIMNMX.U32 R24, R12, RZ, !PT",
        "VIMNMX.U32 R24, RZ, R12, !PT",
        "VIADDMNMX R24, R12, RZ, RZ, !PT",
        "VIADDMNMX R24, RZ, R12, RZ, !PT",
        "VIADDMNMX R24, RZ, RZ, R12, !PT",
        "FADD R24, R12, RZ",
        "FADD R24, RZ, R12",
        "FMUL R24, R12, R59",
        "FMUL R24, R59, R12",
        "FFMA R24, R12, R59, RZ",
        "FFMA R24, R59, R12, RZ",
        "FFMA R24, RZ, RZ, R12",
        "FMNMX R24, R12, RZ, !PT",
        "FMNMX R24, RZ, R12, !PT",
        "HADD2 R24, R12, RZ",
        "HADD2 R24, RZ, R12",
        "HMUL2 R24, R12, R60",
        "HMUL2 R24, R60, R12",
        "HADD2.F32 R24, -RZ, R12.H0_H0",
        "HADD2.F32 R24, -RZ, R12.H1_H1",
        "HFMA2.BF16_V2 R24, R12, R60, RZ",
        "HFMA2.BF16_V2 R24, R60, R12, RZ",
        "HFMA2.BF16_V2 R24, RZ, RZ, R12",
        "HFMA2.MMA R24, R12, R60, RZ",
        "HFMA2.MMA R24, R60, R12, RZ",
        "HFMA2.MMA R24, RZ, RZ, R12",
        "HMNMX2 R24, R12, RZ, !PT",
        "HMNMX2 R24, RZ, R12, !PT",
        "IABS R24, R12",
        "I2FP.F32.S32 R24, R12",
        "I2FP.F32.U32 R24, R12",
        "F2FP.F16.F32.PACK_AB R24, R12, RZ",
        "F2FP.F16.F32.PACK_AB R24, RZ, R12",
        "F2FP.BF16.F32.PACK_AB R24, R12, RZ",
        "F2FP.BF16.F32.PACK_AB R24, RZ, R12",
        "FMNMX.XORSIGN R24, |R12|, 448, PT",
        "F2FP.SATFINITE.E4M3.F32.PACK_AB_MERGE_C R24, R12, RZ, RZ",
        "F2FP.SATFINITE.E4M3.F32.PACK_AB_MERGE_C R24, RZ, R12, RZ",
        "IDP.4A.S8.S8 R24, R12, R39, RZ",
        "IDP.4A.S8.S8 R24, R39, R12, RZ",
        "IDP.4A.S8.S8 R24, RZ, RZ, R12",
        "IMAD.HI.U32 R24, R12, R39, RZ",
        "IMAD.HI.U32 R24, R39, R12, RZ",
        "IMAD.HI R24, R12, R48, RZ",
        "IMAD.HI R24, R48, R12, RZ",
        "SGXT.U32 R24, R12, 0x5",
        "BMSK R24, R12, R61",
        "BMSK R24, RZ, R12",
        "VABSDIFF.U32 R24, R12, RZ, RZ",
        "FSET.BF.LT.AND R24, R12, R6, PT",
        "FSET.BF.LT.AND R24, R6, R12, PT",
        "MUFU.RCP R24, R12",
        "MUFU.EX2 R24, R12",
        "POPC R24, R12",
        "FLO.U32 R24, R12",
        "BREV R24, R12",
        "FRND R24, R12",
        "I2F.RP R24, R12",
    ):
        yield Taker(text, x)
    wide = ("LOP3.LUT R24, R24, R25, RZ, 0x3c, !PT",)
    yield Taker("IMAD.WIDE.U32 R24, R12, R58, RZ", x, after=wide)
    yield Taker("IMAD.WIDE.U32 R24, R58, R12, RZ", x, after=wide)
    yield Taker("IMAD.WIDE.U32 R24, RZ, RZ, R12", x, after=wide)
    yield Taker("IMAD.WIDE.U32 R24, RZ, RZ, R12", "R13", after=wide)
    yield Taker("SHF.L.U32 R24, R39, R12, RZ", x, "small")
    yield Taker("SHF.R.U32.HI R24, RZ, R12, R39", x, "small")
    for first, second in (("R12", "R52"), ("R52", "R12")):
        for register in ("R12", "R13"):
            yield Taker(f"DMUL R24, {first}, {second}", register, after=wide)
            yield Taker(f"DFMA R24, {first}, {second}, RZ", register, after=wide)
    for register in ("R12", "R13"):
        yield Taker("DADD R24, R12, RZ", register, after=wide)
        yield Taker("DADD R24, RZ, R12", register, after=wide)
        yield Taker("DFMA R24, RZ, RZ, R12", register, after=wide)
    # compared with the stale value, which only a stale register equals
    taken = ("SEL R24, R58, RZ, P3",)
    for text in (
        "ISETP.GE.U32.AND P3, PT, R12, R6, PT",
        "ISETP.NE.AND P3, PT, R12, R6, PT",
        "ISETP.NE.AND P3, PT, R6, R12, PT",
        "ISETP.NE.U32.AND.EX P3, PT, R12, R6, PT, P4",
        "ISETP.NE.U32.AND.EX P3, PT, R6, R12, PT, P4",
        "FSETP.NEU.AND P3, PT, R12, R6, PT",
        "FSETP.NEU.AND P3, PT, R6, R12, PT",
        "HSETP2.GEU.AND P3, PT, R12.H0_H0, R6.H0_H0, PT",
        "HSETP2.GEU.AND P3, PT, R6.H0_H0, R12.H0_H0, PT",
    ):
        yield Taker(text, x, after=taken)
    yield Taker("R2P PR, R12, 0x4", x, "bit shifted", after=taken)
    yield Taker("R2UR UR12, R12", x, "uniform", after=("MOV R24, UR12",))
    # late readers: their data, addresses and indices
    zero = ("STS [R46], RZ", "STS [R46+0x4], RZ", "STS [R46+0x8], RZ", "STS [R46+0xc], RZ")
    back = ("LDS R24, [R46]", "LDS R25, [R46+0x4]", "LDS R26, [R46+0x8]", "LDS R27, [R46+0xc]")
    mix = ("IMAD R24, R24, 0x3, R25", "IMAD R24, R24, 0x3, R26", "IMAD R24, R24, 0x3, R27")
    for width, count in (("", 1), (".64", 2), (".128", 4)):
        for n in range(count):
            yield Taker(f"STS{width} [R46], R12", f"R{12 + n}", after=(*back, *mix), before=zero)
            yield Taker(
                f"STG.E{width} desc[UR4][R50.64], R12",
                f"R{12 + n}",
                before=tuple(f"STG.E desc[UR4][R50.64{o}], RZ" for o in ("", "+0x4", "+0x8", "+0xc")),
                after=(
                    *(
                        f"LDG.E R{24 + k}, desc[UR4][R50.64{o}]"
                        for k, o in enumerate(("", "+0x4", "+0x8", "+0xc"))
                    ),
                    *mix,
                ),
            )
    # words that differ by place, so that an address tells itself
    mark = ("STS [R46], R48", "STS [R46+0x4], R38", "STS [R46+0x8], R39", "STS [R46+0xc], R37")
    marks = tuple(
        f"STG.E desc[UR4][R{a}.64{o}], {v}"
        for a, values in ((50, ("R48", "R38", "R39", "R37")), (20, ("R59", "R60", "R61", "R37")))
        for o, v in zip(("", "+0x4", "+0x8", "+0xc"), values, strict=True)
    )
    marks = ("MOV R20, R50", "IMAD.IADD R21, R51, 0x1, R58", *marks)
    for width in ("", ".64"):
        pair = mix[:1] if width else ()
        extra = ("MOV R25, RZ",)
        yield Taker(f"LDS{width} R24, [R12]", x, "shared", before=(*mark, *extra), after=pair)
        yield Taker(f"STS{width} [R12], R58", x, "shared", before=zero, after=(*back, *mix))
        for register, values in (("R12", "global"), ("R13", "global high")):
            yield Taker(
                f"LDG.E{width} R24, desc[UR4][R12.64]", register, values, before=(*marks, *extra), after=pair
            )
            yield Taker(
                f"STG.E{width} desc[UR4][R12.64], R58",
                register,
                values,
                before=marks,
                after=(
                    *(
                        f"LDG.E R{24 + k}, desc[UR4][R50.64{o}]"
                        for k, o in enumerate(("", "+0x4", "+0x8", "+0xc"))
                    ),
                    *mix,
                    "LDG.E R25, desc[UR4][R20.64]",
                    "IMAD R24, R24, 0x3, R25",
                ),
            )
    yield Taker("SHFL.IDX PT, R24, R12, RZ, 0x1f", x)
    yield Taker("SHFL.IDX PT, R24, R48, R12, 0x1f", x, "small")
    yield Taker("SHFL.BFLY PT, R24, R12, 0x2, 0x1f", x)
    yield Taker("MATCH.ANY R24, R12", x, "bit")
    yield Taker("REDUX.SUM UR12, R12", x, after=("MOV R24, UR12",))
    yield Taker("LDSM.16.M88 R24, [R12]", x, "row", before=mark)
    yield Taker("F2I.TRUNC.NTZ R24, R12", x, "bit shifted")
    yield Taker("I2F.S16 R24, R12", x, "small")
    for n in range(4):
        for what in ("HMMA.16816.F32", "HMMA.16816.F32.BF16"):
            after = ("LOP3.LUT R24, R24, R25, R26, 0x96, !PT", "LOP3.LUT R24, R24, R27, RZ, 0x3c, !PT")
            yield Taker(f"{what} R24, RZ, RZ, R12", f"R{12 + n}", after=after)
            ones = tuple(f"MOV R{20 + k}, R60" for k in range(4))
            if "BF16" in what:
                ones = tuple(f"MOV R{20 + k}, 0x3f803f80" for k in range(4))
            yield Taker(f"{what} R24, R12, R20, RZ", f"R{12 + n}", before=ones, after=after)
            if n < 2:
                yield Taker(f"{what} R24, R20, R12, RZ", f"R{12 + n}", before=ones, after=after)


def _predicates() -> Iterator[Maker]:
    """Producers of P1 from a bit in R4."""
    for text, before in (
        ("ISETP.NE.AND P1, PT, R4, RZ, PT", ()),
        ("ISETP.GE.U32.AND P1, PT, R4, R58, PT", ()),
        ("ISETP.NE.U32.AND.EX P1, PT, R4, RZ, PT, P4", ()),
        ("FSETP.NEU.AND P1, PT, R16, RZ, PT", ("I2FP.F32.U32 R16, R4",)),
        ("HSETP2.GEU.AND P1, PT, R4.H0_H0, R58.H0_H0, PT", ()),
        ("LOP3.LUT P1, RZ, R4, 0x1, RZ, 0xc0, !PT", ()),
        ("IADD3 R16, P1, R4, R39, RZ", ()),
        ("IADD3 R16, P2, P1, R17, R39, R39", ("IMAD R17, R4, R39, RZ",)),
        ("LEA R16, P1, R4, R17, 0x1", ("MOV R17, 0xfffffffe",)),
        ("PLOP3.LUT P1, PT, P2, PT, PT, 0x80, 0x0", ("ISETP.NE.AND P2, PT, R4, RZ, PT",)),
        ("R2P PR, R16, 0x2", ("IMAD.SHL.U32 R16, R4, 0x2, RZ",)),
        ("DSETP.GEU.AND P1, PT, R16, R18, PT", ("MOV R16, R4", "MOV R17, RZ", "MOV R18, R58", "MOV R19, RZ")),
    ):
        yield Maker(text, "P1", before)
    yield Maker("VOTE.ANY P1, P2", "P1", ("ISETP.NE.AND P2, PT, R4, RZ, PT",), only="uniform bit")


def _uses_predicate() -> Iterator[Taker]:
    """Operands that take P1."""
    clear = ("MOV R24, RZ",)
    taken = ("SEL R24, R58, RZ, P3",)
    for text in (
        "@P1 MOV R24, R58",
        "@P1 IMAD R24, R58, R58, RZ",
        "@P1 IADD3 R24, R58, RZ, RZ",
        "@P1 FADD R24, R59, RZ",
        "@P1 FMUL R24, R59, R59",
        "@P1 FFMA R24, R59, R59, RZ",
        "@P1 LOP3.LUT R24, R58, RZ, RZ, 0xfc, !PT",
        "@P1 SHF.L.U32 R24, R58, 0x0, RZ",
        "@P1 LEA R24, R58, RZ, 0x1",
        "@P1 VIADD R24, R58, 0x1",
        "@P1 PRMT R24, R58, 0x3210, RZ",
        "@P1 SEL R24, R58, RZ, P5",
        "@P1 FSEL R24, R58, RZ, P5",
        "@P1 FMNMX R24, R59, RZ, !PT",
        "@P1 IMAD.WIDE.U32 R24, R58, R58, RZ",
        "@P1 HFMA2.MMA R24, R60, R60, RZ",
        "@P1 MUFU.RCP R24, R59",
        "@P1 LDS R24, [R46]",
        "@P1 LDG.E R24, desc[UR4][R50.64]",
        "@P1 LDG.E.64 R24, desc[UR4][R50.64]",
        "@P1 LDG.E.128 R24, desc[UR4][R50.64]",
        "@P1 SHFL.IDX PT, R24, R58, RZ, 0x1f",
        "@P1 POPC R24, R58",
        "@P1 F2FP.F16.F32.PACK_AB R24, R59, R59",
        "@P1 DADD R24, R52, R52",
        "@P1 LDC R24, c[0x0][0x210]",
        "@P1 S2R R24, SR_CTAID.X",
    ):
        yield Taker(
            text,
            "P1",
            "bit",
            before=(
                *clear,
                "STS [R46], R39",
                *(f"STG.E desc[UR4][R50.64{o}], R39" for o in ("", "+0x4", "+0x8", "+0xc")),
            ),
        )
    for text in (
        "@P1 ISETP.NE.AND P3, PT, R58, RZ, PT",
        "@P1 FSETP.NEU.AND P3, PT, R59, RZ, PT",
        "@P1 PLOP3.LUT P3, PT, P5, PT, PT, 0x80, 0x0",
    ):
        yield Taker(text, "P1", "bit", before=("ISETP.NE.AND P3, PT, RZ, RZ, PT",), after=taken)
    yield Taker(
        "@P1 R2UR UR12, R58", "P1", "uniform bit", before=("R2UR UR12, RZ",), after=("MOV R24, UR12",)
    )
    yield Taker(f"@P1 BRA {SKIP}", "P1", "uniform bit", before=clear, loose=True)
    yield Taker("@P1 STS [R46], R58", "P1", "bit", before=("STS [R46], RZ",), after=("LDS R24, [R46]",))
    for width in ("", ".64", ".128"):
        yield Taker(
            f"@P1 STG.E{width} desc[UR4][R50.64], R{36 if width == '.128' else 58}",
            "P1",
            "bit",
            before=("STG.E desc[UR4][R50.64], RZ",),
            after=("LDG.E R24, desc[UR4][R50.64]",),
        )
    for text in (
        "SEL R24, R58, RZ, P1",
        "FSEL R24, R59, RZ, P1",
        "IADD3.X R24, RZ, RZ, RZ, P1, !PT",
        "IADD3.X R24, RZ, RZ, RZ, P4, P1",
        "IMAD.X R24, RZ, RZ, RZ, P1",
        "IMAD.X R24, RZ, 0x1, RZ, P1",
        "LEA.HI.X R24, RZ, RZ, RZ, 0x1, P1",
        "P2R R24, PR, RZ, 0x2",
        "FMNMX R24, R59, RZ, P1",
        "VIMNMX.U32 R24, R58, RZ, P1",
        "VOTE.ANY R24, PT, P1",
        "VIADDMNMX R24, R58, RZ, RZ, P1",
    ):
        yield Taker(text, "P1", "bit")
    for text in (
        "ISETP.NE.AND P3, PT, R58, RZ, P1",
        "ISETP.NE.U32.AND.EX P3, PT, RZ, RZ, PT, P1",
        "ISETP.NE.U32.AND.EX P3, PT, R58, RZ, P1, P4",
        "FSETP.NEU.AND P3, PT, R59, RZ, P1",
        "PLOP3.LUT P3, PT, P1, PT, PT, 0x80, 0x0",
        "PLOP3.LUT P3, PT, PT, P1, PT, 0x80, 0x0",
        "LOP3.LUT P3, RZ, RZ, 0x1, RZ, 0xc0, P1",
        "DSETP.GEU.AND P3, PT, R52, RZ, P1",
    ):
        yield Taker(text, "P1", "bit", after=taken)
    yield Taker("VOTEU.ANY UR12, UPT, P1", "P1", "uniform bit", after=("MOV R24, UR12",))
    yield Taker(
        "VOTEU.ALL UP2, P1",
        "P1",
        "uniform bit",
        after=("USEL UR12, UR14, URZ, UP2", "MOV R24, UR12"),
        before=("R2UR UR14, R58",),
    )


def _uniforms() -> Iterator[Maker]:
    """Producers of UR8 (and UR9) from uniform values in R4, R5."""
    move = ("R2UR UR12, R4", "R2UR UR13, R5")
    for text in (
        "UMOV UR8, UR12",
        "UIADD3 UR8, UR12, URZ, URZ",
        "UIADD3.X UR8, UR12, URZ, URZ, UP2, !UPT",
        "ULOP3.LUT UR8, UR12, URZ, URZ, 0xfc, !UPT",
        "USHF.L.U32 UR8, UR12, 0x0, URZ",
        "USHF.R.U32.HI UR8, URZ, 0x0, UR12",
        "ULEA UR8, URZ, UR12, 0x3",
        "ULEA.HI UR8, URZ, UR12, URZ, 0x1d",
        "UIMAD UR8, UR12, UR14, URZ",
        "UPRMT UR8, UR12, 0x3210, URZ",
        "USEL UR8, UR12, URZ, UPT",
    ):
        yield Maker(text, "UR8", (*move, "R2UR UR14, R58", "UISETP.NE.AND UP2, UPT, URZ, URZ, UPT"))
    for text in (
        "USGXT.U32 UR8, UR12, 0xe",
        "UPOPC UR8, UR12",
        "UFLO.U32 UR8, UR12",
        "VOTEU.ANY UR8, UPT, P5",
        f"ULDC UR8, c[0x0][{0x220:#x}]",
        f"ULDC.64 UR8, c[0x0][{0x218:#x}]",
    ):
        yield Maker(text, "UR8", move, exact=False)
    yield Maker(f"ULDC.64 UR8, c[0x0][{0x218:#x}]", "UR9", move, exact=False)
    yield Maker("R2UR UR8, R4", "UR8")
    for register in ("UR8", "UR9"):
        yield Maker("UIMAD.WIDE.U32 UR8, URZ, URZ, UR12", register, move)
        yield Maker("UIMAD.WIDE.U32 UR8, UR12, UR13, URZ", register, move, exact=False)
        yield Maker("UIADD3.64 UR8, UR12, URZ, URZ", register, move)


def _uses_uniform() -> Iterator[Taker]:
    """Operands that take a uniform register."""
    out = ("MOV R24, UR16",)
    for text in (
        "UMOV UR16, UR8",
        "UIADD3 UR16, UR8, URZ, URZ",
        "UIADD3 UR16, URZ, UR8, URZ",
        "UIADD3 UR16, UR14, URZ, UR8",
        "UIADD3.X UR16, UR8, URZ, URZ, UP2, !UPT",
        "UIADD3.X UR16, URZ, UR8, URZ, UP2, !UPT",
        "ULOP3.LUT UR16, UR8, URZ, URZ, 0xfc, !UPT",
        "ULOP3.LUT UR16, URZ, UR8, URZ, 0xfc, !UPT",
        "ULOP3.LUT UR16, URZ, URZ, UR8, 0xfe, !UPT",
        "USHF.L.U32 UR16, UR8, 0x0, URZ",
        "USHF.R.U32.HI UR16, URZ, 0x0, UR8",
        "ULEA UR16, UR8, URZ, 0x3",
        "ULEA UR16, URZ, UR8, 0x3",
        "ULEA.HI UR16, UR8, URZ, URZ, 0x1d",
        "ULEA.HI UR16, URZ, UR8, URZ, 0x1d",
        "UIMAD UR16, UR8, UR14, URZ",
        "UIMAD UR16, UR14, UR8, URZ",
        "UIMAD UR16, URZ, URZ, UR8",
        "UPRMT UR16, UR8, 0x3210, URZ",
        "USEL UR16, UR8, URZ, UPT",
        "USEL UR16, UR14, UR8, UP2",
        "USGXT.U32 UR16, UR8, 0xe",
        "UPOPC UR16, UR8",
        "UFLO.U32 UR16, UR8",
        "UIMAD.WIDE.U32 UR16, UR8, UR14, URZ",
        "UIMAD.WIDE.U32 UR16, UR14, UR8, URZ",
    ):
        yield Taker(
            text,
            "UR8",
            "uniform",
            before=("R2UR UR14, R58", "UISETP.NE.AND UP2, UPT, URZ, URZ, UPT"),
            after=out,
        )
    for register in ("UR8", "UR9"):
        yield Taker(
            "UIADD3.64 UR16, UR8, URZ, URZ",
            register,
            "uniform",
            after=("MOV R24, UR16", "MOV R25, UR17", "LOP3.LUT R24, R24, R25, RZ, 0x3c, !PT"),
        )
        yield Taker(
            "UIMAD.WIDE.U32 UR16, URZ, URZ, UR8",
            register,
            "uniform",
            after=("MOV R24, UR16", "MOV R25, UR17", "LOP3.LUT R24, R24, R25, RZ, 0x3c, !PT"),
        )
    for text in (
        "UISETP.NE.AND UP2, UPT, UR8, UR18, UPT",
        "UISETP.NE.AND UP2, UPT, UR18, UR8, UPT",
        "UISETP.NE.U32.AND.EX UP2, UPT, UR8, UR18, UPT, UP3",
    ):
        yield Taker(
            text,
            "UR8",
            "uniform",
            before=("R2UR UR18, R6", "R2UR UR14, R58", "UISETP.NE.AND UP3, UPT, URZ, URZ, UPT"),
            after=("USEL UR16, UR14, URZ, UP2", *out),
        )
    for text in (
        "MOV R24, UR8",
        "IMAD.U32 R24, RZ, RZ, UR8",
        "IMAD R24, R58, UR8, RZ",
        "IMAD R24, R58, R58, UR8",
        "IADD3 R24, R58, UR8, RZ",
        "IADD3.X R24, RZ, UR8, RZ, P4, !PT",
        "IMAD.X R24, RZ, RZ, UR8, P4",
        "VIADD R24, R58, UR8",
        "LOP3.LUT R24, R58, UR8, RZ, 0xfc, !PT",
        "LEA R24, R58, UR8, 0x1",
        "LEA.HI R24, RZ, UR8, RZ, 0x1d",
        "LEA.HI.X R24, RZ, UR8, RZ, 0x1, P4",
        "SHF.L.U32 R24, R58, UR8, RZ",
        "SEL R24, RZ, UR8, P4",
        "FSEL R24, RZ, UR8, P4",
        "FADD R24, RZ, UR8",
        "FMUL R24, R59, UR8",
        "FFMA R24, RZ, R59, UR8",
        "FFMA R24, R59, UR8, RZ",
        "FMNMX R24, RZ, UR8, !PT",
        "IABS R24, UR8",
        "I2FP.F32.S32 R24, UR8",
        "I2FP.F32.U32 R24, UR8",
        "VIMNMX.U32 R24, RZ, UR8, !PT",
        "I2F.RP R24, UR8",
        "POPC R24, UR8",
        "MUFU.RCP R24, UR8",
    ):
        yield Taker(text, "UR8", "uniform small" if "SHF.L" in text else "uniform")
    wide = ("LOP3.LUT R24, R24, R25, RZ, 0x3c, !PT",)
    yield Taker("IMAD.WIDE.U32 R24, R58, UR8, RZ", "UR8", "uniform", after=wide)
    yield Taker("IMAD.WIDE R24, R58, UR8, RZ", "UR8", "uniform", after=wide)
    for text in (
        "ISETP.NE.AND P3, PT, R6, UR8, PT",
        "ISETP.GE.U32.AND P3, PT, R6, UR8, PT",
        "ISETP.GE.AND P3, PT, R6, UR8, PT",
        "FSETP.NEU.AND P3, PT, R6, UR8, PT",
        "FSETP.GE.AND P3, PT, R6, UR8, PT",
        "ISETP.GE.U32.AND.EX P3, PT, R6, UR8, PT, P5",
    ):
        yield Taker(text, "UR8", "uniform", after=("SEL R24, R58, RZ, P3",))
    mark = ("STS [R46], R48", "STS [R46+0x4], R38", "STS [R46+0x8], R39", "STS [R46+0xc], R37", "MOV R25, RZ")
    for width in ("", ".64"):
        after = ("IMAD R24, R24, 0x3, R25",) if width else ()
        if not width:
            yield Taker("LDS R24, [UR8]", "UR8", "uniform shared", before=mark)
        yield Taker(f"LDS{width} R24, [R46+UR8]", "UR8", "uniform offset", before=mark, after=after)
        yield Taker(
            f"STS{width} [R46+UR8], R58",
            "UR8",
            "uniform offset",
            before=("STS [R46], RZ", "STS [R46+0x8], RZ"),
            after=("LDS R24, [R46]",),
        )
    yield Taker("LDSM.16.M88.4 R24, [R47+UR8]", "UR8", "uniform row", before=mark)


def _uniform_predicates() -> Iterator[Maker]:
    """Producers of UP1 from a uniform bit."""
    move = ("R2UR UR12, R4", "R2UR UR22, R39", "UISETP.NE.AND UP3, UPT, URZ, URZ, UPT")
    for text in (
        "UISETP.NE.AND UP1, UPT, UR12, URZ, UPT",
        "UISETP.NE.U32.AND.EX UP1, UPT, UR12, URZ, UPT, UP3",
        "ULOP3.LUT UP1, URZ, UR12, 0x1, URZ, 0xc0, !UPT",
        "UIADD3 UR23, UP1, UR12, UR22, URZ",
    ):
        yield Maker(text, "UP1", move)
    yield Maker("VOTEU.ALL UP1, P2", "UP1", ("ISETP.NE.AND P2, PT, R4, RZ, PT",))
    yield Maker(
        "UPLOP3.LUT UP1, UPT, UP2, UPT, UPT, 0x80, 0x0",
        "UP1",
        (*move, "UISETP.NE.AND UP2, UPT, UR12, URZ, UPT"),
    )


def _uses_uniform_predicate() -> Iterator[Taker]:
    """Operands that take UP1."""
    one = (
        "R2UR UR14, R58",
        "UISETP.NE.AND UP3, UPT, URZ, URZ, UPT",
        "R2UR UR16, RZ",
        "UISETP.NE.AND UP2, UPT, URZ, URZ, UPT",
    )
    out = ("MOV R24, UR16",)
    for text in (
        "USEL UR16, UR14, URZ, UP1",
        "UIADD3.X UR16, URZ, URZ, URZ, UP1, !UPT",
        "@UP1 UMOV UR16, UR14",
        "@UP1 UIADD3 UR16, UR14, URZ, URZ",
        "ULEA.HI.X UR16, URZ, URZ, URZ, 0x1, UP1",
        "@UP1 UIMAD UR16, UR14, UR14, URZ",
        "@UP1 ULEA UR16, UR14, URZ, 0x3",
        "@UP1 ULDC UR16, c[0x0][0x210]",
        "@UP1 ULOP3.LUT UR16, UR14, URZ, URZ, 0xfc, !UPT",
    ):
        yield Taker(text, "UP1", "uniform bit", before=one, after=out)
    for text in (
        "UISETP.NE.AND UP2, UPT, UR14, URZ, UP1",
        "UISETP.NE.U32.AND.EX UP2, UPT, URZ, URZ, UPT, UP1",
        "UPLOP3.LUT UP2, UPT, UP1, UPT, UPT, 0x80, 0x0",
    ):
        yield Taker(text, "UP1", "uniform bit", before=one, after=("USEL UR16, UR14, URZ, UP2", *out))
    for text in ("PLOP3.LUT P3, PT, PT, PT, UP1, 0x80, 0x0",):
        yield Taker(text, "UP1", "uniform bit", after=("SEL R24, R58, RZ, P3",))


#: what writes behind a reader, beside the producers, though its result comes late
_LATE_WRITERS = (
    Maker("LDS R12, [R46]", before=("STS [R46], R4",)),
    Maker("LDG.E R12, desc[UR4][R50.64]", before=("STG.E desc[UR4][R50.64], R4",)),
    Maker("SHFL.IDX PT, R12, R4, R61, 0x1f", exact=False),
    Maker("MUFU.RCP R12, R4", exact=False),
    Maker("S2R R12, SR_TID.X", exact=False),
    Maker("LDC R12, c[0x0][0x220]", exact=False),
)
#: files whose write-after-read and write-after-write distances are measured with these writers only
_WRITERS = [
    "MOV",
    "IMAD",
    "IMAD.WIDE",
    "IADD3",
    "LOP3",
    "SHF",
    "FADD",
    "FFMA",
    "FMUL",
    "SEL",
    "PRMT",
    "LEA",
    "HFMA2",
    "HADD2",
    "I2FP",
    "F2FP",
    "DADD",
    "DFMA",
    "HMMA",
    "CS2R",
    "LDS",
    "LDG",
    "SHFL",
    "MUFU",
    "S2R",
    "LDC",
    "P2R",
    "VIMNMX",
    "ISETP",
    "FSETP",
    "PLOP3",
    "R2P",
    "VOTE",
    "UMOV",
    "ULDC",
    "UIADD3",
    "UIMAD",
    "ULEA",
    "R2UR",
    "USHF",
    "ULOP3",
    "VOTEU",
    "UISETP",
    "UPLOP3",
    "USEL",
    "DSETP",
]


@lru_cache(maxsize=65536)
def _width(text: str) -> int:
    """Registers that an instruction's register under test is one of, from its opcode."""
    name = text.split()[1] if text[0] == "@" else text.split()[0]
    parts = name.split(".")
    if "128" in parts or parts[0] in ("HMMA", "IMMA"):
        return 4
    wide = parts[0].startswith("D") or "WIDE" in parts or "64" in parts or name == "CS2R"
    return 2 if wide else 1


def _number(register: str) -> int:
    return int(re.sub(r"\D", "", register))


def _rename(text: str, old: str, new: str) -> str:
    return text if old == new else re.sub(rf"\b{old}\b", new, text)


def _file(register: str) -> str:
    return re.sub(r"\d", "", register)


_FIRST = {"R": 12, "UR": 8, "P": 1, "UP": 1}


def _join(kind: str, maker: Maker, taker: Taker) -> Probe | None:
    """A producer and a consumer on one register, if the two fit together."""
    file = _file(taker.register)
    if file != _file(maker.register) or (maker.only and maker.only != taker.values):
        return None
    if not maker.exact and taker.values not in ("any", "uniform"):
        return None
    if maker.text.startswith("H") and taker.values.startswith("global"):
        return None  # half of an address may be no number, and would not come through
    made, taken, before = maker.text, taker.text, maker.before + taker.before
    register, high = taker.register, False
    if file in ("R", "UR"):
        first = _FIRST[file]
        part, place = _number(maker.register) - first, _number(taker.register) - first
        widths = _width(made), _taken_width(taker)
        if widths[1] == 1:  # the consumer takes any register
            taken = _rename(taken, f"{file}{first}", f"{file}{first + part}")
            register = f"{file}{first + part}"
            if part % 2:
                taken = _rename(_rename(taken, "R6", "R7"), "R4", "R5")
                before = maker.before + tuple(
                    _rename(_rename(t, "R6", "R7"), "R4", "R5") for t in taker.before
                )
            place = part
        elif widths[0] == 1:  # the producer makes any register
            made = _rename(made, f"{file}{first}", f"{file}{first + place}")
            if place % 2:
                made = _rename(_rename(made, "R4", "R5"), "UR12", "UR13")
                before = tuple(_odd(t) for t in maker.before) + taker.before
        else:
            start = place - part
            if start < 0 or start % widths[0]:
                return None
            made = _rename(made, f"{file}{first}", f"{file}{first + start}")
        high = place % 2 == 1
        if high and taker.values not in ("any", "uniform", "global high"):
            return None  # these values have nothing in their high words
    first_text, second_text = (taken, made) if kind == "war" else (made, taken)
    return Probe(
        "", kind, register, first_text, second_text, taker.values, high, before, taker.after, taker.loose
    )


def _odd(text: str) -> str:
    """What prepares a source, for the value's high word; pairs and quads have both words anyway."""
    return text if text.startswith("R2UR") or "R17, R5" in text else re.sub(r", R4\b", ", R5", text)


def _taken_width(taker: Taker) -> int:
    """Registers in the operand under test."""
    text = taker.text
    if _file(taker.register) == "R" and f"[{'R12'}.64" in text:
        return 2
    if _file(taker.register) in ("P", "UP"):
        return 1
    name = text.split()[1] if text[0] == "@" else text.split()[0]
    if name.startswith(("LDS", "LDG", "SHFL", "LDC")) or "R12]" in text or "UR8]" in text:
        return 1  # the address, not the data
    if "WIDE" in name:
        return 2 if re.search(r", (R12|UR8)$", text) else 1
    return _width(text)


def _fixed(text: str) -> bool:
    """Whether an instruction reads its operands at once."""
    name = text.split()[1] if text[0] == "@" else text.split()[0]
    op = OPCODES[base(name)]
    return not op.variable or op.queue is Queue.FP64


def probes() -> list[Probe]:
    """Every pair, named and in a fixed order: first ``raw``, then ``war`` and ``waw``."""
    files = (
        (list(_general()), list(_uses_general())),
        (list(_predicates()), list(_uses_predicate())),
        (list(_uniforms()), list(_uses_uniform())),
        (list(_uniform_predicates()), list(_uses_uniform_predicate())),
    )
    found: list[Probe] = []
    for makers, takers in files:
        found += [p for m in makers for t in takers if (p := _join("raw", m, t))]
    for makers, takers in files:
        writers = [m for m in makers if base(m.text.split()[0]) in _WRITERS]
        if _file(makers[0].register) == "R":
            writers += _LATE_WRITERS
        for t in takers:
            # a late reader takes predicates and uniform registers at issue, general registers when it comes to it
            if (_file(t.register) == "R" and not _fixed(t.text)) or t.text.endswith(SKIP):
                continue
            found += [p for m in writers if (p := _join("war", m, t))]
        found += [p for a in makers for b in writers if (p := _overwrite(a, b))]
    return found


_SHOW = {
    "R": ("any", ("MOV R24, {}",)),
    "UR": ("uniform", ("MOV R24, {}",)),
    "P": ("uniform bit", ("SEL R24, R58, RZ, {}",)),
    "UP": ("uniform bit", ("USEL UR16, UR14, URZ, {}", "MOV R24, UR16")),
}


def _overwrite(a: Maker, b: Maker) -> Probe | None:
    """Two writers of one register; the second one's value must stay."""
    file = _file(a.register)
    if file != _file(b.register) or _width(a.text) != 1 or _width(b.text) != 1:
        return None
    values, after = _SHOW[file]
    before = ("R2UR UR14, R58",) if file == "UP" else ()
    first, own = a.text, a.before
    if file in ("R", "UR"):
        first = _rename(_rename(first, "R4", "R5"), "UR12", "UR13")
        own = tuple(_odd(t) for t in own)
    else:
        # the other value: what made P1 from R4 makes it from its complement in R6
        first, own = _rename(first, "R4", "R6"), tuple(_rename(t, "R4", "R6") for t in own)
        if set(_writes(own)) & set(_writes(b.before)):
            return None
    return Probe(
        "",
        "waw",
        b.register,
        first,
        b.text,
        values,
        False,
        own + b.before + before,
        tuple(t.format(b.register) for t in after),
    )


def _writes(texts: tuple[str, ...]) -> list[str]:
    return [t.split()[1].rstrip(",") for t in texts if not t.startswith(("STS", "STG"))]

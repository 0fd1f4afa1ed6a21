"""What each opcode does beside its registers, as the second model holds it."""

from __future__ import annotations

import re


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: known to compute from this lane's own registers alone
PER_LANE = _names(
    "FADD FADD32I FFMA FFMA32I FMUL FMUL32I FMNMX FSEL FSET FSETP FCHK MOV MOV32I PRMT SEL SGXT SHF SHL SHR "
    "IABS "
    "LOP3 LOP32I POPC FLO BREV MUFU I2FP I2F F2I F2F FRND F2FP I2IP F2IP HADD2 HADD2_32I HFMA2 HFMA2_32I "
    "HMUL2 "
    "HMUL2_32I HMNMX2 HSET2 HSETP2 IDP IDP4A VABSDIFF VABSDIFF4 VIADD VIMNMX VIADDMNMX VHMNMX IMNMX BMSK "
    "IADD3 "
    "IMAD LEA ISETP PLOP3 PSETP P2R R2P DADD DMUL DFMA DSETP DMNMX LDC"
)
#: read other lanes, or write what a warp shares: bound to the mask of active lanes, hence to their place
ACROSS = _names(
    "VOTE VOTEU MATCH REDUX SHFL FSWZADD HMMA IMMA BMMA DMMA MOVM R2UR UMOV USEL USGXT USHF UPRMT UBREV "
    "UBMSK UFLO "
    "UPOPC UIADD3 UIMAD ULEA ULOP3 UPLOP3 UPSETP UISETP UP2UR ULDC S2UR"
)
GLOBAL, SHARED, LOCAL = 1, 2, 4
ANY = GLOBAL | SHARED | LOCAL
#: opcode -> (spaces read, spaces written)
MEMORY = {
    "LDG": (GLOBAL, 0), "STG": (0, GLOBAL), "LD": (ANY, 0), "ST": (0, ANY), "LDL": (LOCAL, 0),
    "STL": (0, LOCAL), "LDS": (SHARED, 0), "STS": (0, SHARED), "LDSM": (SHARED, 0), "STSM": (0, SHARED),
    "ATOMS": (SHARED, SHARED), "ATOMG": (GLOBAL, GLOBAL), "ATOM": (ANY, ANY), "RED": (ANY, ANY),
    "REDG": (GLOBAL, GLOBAL), "LDGSTS": (GLOBAL, SHARED),
}  # fmt: skip
#: their extent is told by their own address
PLAIN = _names("LDG STG LDL STL LDS STS LDGSTS")
PRODUCTS = _names("HGMMA IGMMA QGMMA BGMMA")
#: steer the warp; what is pending there is judged where it is needed
STEERING = _names(
    "BRA BRX BRXU JMP JMX JMXU RET CALL BREAK BSYNC BSSY RTT BPT BMOV YIELD NANOSLEEP ENDCOLLECTIVE EXIT KILL"
)
#: results, or late operand reads, that a scoreboard tells of
VARIABLE = _names(
    "LDS LDSM SHFL REDUX MUFU I2F F2I F2F FRND FCHK POPC FLO BREV I2I S2R S2UR LDC DMMA MOVM LDG LD STG ST "
    "LDL STL "
    "LDGSTS STS STSM ATOM ATOMG ATOMS RED REDG MATCH B2R SYNCS UBLKCP R2B LDCU"
)
COPIES = _names("SYNCS UBLKCP UBLKPF UBLKRED UTMALDG UTMASTG UTMAREDG UTMAPF UTMACCTL ARRIVES")
_XU = _names("MUFU I2F F2I F2F FRND FCHK POPC FLO BREV")
# Both from what compilers rely on and `results/scoreboards.json`, where every pair here that was asked on an
# H100 is in order in all its forms.
#: whose result, being there, tells that an earlier operation's is: earlier -> later
IN_ORDER_RESULTS = dict.fromkeys(_XU, _XU) | {
    "LDS": _names("LDS LDSM SHFL ATOMS"), "LDSM": _names("LDS LDSM SHFL ATOMS"),
    "SHFL": _names("LDS LDSM SHFL ATOMS"), "ATOMS": _names("LDS LDSM SHFL ATOMS"), "S2UR": _names("S2UR"),
    "MOVM": _names("MOVM"),
}  # fmt: skip
#: whose scoreboard tells that an earlier operation has read its operands: earlier -> later
IN_ORDER_READS = dict.fromkeys(_XU, _XU) | {
    "LDG": _names("LDG LDGSTS LDL"), "LDGSTS": _names("LDG LDGSTS LDL"), "LDL": _names("LDL"),
    "MOVM": _names("MOVM"), "STL": _names("LDS LDSM SHFL STG STL STS STSM"),
    "LDS": _names("LDS SHFL STG STL STS STSM"), "LDSM": _names("LDSM STG STS"),
    "SHFL": _names("LDS SHFL STG STL STS STSM"), "STG": _names("LDS LDSM SHFL STG STL STS STSM ATOMS"),
    "STS": _names("LDL LDS LDSM SHFL STG STL STS STSM ATOMS"),
    "STSM": _names("LDS LDSM SHFL STG STL STS STSM ATOMS"), "ATOMS": _names("STG STS ATOMS"),
}  # fmt: skip
#: may raise a scoreboard any number of times, whoever else does (of the others: `raises`)
UNCOUNTED = _names("LDGDEPBAR UTMACMDFLUSH")
_STANDING = re.compile(
    r"SR(Z|_TID\.[XYZ]|_CTAID\.[XYZ]|_NTID\.[XYZ]|_NCTAID\.[XYZ]|_LANEID|_CgaCtaId|_(EQ|LT|LE|GT|GE)MASK"
    r"|_CTAID_IN_CGA\w*|_VIRTCFG|_SWINHI|_SWINLO|_CgaSize)$"
)
PURE, CROSS, MEMORY_KIND, FENCE, CONTROL = range(5)


def kind(base: str, operands: tuple[str, ...], never: bool) -> int:
    """One of the five kinds of `machine`: anything that is not known is a fence."""
    if never:
        return FENCE
    if base in STEERING:
        return CONTROL
    if base in MEMORY or base in PRODUCTS:
        return MEMORY_KIND
    if base in ("S2R", "S2UR", "CS2R"):
        if not all(_STANDING.match(text) for text in operands[1:]):
            return FENCE
        return CROSS if base == "S2UR" else PURE
    if base in PER_LANE:
        return PURE
    return CROSS if base in ACROSS else FENCE


def reads_are_past(base: str, kind: int, fence: str) -> bool:
    """Whether a fence has nothing to do with an operation that may not have read its registers yet.

    Who overwrites those is judged for itself. A fence orders memory, so the operands of a store may matter to
    it, and those of whatever is a fence itself; but not those of an operation that changes no memory, unless
    the fence gives registers away. LDGDEPBAR closes a group of LDGSTS and orders nothing else.
    """
    if fence == "USETMAXREG" or kind >= FENCE:
        return False
    stores = MEMORY.get(base, (0, ANY if base in PRODUCTS or base in COPIES else 0))[1]
    return not stores or (fence == "LDGDEPBAR" and base != "LDGSTS")


def result_is_past(base: str, kind: int, fence: str) -> bool:
    """Whether a fence has nothing to do with a result that may not be there yet.

    It orders memory: the result of an operation that computes from registers or constants alone is judged
    where it is read. Not where the fence gives registers away.
    """
    return kind == PURE and base not in MEMORY and fence != "USETMAXREG"

"""What the validator holds of each opcode apart from its registers: variable latency, in-order queues,
memory, fences.

Read off ptxas output independently of `sass.opcodes`; ``docs/concepts/validator.md`` says from what.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from .operands import Operand, Role

#: bits of `Kind.space`
GLOBAL, SHARED, LOCAL = 1, 2, 4
_GENERIC = GLOBAL | SHARED | LOCAL


def _names(*text: str) -> frozenset[str]:
    return frozenset(" ".join(text).split())


#: results: which later operations' results say that an earlier one's is there, too (results return in
#: order); by `queue_name`. Only pairs that ptxas leans on, and nothing that two of them suggest of a third:
#: it never leaves a conversion of 64 bits to one of 32, nor DMMA to anything (on an H100 other results are
#: there before DMMA's), and all of 2,400 S2R and LDC have a scoreboard of their own. What reads shared
#: memory, or shuffles, shares one in-order queue
RESULTS_COVERED_BY: dict[str, frozenset[str]] = {
    "MUFU": _names("MUFU MUFU.64 I2F F2I F2F FRND FLO POPC BREV"),
    "MUFU.64": _names("MUFU MUFU.64 F2I F2F FRND FLO POPC BREV"),
    "I2F": _names("MUFU MUFU.64 I2F F2I F2F FLO BREV"),
    "F2I": _names("MUFU MUFU.64 I2F F2I F2F FRND FLO POPC"),
    "F2F": _names("MUFU MUFU.64 I2F F2I F2F FRND FLO POPC BREV"),
    "FRND": _names("MUFU F2I F2F FRND FLO BREV"),
    "FLO": _names("MUFU F2F FLO POPC BREV"),
    "POPC": _names("MUFU F2I F2F FLO POPC"),
    "BREV": _names("MUFU F2F FLO"),
    "F2F.64": _names("F2F.64 F2I.64 I2F.64 FRND.64"),
    "F2I.64": _names("F2F.64 F2I.64 I2F.64"),
    "I2F.64": _names("F2F.64 F2I.64 I2F.64 FRND.64"),
    "FRND.64": _names("F2F.64 I2F.64 FRND.64"),
    "DADD": _names("DADD DMUL DFMA DSETP"),
    "DMUL": _names("DADD DMUL DFMA DSETP"),
    "DFMA": _names("DADD DMUL DFMA DSETP"),
    "DSETP": _names("DADD DMUL DFMA"),
    "LDS": _names("LDS LDSM SHFL MOVM ATOMS"),
    "LDSM": _names("LDS LDSM SHFL MOVM ATOMS"),
    "SHFL": _names("LDS LDSM SHFL MOVM ATOMS"),
    "MOVM": _names("LDSM SHFL MOVM ATOMS"),
    "S2UR": _names("S2UR"),
    "ATOMS": _names("ATOMS LDS LDSM SHFL"),
}
#: operands: which later operations' scoreboards, of either kind, say that an earlier one has read its own.
#: Two queues: loads from global memory, LDGSTS among them; and stores, shared memory and shuffles. Nothing of
#: the second says it of the first: on an H200, LDSM's result was there before a load issued ahead of it had
#: read its address. Of 6,000 kernels for two architectures several
#: rely on each pair
READS_COVERED_BY: dict[str, frozenset[str]] = {
    "MUFU": _names("MUFU I2F F2I FLO"), "MUFU.64": _names("MUFU BREV"), "I2F": _names("MUFU I2F F2I"),
    "F2I": _names("MUFU F2I"), "F2F": _names("F2F"), "FLO": _names("BREV"), "POPC": _names("MUFU MUFU.64"),
    "BREV": _names("MUFU.64 FLO"), "F2F.64": _names("F2F.64"), "I2F.64": _names("F2I.64 I2F.64"),
    "DADD": _names("DADD DMUL DFMA DSETP"), "DMUL": _names("DADD DMUL DFMA"),
    "DFMA": _names("DADD DMUL DFMA DSETP"),
    "DMMA": _names("DMMA"), "ATOMS": _names("ATOMS LDS LDSM SHFL STG STS STSM"),
    "LDG": _names("LDG LDGSTS"), "LDGSTS": _names("LDG LDGSTS"), "LDL": _names("LDL"),
    "STL": _names("LDS LDSM SHFL STG STL STS STSM"), "LDS": _names("LDS SHFL STG STL STS STSM"),
    "LDSM": _names("LDSM STG STL STS"), "SHFL": _names("LDS SHFL STG STL STS STSM"),
    "STG": _names("LDS LDSM SHFL STG STL STS STSM ATOMS"),
    "STS": _names("LDL LDS LDSM SHFL STG STL STS STSM ATOMS"),
    "STSM": _names("LDS LDSM SHFL MOVM STG STL STS STSM ATOMS"), "MOVM": _names("MOVM"),
}  # fmt: skip
_CONVERSIONS, _WIDE = _names("F2F F2I I2F FRND"), _names("F64 S64 U64")
#: operations that cover earlier ones, by number
COVERING = {
    name: n
    for n, name in enumerate(
        sorted(frozenset().union(*RESULTS_COVERED_BY.values(), *READS_COVERED_BY.values()))
    )
}
#: a write after a read needs no wait where the writer queues behind the reader: only these pairs does ptxas
#: ever leave without one (it waits in all 3,647 pairs of STL and LDL, all 740 of LDG and LDS, thousands of
#: STG and LDL, LDG, LDC or S2R, ...). SHFL behind LDSM and I2F behind
#: F2I are rare, and follow from `RESULTS_COVERED_BY`: their results come behind the reader's own result
QUEUED_WRITERS: dict[str, frozenset[str]] = {
    "LDG": _names("LDG LDL"), "LD": _names("LD"), "LDS": _names("LDS LDSM SHFL"),
    "LDSM": _names("LDS LDSM SHFL"), "LDGSTS": _names("LDG LDL"), "STG": _names("LDS LDSM SHFL MOVM"),
    "STL": _names("LDS LDSM SHFL"), "STS": _names("LDS LDSM SHFL MOVM"), "STSM": _names("LDS LDSM SHFL MOVM"),
    "SHFL": _names("SHFL LDS"), "MOVM": _names("MOVM"), "ATOMS": _names("ATOMS LDS LDSM SHFL"),
    "MUFU": _names("MUFU I2F F2I F2F"), "MUFU.64": _names("MUFU.64 F2I"), "F2F": _names("F2F"),
    "I2F": _names("I2F F2I POPC"),
    "F2I": _names("F2I I2F MUFU"), "FLO": _names("MUFU"), "FRND": _names("FLO"), "POPC": _names("FLO POPC"),
    "BREV": _names("BREV"), "F2F.64": _names("F2F.64 I2F.64 FRND.64"),
    "F2I.64": _names("F2I.64 I2F.64 FRND.64"), "I2F.64": _names("F2F.64 F2I.64 I2F.64"),
    "FRND.64": _names("F2F.64 F2I.64"),
    "DADD": _names("DADD DMUL DFMA"), "DMUL": _names("DADD DMUL DFMA"), "DFMA": _names("DADD DMUL DFMA"),
    "DSETP": _names("DADD DMUL DFMA"),
    "SYNCS": _names("SYNCS"),
}  # fmt: skip
#: a write after a write needs no wait where results return in order and ptxas relies on it: it overwrites the
#: part of a wide load that is not used. (SHFL's results, and all others, it waits for in every pair.)
#: And a guarded DFMA overwrites a sum: before Hopper FP64 has one queue
QUEUED_RESULTS: dict[str, frozenset[str]] = {
    "LDS": _names("LDS SHFL"),
    "LDSM": _names("LDS LDSM SHFL"),
    "DFMA": _names("DFMA"),
}
_VARIABLE = _names(
    "LDS LDSM SHFL REDUX MUFU I2F F2I F2F FRND FCHK POPC FLO BREV S2R S2UR LDC DADD DMUL DFMA DSETP "
    "DMNMX DMMA MOVM LDG LD STG ST LDL STL LDGSTS STS STSM ATOM ATOMG RED REDG"
) | {"ATOMS", "MATCH", "LDCU", "B2R", "BMOV", "SYNCS", "UBLKCP", "R2B"}
#: variable before Hopper only: sm_90 code never sets a scoreboard on these
_FIXED_ON_HOPPER = _names("DADD DMUL DFMA DSETP DMNMX R2UR")

FP64 = _names("DADD DMUL DFMA DSETP DMNMX DMMA")
#: of the uniform unit: those whose results come last, and those that write sooner, as measured on an H200
UNIFORM_RESULTS = _names("UIADD3 UIMAD ULEA ULOP3 USHF USEL USGXT UPOPC UFLO UISETP")
UNIFORM_SOONER = _names("ULDC UMOV VOTEU")

#: may be anywhere among its neighbours as far as its opcode goes
_FREE = _names(
    "FADD FADD32I FFMA FFMA32I FMUL FMUL32I FMNMX FSEL FSET FSETP FSWZADD FCHK MOV MOV32I PRMT SEL SGXT "
    "SHF SHL SHR IABS LOP3 LOP32I POPC FLO BREV MUFU I2FP I2F F2I F2F FRND F2FP I2IP F2IP HADD2 HADD2_32I "
    "HFMA2 HFMA2_32I HMUL2 HMUL2_32I HMNMX2 HSET2 HSETP2 IDP IDP4A VABSDIFF VABSDIFF4 VIADD VIMNMX "
    "VIADDMNMX VHMNMX IMNMX BMSK IADD3 IMAD LEA ISETP PLOP3 PSETP P2R R2P DADD DMUL DFMA DSETP DMNMX "
    "HMMA IMMA BMMA DMMA MOVM SHFL VOTE MATCH REDUX UMOV USEL USGXT USHF UPRMT UBREV UBMSK UFLO UPOPC "
    "UIADD3 UIMAD ULEA ULOP3 UPLOP3 UPSETP UISETP VOTEU UP2UR R2UR S2R S2UR CS2R LDC ULDC LDG LD LDL LDS "
    "LDSM STG ST STL STS STSM ATOM ATOMG ATOMS RED REDG LDGSTS HGMMA IGMMA QGMMA BGMMA"
)
#: known to make each lane's result of that lane's own registers, whichever lanes run beside it. Left out on
#: purpose: votes, shuffles, matches, reductions, matrix products, LDSM and STSM, FSWZADD, R2UR, and any
#: opcode that has not been looked at (PTX ISA: warp-level and parallel synchronization instructions)
_LANE_ARITHMETIC = _names(
    "FADD FADD32I FFMA FFMA32I FMUL FMUL32I FMNMX FSEL FSET FSETP MOV MOV32I PRMT SEL SGXT SHF SHL SHR IABS "
    "LOP3 LOP32I I2FP F2FP I2IP F2IP HADD2 HADD2_32I HFMA2 HFMA2_32I HMUL2 HMUL2_32I HMNMX2 HSET2 HSETP2 IDP "
    "IDP4A VABSDIFF VABSDIFF4 VIADD VIMNMX VIADDMNMX VHMNMX IMNMX BMSK IADD3 IMAD LEA ISETP PLOP3 PSETP P2R "
    "R2P DADD DMUL DFMA DSETP DMNMX MUFU I2F F2I F2F FRND FCHK POPC FLO BREV I2I CS2R S2R LDC"
)
#: likewise own lane's addresses and data; who else runs cannot be told but by other lanes' accesses
_LANE_ACCESSES = _names("LDG STG LD ST LDL STL LDS STS LDGSTS ATOM ATOMG ATOMS RED REDG")
#: PTX demands every lane of the warp at once (``.aligned``): no lane can stand elsewhere
_WHOLE_WARP = _names("HMMA IMMA BMMA DMMA LDSM STSM MOVM")
#: reads no register of a lane that does not run it at the same time
KEEPS_TO_ITS_LANES = _LANE_ARITHMETIC | _LANE_ACCESSES | _WHOLE_WARP | _names("BRA EXIT NOP BAR")
#: special registers that stand still while a warp runs
_CONSTANT_SPECIAL = re.compile(
    r"SR(Z|_TID\.[XYZ]|_CTAID\.[XYZ]|_NTID\.[XYZ]|_NCTAID\.[XYZ]|_LANEID|_CgaCtaId|_(EQ|LT|LE|GT|GE)MASK|_CTAID_IN_CGA\w*"
    r"|_VIRTCFG|_SWINHI|_SWINLO|_CgaSize)$"
)

#: memory that an opcode reads or writes; LDGSTS is special
_SPACES = {
    "LDG": GLOBAL, "STG": GLOBAL, "ATOMG": GLOBAL, "RED": _GENERIC, "REDG": GLOBAL, "LD": _GENERIC,
    "ST": _GENERIC, "ATOM": _GENERIC, "LDL": LOCAL, "STL": LOCAL, "LDS": SHARED, "LDSM": SHARED,
    "STS": SHARED, "STSM": SHARED, "ATOMS": SHARED, "LDGSTS": SHARED, "HGMMA": SHARED, "IGMMA": SHARED,
    "QGMMA": SHARED, "BGMMA": SHARED,
}  # fmt: skip
_STORES = _names("STG ST STL STS STSM LDGSTS")
_BOTH = _names("ATOM ATOMG ATOMS RED REDG")
#: each lane's address and width say what it touches (LDSM and STSM take addresses from other lanes)
_PER_LANE = _names("LDG STG LDL STL LDS STS LDGSTS")
_BYTES = {"128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1}
ENDS_BLOCK = _names("BRA BRX BRXU JMP JMX JMXU RET CALL EXIT KILL BREAK BSYNC RTT BPT WARPSYNC ENDCOLLECTIVE")
#: fences that only steer control flow: what is pending there is judged where it is needed
BRANCHING = _names(
    "BRA BRX BRXU JMP JMX JMXU RET CALL BREAK BSYNC BSSY RTT BPT BMOV YIELD NANOSLEEP ENDCOLLECTIVE"
)
#: done by the copy engine
COPIES = _names("SYNCS UBLKCP UBLKPF UBLKRED UTMALDG UTMASTG UTMAREDG UTMAPF UTMACCTL ARRIVES")
#: close a group that DEPBAR.LE counts
GROUPS = frozenset(["LDGDEPBAR", "UTMACMDFLUSH"])
#: may raise a scoreboard any number of times: no candidate can add one, as they are fences
UNCOUNTED = GROUPS
_SCOREBOARD = re.compile(r"SB([0-5])")
#: alone, any number of these may raise a scoreboard with their results, or with their reads: on an H100 all
#: was there after 160 of a kind, as the issue is held up before 63 are under way (`families`)
ONE_KIND_RESULTS = tuple("LDG LDS LDL LDSM SHFL MUFU POPC LDC S2R MATCH ATOMS ATOMG".split())  # noqa: SIM905
ONE_KIND_READS = tuple("STS STL LDG LDS SHFL MUFU".split())  # noqa: SIM905
WARPGROUP_PRODUCTS = frozenset(["HGMMA", "IGMMA", "QGMMA", "BGMMA"])


#: carry no wait mask in anything that ptxas emits; with one, nvdisasm calls WARPGROUP.DEPBAR illegal
NEVER_WAIT = _names(
    "WARPGROUP.DEPBAR.LE WARPGROUP.DEPBAR DEPBAR LDGDEPBAR HGMMA IGMMA QGMMA BGMMA NOP BSSY MEMBAR"
)


@dataclass(frozen=True, slots=True)
class Kind:
    """Facts about one instruction.

    Attributes:
        queue: its name where queues are concerned: see `queue_name`.
        fence: nothing may pass it, and it keeps its address.
        variable: its results and its reads of general registers take a variable time.
        covers: its number among operations that cover earlier ones, -1 for none.
        results_by, reads_by: bit masks of those (`COVERING`) that say that its results are there, its
            operands read.
        loads, stores: memory spaces it reads and writes, bit masks; 0 for none.
        own_lane: known to compute each lane's results from that lane's registers alone, whichever other lanes
            run it; False for whatever is not known to.
        ordered: no memory operation may pass it (atomics, ``.STRONG``).
        address: (registers with suffixes, offset, bytes) for accesses whose extent each lane's own
            address tells, else None. For LDGSTS, of what it writes.
    """

    queue: str
    fence: bool
    variable: bool
    covers: int
    results_by: int
    reads_by: int
    loads: int
    stores: int
    own_lane: bool
    ordered: bool
    address: tuple[tuple[tuple[int, str, tuple[str, ...]], ...], int, int] | None

    @property
    def memory(self) -> bool:
        """It accesses memory other than constants."""
        return bool(self.loads | self.stores)


def classify(name: str, mods: tuple[str, ...], guard: str, ops: tuple[Operand, ...], hopper: bool) -> Kind:
    """Facts about an instruction from its opcode and operands.

    Args:
        name, mods: the opcode, taken apart.
        guard: its guard.
        ops: its operands.
        hopper: True for sm_90.
    """
    variable = name in _VARIABLE or name == "R2UR"
    if hopper and name in _FIXED_ON_HOPPER:
        variable = False
    fence = name not in _FREE
    if name in ("S2R", "S2UR", "CS2R") and not all(_CONSTANT_SPECIAL.match(o.text) for o in ops[1:]):
        fence = True  # clocks and the like
    if name == "LDS" and guard == "!PT":
        fence = True  # a workaround for the hardware that ptxas emits in threes
    space = _SPACES.get(name, 0)
    queue = queue_name(name, mods)
    return Kind(
        queue=queue,
        fence=fence,
        variable=variable,
        covers=COVERING.get(queue, -1) if variable else -1,
        results_by=_mask(RESULTS_COVERED_BY, queue) if variable else 0,
        reads_by=_mask(READS_COVERED_BY, queue) if variable else 0,
        loads=GLOBAL if name == "LDGSTS" else 0 if name in _STORES else space,
        stores=space if name in _STORES or name in _BOTH else 0,
        own_lane=name in _LANE_ARITHMETIC,
        ordered=bool(space) and ("STRONG" in mods or "MMIO" in mods or name.startswith(("ATOM", "RED"))),
        address=_address(name, mods, ops) if name in _PER_LANE else None,
    )


def queue_name(name: str, mods: tuple[str, ...]) -> str:
    """An opcode's name in the tables of queues: with ``.64`` where a conversion is from or to 64 bits, or
    where MUFU takes the high word of an FP64 value.

    >>> queue_name("F2F", ("F64", "F32")), queue_name("F2I", ("NTZ",)), queue_name("MUFU", ("RCP64H",))
    ('F2F.64', 'F2I', 'MUFU.64')
    """
    wide = name in _CONVERSIONS and not _WIDE.isdisjoint(mods)
    wide = wide or (name == "MUFU" and any(mod.endswith("64H") for mod in mods))
    return f"{name}.64" if wide else name


def families(name: str, hopper: bool) -> tuple[int, int]:
    """Kinds of raises of which any number may be made without a wait, as long as no other kind raises the
    same scoreboard: of an opcode's results, and of its reads. 0 for one that was not measured.

    Two kinds go to two queues, which hold up the issue each for itself: together they may be more than 63.
    """
    result = ONE_KIND_RESULTS.index(name) + 1 if hopper and name in ONE_KIND_RESULTS else 0
    reads = len(ONE_KIND_RESULTS) + ONE_KIND_READS.index(name) + 1 if hopper and name in ONE_KIND_READS else 0
    return result, reads


def drained(opcode: str, operands: Sequence[str]) -> int:
    """Bit mask of the scoreboards that a ``DEPBAR.LE SB0, 0x0`` waits for; 0 for anything else.

    >>> drained("DEPBAR.LE", ("SB3", "0x0")), drained("DEPBAR.LE", ("SB3", "0x1"))
    (8, 0)
    """
    if opcode != "DEPBAR.LE" or len(operands) != 2 or operands[1] != "0x0":
        return 0
    named = _SCOREBOARD.fullmatch(operands[0])
    return 1 << int(named[1]) if named else 0


def _mask(covered_by: dict[str, frozenset[str]], name: str) -> int:
    return sum(1 << COVERING[other] for other in covered_by.get(name, ()))


def _address(
    name: str, mods: tuple[str, ...], ops: tuple[Operand, ...]
) -> tuple[tuple[tuple[int, str, tuple[str, ...]], ...], int, int] | None:
    places = [o for o in ops if o.role is Role.ADDRESS]
    if len(places) != (2 if name == "LDGSTS" else 1):
        return None
    text = places[0].text
    offset = 0
    if found := re.search(r"(?:\+|\[)(-?)0x([0-9a-f]+)\]$", text):
        offset = int(found[2], 16) * (-1 if found[1] else 1)
    size = next((_BYTES[m] for m in mods if m in _BYTES), 4)
    base = tuple((n.register, n.part, n.suffixes) for n in places[0].named)
    return base, offset, size

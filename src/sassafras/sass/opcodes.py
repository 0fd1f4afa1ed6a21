"""What each opcode is: its execution queue, whether its latency is fixed, what memory it touches, and
whether it is a fence. What these words mean: ``docs/concepts/hopper-schedules.md``.

Names follow NVIDIA's instruction set lists (CUDA Binary Utilities: Ampere, Ada, Hopper, Blackwell). An
opcode that is not listed is refused, never guessed. Fixed or variable was read off ptxas output: an
opcode is variable when ptxas covers its results with a scoreboard.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Queue(StrEnum):
    """Where an instruction goes after issue. Within some queues results return in order."""

    ALU = "alu"  # integer, logic, compares, conversions at full rate
    FMA = "fma"  # FP32 and IMAD
    HALF = "half"  # packed FP16
    FP64 = "fp64"
    TENSOR = "tensor"  # HMMA, IMMA: synchronous matrix units
    WGMMA = "wgmma"  # HGMMA and kin: asynchronous
    XU = "xu"  # transcendental, some conversions, bit counting
    LSU = "lsu"  # global, local and generic memory
    MIO = "mio"  # shared memory, shuffles, votes that go through memory input/output
    CONST = "const"  # LDC
    SPECIAL = "special"  # S2R, S2UR, B2R
    UNIFORM = "uniform"  # the uniform datapath
    TEX = "tex"
    TMA = "tma"  # bulk copies and mbarrier operations
    CONTROL = "control"


class Memory(StrEnum):
    """What memory an instruction touches, as far as ordering goes."""

    NONE = "none"
    CONSTANT = "constant"  # read-only for the life of a kernel
    GLOBAL = "global"  # global, generic or local through the L1: treated as one space
    SHARED = "shared"
    ANY = "any"


class Fence(StrEnum):
    """Whether other instructions may pass."""

    NONE = "none"
    FULL = "full"  # nothing may pass, and it does not move


@dataclass(frozen=True, slots=True)
class Op:
    """Facts about one opcode (the part of the mnemonic before the first dot).

    Attributes:
        queue: where it executes.
        variable: its latency is variable (its results are guarded by a scoreboard).
        memory: what memory it touches.
        reads_memory, writes_memory: in what way.
        fence: what may not pass it.
    """

    queue: Queue
    variable: bool = False
    memory: Memory = Memory.NONE
    reads_memory: bool = False
    writes_memory: bool = False
    fence: Fence = Fence.NONE


#: (opcodes, what is known of each)
_GROUPS = (
    (
        "FADD FADD32I FFMA FFMA32I FMUL FMUL32I IMAD IDP IDP4A FADD2 FFMA2 FMUL2 FHADD FHFMA FSWZADD",
        Op(Queue.FMA),
    ),
    (
        "FMNMX FMNMX3 FSEL FSET FSETP BMSK IABS IADD IADD2 IADD3 IADD32I IMNMX ISCADD ISCADD32I ISETP "
        "LEA LOP LOP3 LOP32I SHF SHL SHR VABSDIFF VABSDIFF4 VHMNMX VIADD VIADDMNMX VIMNMX VIMNMX3 MOV "
        "MOV32I PRMT SEL SGXT PLOP3 PSETP P2R R2P CS2R I2FP I2I I2IP F2FP F2IP NOP LEPC VOTE "
        "IMUL IMUL32I",
        Op(Queue.ALU),
    ),
    ("HADD2 HADD2_32I HFMA2 HFMA2_32I HMNMX2 HMUL2 HMUL2_32I HSET2 HSETP2", Op(Queue.HALF)),
    ("DADD DFMA DMUL DSETP DMNMX DMMA", Op(Queue.FP64, variable=True)),
    ("HMMA IMMA BMMA QMMA OMMA", Op(Queue.TENSOR)),
    ("MUFU I2F F2I F2F FRND FCHK POPC FLO BREV", Op(Queue.XU, variable=True)),
    ("LDC", Op(Queue.CONST, True, Memory.CONSTANT, True)),
    ("LDG LD LDL", Op(Queue.LSU, True, Memory.GLOBAL, True)),
    ("LDGMC", Op(Queue.LSU, True, Memory.GLOBAL, True, True)),
    ("STG ST STL", Op(Queue.LSU, True, Memory.GLOBAL, False, True)),
    ("ATOM ATOMG RED REDG", Op(Queue.LSU, True, Memory.GLOBAL, True, True)),
    ("LDGSTS", Op(Queue.LSU, True, Memory.ANY, True, True)),
    ("CCTL CCTLL CCTLT", Op(Queue.LSU, True, Memory.GLOBAL, True, True, Fence.FULL)),
    ("LDS LDSM", Op(Queue.MIO, True, Memory.SHARED, True)),
    ("STS STSM", Op(Queue.MIO, True, Memory.SHARED, False, True)),
    ("ATOMS", Op(Queue.MIO, True, Memory.SHARED, True, True)),
    ("STAS REDAS", Op(Queue.MIO, True, Memory.SHARED, True, True, Fence.FULL)),
    ("LDTRAM", Op(Queue.MIO, True)),
    ("SHFL MATCH MOVM REDUX CREDUX QSPC", Op(Queue.MIO, True)),
    ("S2R S2UR B2R", Op(Queue.SPECIAL, True)),
    ("R2UR R2B", Op(Queue.ALU)),
    ("TEX TLD TLD4 TMML TXD TXQ", Op(Queue.TEX, True, Memory.GLOBAL, True)),
    ("SUATOM SULD SURED SUST", Op(Queue.TEX, True, Memory.GLOBAL, True, True)),
    (
        "UBMSK UBREV UCLEA UFLO UIADD3 UIMAD UISETP ULEA ULOP ULOP3 ULOP32I UMOV UP2UR UPLOP3 UPOPC "
        "UPRMT UPSETP UR2UP USEL USGXT USHF USHL USHR VOTEU UIABS UVIADD UVIMNMX UVIADDMNMX "
        "UIMNMX UFADD UFFMA UFMUL UFSEL UFSET UFSETP UFMNMX UI2FP UF2FP UI2F UF2I "
        "UF2F UFRND UGETNEXTWORKID CS2UR",
        Op(Queue.UNIFORM),
    ),
    ("ULDC", Op(Queue.UNIFORM, False, Memory.CONSTANT, True)),
    ("LDCU", Op(Queue.UNIFORM, True, Memory.CONSTANT, True)),
    ("BGMMA HGMMA IGMMA QGMMA", Op(Queue.WGMMA, False, Memory.SHARED, True, False)),
    ("WARPGROUP WARPGROUPSET", Op(Queue.CONTROL, fence=Fence.FULL)),
    (
        "UBLKCP UBLKPF UBLKRED UTMACCTL UTMACMDFLUSH UTMALDG UTMAPF UTMAREDG UTMASTG ",
        Op(Queue.TMA, True, Memory.ANY, True, True, Fence.FULL),
    ),
    ("SYNCS ARRIVES", Op(Queue.TMA, True, Memory.ANY, True, True, Fence.FULL)),
    ("BAR UCGABAR_ARV UCGABAR_WAIT CGAERRBAR", Op(Queue.CONTROL, True, Memory.ANY, True, True, Fence.FULL)),
    ("MEMBAR FENCE ERRBAR", Op(Queue.CONTROL, True, Memory.ANY, True, True, Fence.FULL)),
    ("DEPBAR LDGDEPBAR", Op(Queue.CONTROL, False, Memory.ANY, True, True, Fence.FULL)),
    (
        "ACQBULK BMOV BPT BRA BREAK BRX BRXU BSSY BSYNC CALL ELECT ENDCOLLECTIVE EXIT JMP JMX JMXU "
        "KILL NANOSLEEP PREEXIT RET RPCMOV RTT WARPSYNC YIELD PMTRIG SETCTAID SETLMEMBASE GETLMEMBASE "
        "USETMAXREG USETSHMSZ ",
        Op(Queue.CONTROL, True, Memory.ANY, True, True, Fence.FULL),
    ),
    # Blackwell, parsed only: tensor memory and fifth-generation tensor cores
    (
        "UTCHMMA UTCIMMA UTCQMMA UTCOMMA UTCMXQMMA UTCBAR UTCATOMSWS UTCCP UTCSHIFT LDT LDTM STT STTM "
        "UMEMSETS UREDGR UTCLDSWS USTGR UVIRTCOUNT SPMETADATA "
        "UTCSTSWS ",
        Op(Queue.TMA, True, Memory.ANY, True, True, Fence.FULL),
    ),
)
OPCODES: dict[str, Op] = {name: op for names, op in _GROUPS for name in names.split()}
assert len(OPCODES) == sum(len(names.split()) for names, _ in _GROUPS), "an opcode is listed twice"

#: makes each lane's result from that lane's own registers, at a fixed latency: the same whichever lanes run.
#: Not here: votes, shuffles, matrix products and all else that looks at other lanes, or is not known
_LANE_LOCAL = """
    FADD FADD32I FFMA FFMA32I FMUL FMUL32I IMAD IDP IDP4A HADD2 HADD2_32I HFMA2 HFMA2_32I HMNMX2 HMUL2
    HMUL2_32I HSET2 HSETP2 FMNMX FSEL FSET FSETP BMSK IABS IADD3 IMNMX ISETP LEA LOP3 LOP32I SHF SHL SHR
    VABSDIFF VABSDIFF4 VHMNMX VIADD VIADDMNMX VIMNMX MOV MOV32I PRMT SEL SGXT PLOP3 PSETP P2R R2P CS2R I2FP
    I2IP F2FP F2IP
"""
#: also keep to their own lanes, at a variable latency or by an address; or PTX runs them with the whole warp
_OWN_LANE = """
    DADD DFMA DMUL DSETP DMNMX MUFU I2F F2I F2F FRND I2I FCHK POPC FLO BREV LDC S2R LDG STG LD ST LDL STL
    LDS STS LDGSTS ATOM ATOMG ATOMS RED REDG HMMA IMMA BMMA DMMA LDSM STSM MOVM BRA EXIT NOP BAR
"""
LANE_LOCAL = frozenset(_LANE_LOCAL.split())
KEEPS_TO_ITS_LANES = LANE_LOCAL | frozenset(_OWN_LANE.split())

#: branches and kin: end a basic block
BRANCHES = frozenset("BRA BRX BRXU JMP JMX JMXU RET CALL EXIT KILL BREAK BSYNC RTT BPT".split())  # noqa: SIM905
#: positions are PC-relative or steer convergence: never move
IMMOVABLE = BRANCHES | frozenset(["BSSY", "LEPC", "WARPSYNC", "YIELD", "RPCMOV", "BMOV", "NANOSLEEP"])


def base(opcode: str) -> str:
    """``LDG`` of ``LDG.E.128``."""
    return opcode.partition(".")[0]

"""What the timing model needs to know of each instruction: one row of small integers.

Rows are made once from the baseline's instructions; a candidate is the same rows in another order, with
stall counts, yield hints, scoreboards and wait masks from its own control codes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from sassafras.core.errors import UnsupportedArch
from sassafras.sass import Instruction, Queue

from .constants import Constants

# columns of a row
(
    KIND,
    PIPE,
    BUSY,
    LATENCY,
    READ,
    BYTES,
    WAVES,
    ARG,
    STALL,
    KEEP,
    WRITE_BARRIER,
    READ_BARRIER,
    WAIT,
    BANK0,
    BANK1,
    MARK,
) = range(16)
COLUMNS = 16

# kinds
PLAIN, VARIABLE, LOAD, STORE, SHARED, LDGSTS, GROUP_COMMIT, GROUP_WAIT = range(8)
HGMMA, HGMMA_WAIT, BAR_SYNC, BAR_ARRIVE, EXIT, BRANCH, TMA, PHASE_WAIT = range(8, 16)

# pipes of a sub-core; MEM is the queue in front of LSU, shared memory and shuffles, NONE is never busy
ALU, FMA, HALF, FP64, TENSOR, XU, CONST, SPECIAL, UNIFORM, MEM, NONE = range(11)
PIPES = 11

#: ARG of an HGMMA: bit set when it closes a group (gsb0)
GROUP_BIT = 1 << 20

_BRANCHES = frozenset(["BRA", "BRX", "BRXU", "JMP", "CALL", "RET", "BSYNC"])
_SHAPE = re.compile(r"\.64x(\d+)x\d+")
_WIDTH = re.compile(r"\.(U8|S8|U16|S16|64|128)(?:\.|$)")
_WIDTH_BYTES = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}
_REGISTER = re.compile(r"-?\|?~?R(\d+)")
_MATRIX = re.compile(r"\.(16816|1688|16832|16864|884|8816)")


def access_bytes(instruction: Instruction) -> int:
    """Bytes a thread moves, by the width modifier (32 bit where there is none)."""
    if instruction.base == "LDSM" or instruction.base == "STSM":
        tail = instruction.opcode.rsplit(".", 1)[-1]
        return 4 * int(tail) if tail in ("2", "4") else 4
    found = _WIDTH.search(instruction.opcode)
    return _WIDTH_BYTES[found[1]] if found else 4


def source_registers(instruction: Instruction) -> tuple[int, int, int]:
    """General register numbers in source slots A, B, C; -1 where a slot holds something else.

    The k-th source operand in the text (predicates apart) is slot k: seen by comparing ``.reuse`` in the
    text with the reuse bits of 500 instructions.
    """
    sources = [o for o in instruction.operands[1:] if not re.fullmatch(r"!?U?P(T|\d)", o)]
    slots = [-1, -1, -1]
    for k, text in enumerate(sources[:3]):
        if found := _REGISTER.match(text):
            slots[k] = int(found[1])
    return slots[0], slots[1], slots[2]


def _number(text: str, default: int) -> int:
    try:
        return int(text, 0)
    except ValueError:
        return default


def record(i: Instruction, c: Constants, global_latency: int, cta_warps: int) -> np.ndarray:
    """One instruction's row, int32 (COLUMNS,), control-code columns left zero.

    Args:
        i: the instruction.
        c: constants of the model.
        global_latency: cycles of a global load (L2 or DRAM, by the case's footprint).
        cta_warps: warps a CTA, for barriers without a thread count.

    Raises:
        UnsupportedArch: an opcode that no Hopper executes (Blackwell's tensor memory).
    """
    row = np.zeros(COLUMNS, dtype=np.int32)
    row[PIPE] = NONE
    name, queue = i.base, i.op.queue
    if i.guard in ("!PT", "!UPT") and name not in ("EXIT", "BRA"):
        # never executes: an issue slot and no more
        return row
    if queue is Queue.CONTROL:
        _control(row, i, c, cta_warps)
    elif queue is Queue.LSU:
        _global(row, i, c, global_latency)
    elif queue is Queue.MIO:
        _shared(row, i, c)
    elif queue is Queue.TMA:
        _tma(row, i, c, global_latency)
    elif queue is Queue.WGMMA:
        _hgmma(row, i, c)
    elif queue is Queue.TENSOR:
        row[PIPE], row[BUSY] = TENSOR, _hmma_busy(i, c)
    elif queue is Queue.TEX:
        row[KIND], row[PIPE], row[LATENCY] = LOAD, MEM, global_latency + 100
        row[READ], row[BYTES], row[WAVES] = c.operand_read, 128, 4
    else:
        pipe, busy, latency = _simple(i, c)
        row[PIPE], row[BUSY] = pipe, busy
        if i.op.variable or latency:
            row[KIND], row[LATENCY], row[READ] = VARIABLE, latency, min(latency, c.operand_read)
    return row


def _simple(i: Instruction, c: Constants) -> tuple[int, int, int]:
    """(pipe, busy, latency or 0 when fixed) of an instruction that stays in the sub-core."""
    queue = i.op.queue
    if queue is Queue.FMA:
        return FMA, c.imad_busy if i.base in ("IMAD", "IDP", "IDP4A") else c.fma_busy, 0
    if queue is Queue.XU:
        return XU, c.xu_busy, c.xu_latency
    if queue is Queue.FP64:
        return FP64, 8 * c.fp64_busy if i.base == "DMMA" else c.fp64_busy, c.fp64_latency
    if queue is Queue.CONST:
        return CONST, c.const_busy, c.const_latency
    if queue is Queue.SPECIAL:
        return SPECIAL, c.special_busy, c.special_latency
    if queue is Queue.UNIFORM:
        return UNIFORM, c.uniform_busy, c.uniform_latency if i.op.variable else 0
    if queue is Queue.HALF:
        return HALF, c.half_busy, 0
    return (NONE, 0, 0) if i.base == "NOP" else (ALU, c.alu_busy, 0)


def _waves(nbytes: int, c: Constants) -> int:
    return max(1, -(-nbytes // c.wavefront_bytes))


def _global(row: np.ndarray, i: Instruction, c: Constants, latency: int) -> None:
    nbytes = 32 * access_bytes(i)
    row[PIPE], row[BYTES], row[WAVES] = MEM, nbytes, _waves(nbytes, c)
    row[READ] = c.operand_read
    name = i.base
    if name == "LDGSTS":
        row[KIND], row[LATENCY] = LDGSTS, latency + c.ldgsts_extra
    elif name in ("LDL", "STL"):
        row[KIND], row[LATENCY], row[BYTES] = SHARED, c.l1_latency, 0
    elif i.op.reads_memory and not i.op.writes_memory:
        row[KIND], row[LATENCY] = LOAD, latency
    elif name in ("ATOM", "ATOMG", "LDGMC"):
        row[KIND], row[LATENCY] = LOAD, max(latency, c.atomic_latency)
    else:
        row[KIND], row[LATENCY] = STORE, latency
        row[READ] += c.store_read_per_wavefront * (row[WAVES] - 1)


def _shared(row: np.ndarray, i: Instruction, c: Constants) -> None:
    name = i.base
    row[KIND], row[PIPE], row[READ] = SHARED, MEM, c.operand_read
    if name in ("LDS", "LDSM", "STS", "STSM", "ATOMS", "STAS", "REDAS"):
        row[WAVES] = _waves(32 * access_bytes(i), c)
        row[LATENCY] = c.shared_latency + row[WAVES] - 1
        if i.op.writes_memory:
            row[READ] += c.store_read_per_wavefront * (row[WAVES] - 1)
    else:
        row[WAVES] = 1
        row[LATENCY] = c.redux_latency if name in ("REDUX", "CREDUX", "MATCH") else c.shuffle_latency


def _tma(row: np.ndarray, i: Instruction, c: Constants, latency: int) -> None:
    if i.base.startswith(("UTMALDG", "UBLKCP", "UTMASTG", "UTMAREDG", "UBLKRED")):
        # the box's size stands in the descriptor, not in the instruction: latency only, no bandwidth
        row[KIND], row[PIPE], row[WAVES] = TMA, MEM, 1
        row[LATENCY], row[READ] = latency + c.tma_extra, c.operand_read
    elif i.base == "SYNCS" and "TRYWAIT" in i.opcode:
        row[KIND], row[PIPE], row[LATENCY] = PHASE_WAIT, NONE, c.mbarrier_latency
        row[READ] = c.operand_read
    elif i.base.startswith("UTC") or i.base in ("LDT", "LDTM", "STT", "STTM"):
        raise UnsupportedArch(f"the model of sm_90 does not know {i.base}", where=str(i))
    else:
        row[KIND], row[LATENCY], row[READ] = VARIABLE, c.mbarrier_latency, c.operand_read


def _hgmma(row: np.ndarray, i: Instruction, c: Constants) -> None:
    found = _SHAPE.search(i.opcode)
    n = int(found[1]) if found else 128
    row[KIND], row[PIPE] = HGMMA, NONE
    row[BUSY] = max(8, round(n * c.hgmma_cycles_per_n))
    row[LATENCY] = c.hgmma_latency
    row[ARG] = GROUP_BIT if "gsb0" in i.text else 0


def _hmma_busy(i: Instruction, c: Constants) -> int:
    found = _MATRIX.search(i.opcode)
    shape = found[1] if found else "16816"
    scale = {"16816": 1.0, "16832": 1.0, "16864": 1.0, "1688": 0.5, "8816": 0.5, "884": 0.25}[shape]
    if "TF32" in i.opcode:
        scale *= 2
    if i.base == "IMMA" and shape == "16816":
        scale = 0.5
    return max(1, round(c.hmma_busy * scale))


def _control(row: np.ndarray, i: Instruction, c: Constants, cta_warps: int) -> None:
    name = i.base
    if name == "BAR":
        numbers = [o for o in i.operands if not re.fullmatch(r"!?U?P(T|\d)", o)]
        barrier = _number(numbers[0], 0) if numbers else 0
        count = _number(numbers[1], 0) // 32 if len(numbers) > 1 else 0
        row[KIND], row[LATENCY] = BAR_ARRIVE if ".ARV" in i.opcode else BAR_SYNC, c.bar_latency
        # 0: as many as the CTA has, where six bits do not hold them
        every = 0 if cta_warps >= 64 and not count else min(count or cta_warps, cta_warps, 63)
        row[ARG] = (barrier & 15) * 64 + every
    elif name == "DEPBAR":
        row[KIND], row[LATENCY] = GROUP_WAIT, c.depbar_latency
        row[ARG] = _number(i.operands[-1], 0) if len(i.operands) > 1 else 0
    elif name == "LDGDEPBAR":
        row[KIND], row[LATENCY] = GROUP_COMMIT, c.depbar_latency
    elif name == "WARPGROUP" and "DEPBAR" in i.opcode:
        row[KIND], row[LATENCY] = HGMMA_WAIT, c.depbar_latency
        row[ARG] = _number(i.operands[-1], 0) if i.operands else 0
    elif name in ("MEMBAR", "FENCE", "ERRBAR"):
        deep = name == "MEMBAR" and not i.opcode.endswith(".CTA")
        row[KIND], row[LATENCY] = VARIABLE, c.membar_latency if deep else c.depbar_latency
    elif name == "EXIT":
        row[KIND] = EXIT
    elif name in _BRANCHES:
        row[KIND] = BRANCH


def records(
    instructions: Sequence[Instruction], c: Constants, global_latency: int, cta_warps: int
) -> tuple[np.ndarray, np.ndarray]:
    """Rows int32 (instructions, COLUMNS) and source registers int32 (instructions, 3).

    Raises:
        UnsupportedArch: see `record`.
    """
    rows = np.array([record(i, c, global_latency, cta_warps) for i in instructions], dtype=np.int32)
    banked = [
        source_registers(i) if i.op.queue in (Queue.ALU, Queue.FMA, Queue.HALF) else (-1, -1, -1)
        for i in instructions
    ]
    return rows.reshape(-1, COLUMNS), np.array(banked, dtype=np.int32).reshape(-1, 3)

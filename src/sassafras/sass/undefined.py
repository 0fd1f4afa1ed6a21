"""Reads of registers that no instruction writes: operands to which the compiler gave none.

ptxas before 13.4 leaves 0 as the number of the pair in ``LDGSTS [R7+UR0], desc[UR1][R2.64]`` (`cp.async` with
a fractional L2 policy), and the GPU stops. `undefined` knows all register files and needs nvdisasm's listing.
`suspects` reads words alone, in less than a millisecond, and uniform registers only.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from sassafras.core.errors import DisassemblyError, ToolMissing

from .cubin import Cubin
from .instruction import Instruction
from .program import Function, Program
from .registers import BREG, UGPR, UPRED, name

#: (word, first bit) of the fields that hold registers
_RA, _RB, _RC = (0, 24), (0, 32), (1, 0)
#: field, which registers from its own on, and the opcodes (12 bits) that read these, as ptxas writes them
_READ = (
    (
        _RA,
        (0,),
        "287 28c 290 291 292 297 299 2a4 2a5 3b4 3b5 3ba 4a4 5b2 5b4 887 88c 890 891 892 896 897 899 89a 8a4 "
        "8a5 9b9 9f0 9f3",
    ),
    (_RA, (1, 2, 3), "9f0 9f3"),
    (
        _RB,
        (0,),
        "287 28c 290 291 292 297 299 2a4 2a5 3b4 3b5 3ba 5b2 5b4 c02 c07 c0b c0c c10 c11 c12 c13 c19 c20 c23 "
        "c24 c25 c27 c36 c45 c46 c48 c82 d06 e23 e24 e25 e46",
    ),
    (_RB, (2, 3), "df0"),
    (_RC, (0,), "290 291 292 299 2a4 2a5 3b4 3ba 4a4 892 896 899 8a4 8a5"),
)
#: the same where bit 91 is set
_MAY_READ = (
    (_RB, (0,), "83b 984"),
    (_RB, (0, 1), "981"),
    (_RC, (0,), "988"),
    (_RC, (0, 1), "986 dae fae"),
)
#: opcodes that write one, and those of them that may write two
_WRITE = (
    "287 290 291 292 297 299 2a4 2a5 2ca 3c2 4a4 82f 882 887 890 891 892 896 897 899 89a 8a4 8a5 9c3 ab9 c82"
)
_WRITE_TWO = "297 2a5 897 8a5 ab9"
#: URZ
_NONE = 63


def undefined(function: Function) -> list[tuple[Instruction, int]]:
    """Reads of registers that nothing in the function writes: the first of each register, in order.

    Paths are not told apart: compiled code replaces parts of registers that no earlier instruction wrote
    (``PRMT R4, R25, 0x7632, R4``). Nothing is said where code outside of the function is called. Convergence
    barriers are left out: nvdisasm does not say which instructions read them.
    """
    written: set[int] = set()
    for i in function.instructions:
        inside = i.base != "CALL" or any(f"`({label})" in i.text for label in function.labels)
        if not inside or i.offset in function.system_calls:
            return []
        # of registers that only the text names, `effects` does not know the side
        written |= i.writes - i.reads if i.unexplained else i.writes
    found: dict[int, Instruction] = {}
    for i in function.instructions:
        for register in sorted(_read(i) - written):
            found.setdefault(register, i)
    return [(i, register) for register, i in found.items()]


def _read(i: Instruction) -> set[int]:
    """Registers that surely have to hold something."""
    # CALL and RET: nvdisasm sums up the callee; P2R: whatever stands in a mask
    if i.base in ("CALL", "RET", "P2R") or i.guard in ("!PT", "!UPT"):
        return set()
    reads = {register for register in i.reads if register < BREG}
    if i.base.endswith("GMMA") and not i.operands[1].startswith("gdesc"):
        # with A in registers, the half of the descriptor that is A's has no meaning
        first = {register for register in reads if UGPR <= register < UPRED}
        reads -= set(sorted(first)[:2])
    return reads


@cache
def _opcodes(listed: str) -> np.ndarray:
    """bool (4096,): the opcodes in a list."""
    table = np.zeros(4096, dtype=np.bool_)
    table[[int(word, 16) for word in listed.split()]] = True
    return table


def suspects(words: np.ndarray) -> list[int]:
    """Uniform registers (their numbers) that words read and none writes, whatever the path.

    Args:
        words: uint64 (instructions, 2), low word first.
    """
    low, high = words[:, 0], words[:, 1]
    opcode = (low & np.uint64(0xFFF)).astype(np.int64)
    there = (high >> np.uint64(27) & np.uint64(1)).astype(np.bool_)
    read: set[int] = set()
    for listed, said in ((_READ, np.ones(len(low), dtype=np.bool_)), (_MAY_READ, there)):
        for (word, at), span, opcodes in listed:
            named = words[_opcodes(opcodes)[opcode] & said, word] >> np.uint64(at) & np.uint64(_NONE)
            read.update(register + k for register in set(named.tolist()) - {_NONE} for k in span)
    target = (low >> np.uint64(16) & np.uint64(63)).astype(np.int64)
    written = set(target[_opcodes(_WRITE)[opcode]].tolist())
    written.update((target[_opcodes(_WRITE_TWO)[opcode]] + 1).tolist())
    return sorted(read - written)


def explain(cubin: bytes, kernel: str) -> str:
    """Which instruction reads what nothing writes; "" for none, and where no nvdisasm can tell.

    Fast, as it disassembles only where `suspects` finds something.

    Raises:
        CubinError: the file is not a sound cubin.
    """
    words = np.frombuffer(Cubin.parse(cubin).entries[kernel].text.data, dtype="<u8").reshape(-1, 2)
    if not suspects(words):
        return ""
    try:
        found = undefined(Program.parse(cubin).function(kernel))
    except (DisassemblyError, ToolMissing):
        return ""
    return "".join(
        f"{i.base} at {i.offset:#x} reads {name(register)}, which nothing writes" for i, register in found[:1]
    )

"""Control codes: what the compiler tells the issue logic, in bits 105-127 of each instruction.

Layout in the upper 64-bit word (sm_70 to sm_121), from bit 41 up:

    ======  =============  ==================================================================
    41-44   stall          cycles until this warp may issue its next instruction
    45      yield          a hint; with the stall one field of five bits, of which ptxas emits 0 (on BRA, NOP,
                           ERRBAR and USETMAXREG), 1-15 and 17-27: a stall of 12 or more needs it clear
    46-48   write barrier  scoreboard that is raised until the result is written, 7 for none
    49-51   read barrier   scoreboard that is raised until the operands are read, 7 for none
    52-57   wait mask      scoreboards that must be zero before this instruction issues
    58-61   reuse          source operands that stay in the cache of their slot
    62-63   zero
    ======  =============  ==================================================================

A *barrier* here is always one of the six scoreboards, never the BAR of a thread block.
``docs/concepts/hopper-schedules.md`` explains what the hardware makes of these fields, with an example.
"""

from __future__ import annotations

from dataclasses import dataclass

STALL_SHIFT, YIELD_SHIFT = 41, 45
WRITE_BARRIER_SHIFT, READ_BARRIER_SHIFT = 46, 49
WAIT_SHIFT, REUSE_SHIFT = 52, 58
NO_BARRIER = 7
SCOREBOARDS = 6
MAX_STALL = 15

CONTROL_MASK = ((1 << 23) - 1) << STALL_SHIFT
STALL_MASK = 0xF << STALL_SHIFT
YIELD_MASK = 1 << YIELD_SHIFT
REUSE_MASK = 0xF << REUSE_SHIFT


@dataclass(frozen=True, slots=True)
class Control:
    """A decoded control code.

    Attributes:
        stall: cycles until the same warp may issue its next instruction, 0-15.
        yield_hint: the raw bit 45 (ptxas sets it on most short stalls; clear it when stall >= 12).
        write_barrier: scoreboard raised until the result is written, 0-5, or None.
        read_barrier: scoreboard raised until the operands have been read, 0-5, or None.
        wait_mask: bit i set: wait until scoreboard i is zero before issue.
        reuse: bit i set: keep the operand of source slot i in that slot's cache, until an instruction uses
            the slot (not only the next one).
    """

    stall: int
    yield_hint: bool
    write_barrier: int | None
    read_barrier: int | None
    wait_mask: int
    reuse: int

    @classmethod
    def decode(cls, high: int) -> Control:
        """Read the control code of an instruction's upper word."""
        write = (high >> WRITE_BARRIER_SHIFT) & 7
        read = (high >> READ_BARRIER_SHIFT) & 7
        return cls(
            stall=(high >> STALL_SHIFT) & 0xF,
            yield_hint=bool((high >> YIELD_SHIFT) & 1),
            write_barrier=None if write == NO_BARRIER else write,
            read_barrier=None if read == NO_BARRIER else read,
            wait_mask=(high >> WAIT_SHIFT) & 0x3F,
            reuse=(high >> REUSE_SHIFT) & 0xF,
        )

    def encode(self, high: int) -> int:
        """`high` with its control bits replaced by this control code."""
        write = NO_BARRIER if self.write_barrier is None else self.write_barrier
        read = NO_BARRIER if self.read_barrier is None else self.read_barrier
        bits = (
            self.stall << STALL_SHIFT
            | int(self.yield_hint) << YIELD_SHIFT
            | write << WRITE_BARRIER_SHIFT
            | read << READ_BARRIER_SHIFT
            | self.wait_mask << WAIT_SHIFT
            | self.reuse << REUSE_SHIFT
        )
        return (high & ~CONTROL_MASK) | bits

    def __str__(self) -> str:
        """CuAssembler-like text: ``B0-2---:R3:W1:Y:S04``."""
        waits = "".join(str(i) if self.wait_mask >> i & 1 else "-" for i in range(SCOREBOARDS))
        read = "-" if self.read_barrier is None else str(self.read_barrier)
        write = "-" if self.write_barrier is None else str(self.write_barrier)
        return f"B{waits}:R{read}:W{write}:{'Y' if self.yield_hint else '-'}:S{self.stall:02d}"

"""Whether blocks of a kernel may wait for one another: then as many must run at once as a program expects."""

from __future__ import annotations

from .program import Function

#: opcodes that a loop can see another block's writes by; weak loads may be served by the L1 for ever
_ATOMICS = ("ATOM", "ATOMG")
_STRONG = ("LD", "LDG")


def polls(function: Function) -> bool:
    """Whether code reads memory so that it sees what another block of the grid writes meanwhile: by an atomic
    operation with a result, or a volatile, relaxed or acquire load. Also true where that cannot be told.

    Blocks of a cluster run together, and `griddepcontrol.wait` waits for another grid.
    """
    for i in function.instructions:
        if i.unexplained or i.base in ("CALL", *_ATOMICS):
            return True
        if i.base in _STRONG and "STRONG" in i.opcode.split("."):
            return True
    return False

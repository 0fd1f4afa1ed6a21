"""`prove`: the validator's answer for two cubins."""

from __future__ import annotations

from sassafras.sass import Program
from sassafras.validate import Report, Validator


def prove(original: bytes, candidate: bytes, kernel: str | None = None) -> tuple[str, Report]:
    """Prove that a candidate computes the same as the original with legal timing.

    Args:
        original, candidate: cubins.
        kernel: name of the kernel; required if the original holds several.

    Returns:
        The kernel's name, and the report.

    Raises:
        CubinError, DisassemblyError: the original cannot be read, or holds no such kernel.
    """
    name = Program.parse(original).function(kernel).name
    return name, Validator(original, name).check(candidate)

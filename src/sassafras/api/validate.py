"""`prove`: the validator's answer for two cubins."""

from __future__ import annotations

from functools import partial

from sassafras.core import Kernel
from sassafras.sass import Program
from sassafras.schedule.spaces import prove_copies
from sassafras.validate import Report, Validator


def prove(original: bytes, candidate: bytes, kernel: str | None = None) -> tuple[str, Report]:
    """Prove that a candidate computes the same as the original with legal timing.

    A schedule of a copy that ``--space renaming`` or ``blocks`` searches is one, too.

    Args:
        original, candidate: cubins.
        kernel: name of the kernel; required if the original holds several.

    Returns:
        The kernel's name, and the report.

    Raises:
        CubinError, DisassemblyError: the original cannot be read, or holds no such kernel.
    """
    function = Program.parse(original).function(kernel)
    made = Kernel(original, function.name, function.arch, threads=32)  # of threads no copy knows
    validator = Validator(original, function.name)
    return function.name, validator.check(candidate, via=partial(prove_copies, made))

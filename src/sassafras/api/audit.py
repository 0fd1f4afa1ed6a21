"""`audit`: hazards in the kernels of a cubin, a program or a cache, with no original to compare with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sassafras.core import SassafrasError
from sassafras.frontend.programs import cubins_of
from sassafras.sass import Program
from sassafras.validate import Validator, Violation
from sassafras.validate.audit import RULES, Auditor, KernelAudit


@dataclass(frozen=True, slots=True)
class Audit:
    """What an audit says of a file or folder.

    Attributes:
        kernels: (cubin, its kernel's audit), in order.
        unread: (cubin, why it cannot be read).
    """

    kernels: tuple[tuple[str, KernelAudit], ...]
    unread: tuple[tuple[str, str], ...]

    @property
    def hazards(self) -> int:
        """How many were found."""
        return sum(len(one.hazards) for _, one in self.kernels)

    @property
    def surplus(self) -> int:
        """Waits that protect nothing."""
        return sum(len(one.surplus) for _, one in self.kernels)

    @property
    def not_audited(self) -> int:
        """Kernels, and cubins, of which nothing can be said."""
        return len(self.unread) + sum(bool(one.unsupported) for _, one in self.kernels)

    def to_json(self) -> dict[str, Any]:
        """Everything, JSON-able."""

        def told(found: Violation) -> dict[str, str]:
            return asdict(found) | {"rule": RULES.get(found.kind, "")}

        kernels = [
            {
                "cubin": cubin,
                "kernel": one.kernel,
                "arch": one.arch,
                "instructions": one.instructions,
                "not_audited": one.unsupported or None,
                "hazards": [told(found) for found in one.hazards],
                "surplus": [told(found) for found in one.surplus],
            }
            for cubin, one in self.kernels
        ]
        return {
            "ok": not self.hazards,
            "hazards": self.hazards,
            "surplus": self.surplus,
            "not_audited": self.not_audited,
            "unread": [{"cubin": cubin, "reason": reason} for cubin, reason in self.unread],
            "kernels": kernels,
        }


def audit(
    path: str | Path,
    kernel: str | None = None,
    each: Callable[[str, KernelAudit], None] = lambda cubin, found: None,
) -> Audit:
    """Find hazards in compiled kernels from their code alone. Runs nothing.

    Args:
        path: a cubin; a program, library or fat binary; or a folder of cubins.
        kernel: only kernels whose name contains this.
        each: called with the cubin's name and the audit of each kernel.

    Raises:
        SassafrasError: it cannot be read, or holds no such kernel.
        DisassemblyError: the only cubin cannot be read.
    """
    kernels: list[tuple[str, KernelAudit]] = []
    unread: list[tuple[str, str]] = []
    found = cubins_of(Path(path))
    for name, data in found:
        try:
            program = Program.parse(data)
            for function in program.functions:
                if kernel is None or kernel in function:
                    one = Auditor(Validator(data, function, program=program)).report()
                    kernels.append((name, one))
                    each(name, one)
        except SassafrasError as error:
            if len(found) == 1:
                raise
            unread.append((name, str(error)))
    if not kernels and not unread:
        raise SassafrasError(f"no kernel's name contains {kernel!r}", where=str(path))
    return Audit(tuple(kernels), tuple(unread))

"""What the validator says of a candidate."""

from __future__ import annotations

from dataclasses import dataclass

from sassafras.sass import Instruction


@dataclass(frozen=True, slots=True)
class Violation:
    """One reason why a candidate is refused.

    Attributes:
        kind: the rule that is broken, one of those in ``docs/concepts/validator.md`` (``"order"``, ``"raw"``,
            ``"scoreboard"``, ``"reuse"``, ...); ``"unsupported"`` when the original cannot be analysed.
        where: instruction or place, in the candidate's numbering (``"+0x120: FADD R3, R4, R5"``).
        message: what is wrong, one sentence.
    """

    kind: str
    where: str
    message: str

    @classmethod
    def at(cls, kind: str, i: Instruction, message: str) -> Violation:
        """What is wrong with an instruction of a copy."""
        return cls(kind, f"+{i.offset:#x}: {i.text}", message)

    def __str__(self) -> str:
        return f"{self.kind} at {self.where}: {self.message}"


@dataclass(frozen=True, slots=True)
class Report:
    """The answer for one candidate.

    Attributes:
        ok: True when every rule is proved to hold.
        violations: why not, most basic rule first; not complete, as later rules assume the earlier ones.
        seconds: wall time of the check, without the analysis of the original.
    """

    ok: bool
    violations: tuple[Violation, ...]
    seconds: float

    @property
    def supported(self) -> bool:
        """False when the original cannot be analysed, so that nothing is said of the candidate."""
        return all(v.kind != "unsupported" for v in self.violations)

    def __str__(self) -> str:
        if self.ok:
            return f"legal ({1e3 * self.seconds:.1f} ms)"
        return "; ".join(str(v) for v in self.violations)

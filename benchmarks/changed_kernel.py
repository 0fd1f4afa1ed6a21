"""A kernel of ours with its text changed: for questions to the hardware (`hgemm_order`, `hgemm_launch`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Changed:
    """An instance whose text is edited; what `tools.Tools` and `compile.build` ask an instance for.

    Attributes:
        base: the instance as it ships.
        edits: (text, what it is replaced by); each stands there once.
    """

    base: Any
    edits: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        """The entry's, as it ships."""
        return str(self.base.name)

    @property
    def parameters(self) -> Any:
        """As they ship."""
        return self.base.parameters

    @property
    def source(self) -> str:
        """The whole text, changed. Raises SystemExit where the kernel is written otherwise by now."""
        from sassafras.gemm import compile as compiling

        text = compiling.source(self.base)
        for before, after in self.edits:
            if text.count(before) != 1:
                raise SystemExit(
                    f"error: {self.name} has changed: {before.strip()!r} does not stand there once"
                )
            text = text.replace(before, after)
        return text


def without_gpu() -> bool:
    """Whether there is no GPU to ask; says so."""
    from sassafras.device.cuda import available

    usable, reason = available()
    print(reason, flush=True)
    return not usable

"""Programs that are not trusted (compilers fed with model-written source, that source itself), confined."""

from .imports import import_path
from .run import (
    COMPILER_READABLE,
    LIMIT_VERDICTS,
    ConfinedProcess,
    Confinement,
    NotSafe,
    ProcessEnd,
    run,
)

__all__ = [
    "COMPILER_READABLE",
    "LIMIT_VERDICTS",
    "ConfinedProcess",
    "Confinement",
    "NotSafe",
    "ProcessEnd",
    "import_path",
    "run",
]

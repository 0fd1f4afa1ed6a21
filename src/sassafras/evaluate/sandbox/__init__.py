"""Programs that are not trusted (compilers fed with model-written source, that source itself), confined."""

from .run import ConfinedProcess, Confinement, Finished, NotSafe, run

__all__ = ["ConfinedProcess", "Confinement", "Finished", "NotSafe", "run"]

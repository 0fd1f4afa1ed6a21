"""Programs that are not trusted (compilers fed with model-written source, that source itself), confined."""

from .run import Confinement, Finished, NotSafe, run

__all__ = ["Confinement", "Finished", "NotSafe", "run"]

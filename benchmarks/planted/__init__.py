"""Violations planted in real kernels, and permutations that are legal, both by construction.

Everything here rests on the disassembler's liveness oracle and on plain arguments given beside each class,
never on the validator's own reading: what one of the two overlooks the other one shows.
"""

from .legal import permutations
from .places import places
from .scoreboards import scoreboards
from .structure import structure
from .subject import Mutant, Subject
from .swaps import swaps
from .timing import timing

#: every source of violations: ``source(subject, rng, quota) -> mutants``, at most `quota` a class
SOURCES = (swaps, places, timing, scoreboards, structure)

__all__ = [
    "SOURCES", "Mutant", "Subject", "permutations", "places", "scoreboards", "structure", "swaps", "timing",
]  # fmt: skip

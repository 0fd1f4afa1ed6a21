"""Violations planted in real kernels, and permutations that are legal, both by construction.

Everything here rests on the disassembler's liveness oracle and on plain arguments given beside each class,
never on the validator's own reading: what one of the two overlooks the other one shows.
"""

from .legal import permutations
from .names import names
from .places import places
from .scoreboards import scoreboards
from .structure import structure
from .subject import Mutant, Subject
from .swaps import swaps
from .timing import timing

#: every source of violations: ``source(subject, rng, quota) -> mutants``, at most `quota` a class
#: (`names` plants in copies under other register names, which `Validator.via` has to prove first)
SOURCES = (swaps, places, timing, scoreboards, structure)

__all__ = [
    "SOURCES", "Mutant", "Subject", "names", "permutations", "places", "scoreboards", "structure",
    "swaps", "timing",
]  # fmt: skip

"""Violations planted in real kernels, and permutations that are legal, both by construction.

Everything here rests on the disassembler's liveness oracle and on plain arguments given beside each class,
never on the validator's own reading: what one of the two overlooks the other one shows.
"""

from .legal import permutations
from .moves import moves
from .names import names
from .places import places
from .scoreboards import scoreboards
from .structure import structure
from .subject import Mutant, Subject
from .swaps import swaps
from .timing import timing

#: every source of violations: ``source(subject, rng, quota) -> mutants``, at most `quota` a class
#: (`names` and `moves` plant in copies that `Validator.via` has to prove first: other register names,
#: instructions moved over branches)
SOURCES = (swaps, places, timing, scoreboards, structure)

__all__ = [
    "SOURCES",
    "Mutant",
    "Subject",
    "moves",
    "names",
    "permutations",
    "places",
    "scoreboards",
    "structure",
    "swaps",
    "timing",
]

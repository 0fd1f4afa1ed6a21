"""PTX as a search space: `reader` finds places, `rewrites` change them, `space` lets ptxas try them."""

from .outputs import fingerprint
from .rewrites import Rewrite, registers_at_launch
from .space import PtxMove, PtxSpace, PtxState, of

__all__ = ["PtxMove", "PtxSpace", "PtxState", "Rewrite", "fingerprint", "of", "registers_at_launch"]

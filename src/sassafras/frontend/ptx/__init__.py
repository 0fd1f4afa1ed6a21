"""PTX as a search space: `reader` finds places, `rewrites` change them, `space` lets ptxas try them."""

from .rewrites import Rewrite, registers_at_launch
from .space import PtxMove, PtxSpace, PtxState, fingerprint, of

__all__ = ["PtxMove", "PtxSpace", "PtxState", "Rewrite", "fingerprint", "of", "registers_at_launch"]

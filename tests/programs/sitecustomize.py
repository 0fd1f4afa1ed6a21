"""Runs first in every Python that the tests start: garbage is looked for less often, and not at its end.

A quarter to a half of what imports of torch, numba and Triton take are collections that find nothing.
"""

import atexit
import gc

gc.set_threshold(100_000, 50, 100)
atexit.register(gc.freeze)

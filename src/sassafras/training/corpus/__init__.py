"""Kernels to train the agent on: the suite's and some more, under many compile-time constants.

Nothing here runs on a GPU: sizes change only what a compiler sees of them (a multiple of 16 or not).
"""

from .sampling import (
    HELD_OUT,
    LEAST_ROWS,
    MOST_A_KERNEL,
    MOST_ROWS,
    VARIED,
    CorpusSample,
    Survey,
    look,
    open_sample,
    rows_of,
    samples,
    survey,
)

__all__ = [
    "HELD_OUT",
    "LEAST_ROWS",
    "MOST_A_KERNEL",
    "MOST_ROWS",
    "VARIED",
    "CorpusSample",
    "Survey",
    "look",
    "open_sample",
    "rows_of",
    "samples",
    "survey",
]

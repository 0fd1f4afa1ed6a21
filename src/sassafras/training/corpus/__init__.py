"""Kernels to train the agent on: the suite's and some more, under many compile-time constants.

Nothing here runs on a GPU: sizes change only what a compiler sees of them (a multiple of 16 or not).
"""

from .sampling import HELD_OUT, VARIED, CorpusSample, Survey, look, open_sample, samples, survey

__all__ = ["HELD_OUT", "VARIED", "CorpusSample", "Survey", "look", "open_sample", "samples", "survey"]

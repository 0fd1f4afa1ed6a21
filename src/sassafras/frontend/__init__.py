"""Frontends: from a user's Triton kernel, CUDA source or raw cubin to a `Workload`.

``load`` reads a target as the command line names it; `sassafras.frontend.triton`, `.cuda` and `.cubin` make
workloads; ``variants`` tells which cases share one compiled kernel.
"""

from .targets import load, variants

__all__ = ["load", "variants"]

"""Kernels beside products: one launched with PDL, and an empty one; loads Triton."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl


@triton.jit
def _halve(c, count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.extra.cuda.gdc_wait()
    value = tl.load(c + at, at < count)
    tl.extra.cuda.gdc_launch_dependents()
    tl.store(c + at, value * 0.5, at < count)


@triton.jit
def _nothing():
    pass


def halve(c: Any) -> None:
    """c / 2 in place, launched with PDL: it may start, and let the next kernel start, before the end."""
    _halve[(triton.cdiv(c.numel(), 1024),)](c, c.numel(), BLOCK=1024, launch_pdl=True)


def nothing() -> None:
    """An empty kernel."""
    _nothing[(1,)](num_warps=1)

"""Source text that must be refused while it is scanned or built, and honest text that must not be."""

from __future__ import annotations

from functools import partial
from typing import Any

from . import Exhibit, texts

KERNEL = """
extern "C" __global__ void affine(float* y, const float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = 2 * x[i] + 1;
}
"""
TRITON = """
import triton
import triton.language as tl

@triton.jit
def affine(y, x, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + o, 2 * tl.load(x + o, mask=o < n) + 1, mask=o < n)
"""


def case() -> Any:
    """The case that all of these are built for."""
    from sassafras.core import Buffer, Case

    n = 1_000_000
    return Case("1M", (3907, 1, 1), {"y": Buffer("fp32", (n,), "out"), "x": Buffer("fp32", (n,)), "n": n})


def exhibits() -> list[Exhibit]:
    """Cheating and broken sources, and honest ones."""
    from sassafras.evaluate import Source

    def cuda(text: str) -> Any:
        return Source("cuda", text, entry="affine")

    def triton(text: str) -> Any:
        return Source("triton", text, constants={"BLOCK": 1024}, grid=(977, 1, 1))

    made = []
    for group, name, title, expected, by, text in texts("cuda", "triton"):
        whole = text.replace("@KERNEL@", KERNEL).replace("@TRITON@", TRITON)
        make = partial(cuda if group == "cuda" else triton, whole)
        kind = "honest" if expected == ("built",) else "cheat"
        made.append(Exhibit(name, title, kind, "source", expected, by, make))
    return made

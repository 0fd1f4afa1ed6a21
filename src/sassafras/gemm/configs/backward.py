"""Layouts whose A lies as k x m (nt, tt): what a sweep of them needs beside that of the benchmark's task.

Where they come from: of C = A B, dB = A^T dC reads A as it lies, so k x m in that product's own letters: nt
for a row-major A. Here m and n are a layer's two widths, and k is the number of tokens. tt is nn with a
column-major C. Their times are a dataset and a table of their own (`PART`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ..problem.shape import BACKWARD, LAYOUTS, Shape, cuda_l2_grid, stratified
from . import registry
from .registry import Config, Instance

#: in the names of files
PART = "backward"
#: (outputs, inputs) of linear layers, the weight's own two extents: GPT-2 and BERT, 1B to 70B models
WEIGHTS = (
    (768, 768), (2304, 768), (3072, 768), (768, 3072), (1024, 1024), (3072, 1024), (4096, 1024),
    (1024, 4096), (1280, 5120), (1536, 1536), (2048, 2048), (8192, 2048), (2048, 8192), (2560, 2560),
    (10240, 2560), (3072, 3072), (8192, 3072), (4096, 4096), (6144, 4096), (14336, 4096), (4096, 14336),
    (11008, 4096), (5120, 5120), (13824, 5120), (8192, 8192), (1024, 8192),
)  # fmt: skip
TOKENS = (512, 1024, 2048, 4096, 8192)
#: FLOP up to which shapes are swept: a tenth of a second a candidate is too much for what is left to gain
_MOST = 2.5e12
#: weights' gradients of any number of tokens, and shapes of the grid
_DRAWN, _OF_GRID = 30, 140


def part(layouts: Sequence[str]) -> str:
    """The part of the dataset that layouts belong to: "" for the benchmark's task, else `PART`."""
    return "" if set(layouts) <= set(LAYOUTS) else PART


def instances(layouts: Sequence[str] = LAYOUTS) -> tuple[Instance, ...]:
    """The FP16 kernels that a sweep of these layouts needs."""
    if not part(layouts):
        return registry.INSTANCES
    others = (i for i in registry.OTHER_INSTANCES if i.dtype == "fp16")
    return tuple(i for i in others if i.layout in layouts)


def configurations() -> Iterator[Config]:
    """FP16 configurations of nt and tt, legal or not."""
    return (c for c in registry.other_configurations() if c.layout in BACKWARD and c.dtype == "fp16")


def weight_gradients() -> tuple[Shape, ...]:
    """dB of `WEIGHTS` at `TOKENS`, and some at other numbers of tokens; smallest work first."""
    rng = np.random.default_rng(9)
    found = {Shape(n, k, tokens) for n, k in WEIGHTS for tokens in TOKENS}
    most = len(found) + _DRAWN
    while len(found) < most:
        n, k = WEIGHTS[int(rng.integers(len(WEIGHTS)))]
        found.add(Shape(n, k, int(2 ** rng.uniform(7.5, 13))))
    return tuple(sorted((s for s in found if s.flop <= _MOST), key=lambda s: (s.flop, s)))


def grid() -> tuple[Shape, ...]:
    """What is swept in nt and tt: `weight_gradients`, and a stratified part of the 1,000 shapes."""
    gradients = weight_gradients()
    others = [s for s in cuda_l2_grid() if s.flop <= _MOST and s not in set(gradients)]
    return tuple(sorted({*gradients, *stratified(others, _OF_GRID, 9)}, key=lambda s: (s.flop, s)))

"""Layers of at most 64 rows, bound by reading B from memory: which split-K kernel reads it fastest.

Stages hold two blocks of 64 k: 256 bytes of each line of B at a time. The choice (`cost_us`) was fitted to
products with weights from memory: 177 on an H200, one behind the other, 147 of them between elementwise
kernels, too, and 69 on an H100 between these. It takes 1.004 times as long as the best tried. No layer by
which it is judged was among them: on 66 products of these it takes 1.002.
"""

from __future__ import annotations

from ..problem.launch import MULTIPROCESSORS, ceil_div
from ..problem.shape import Shape
from . import cost
from .base import Mode
from .split_k import SplitKConfig, SplitKInstance
from .tma_wgmma import TILE_K

#: rows of A that a tile of 64 holds, and elements of B from which the choice was fitted
MOST, LEAST = 64, 1 << 24
#: lines of B from which there are tiles enough without a cut of k: of smaller ones, too, the choice is right
#: (an H200: 1.04 times as fast as the predictor's, over 51 products of 8 layers)
MANY = 3072
#: ranges of k that are tried: on an H100 more are no faster, over 69 products
_SLICES = range(1, 4)
#: columns of a tile of 64 rows -> stages of 128 k
RINGS = {32: 7, 48: 7, 64: 6, 96: 5, 112: 4, 128: 4, 160: 3, 192: 3}
#: microseconds of each of the first waves of CTAs, and of later ones, of a cluster, of a CTA in it; of a MB
#: of A, and of B, that a multiprocessor reads
_WAVE, _LATER, _CLUSTER, _MEMBER, _OF_A, _OF_B = 3.22, 0.148, 0.085, 0.077, 0.344, 1.37
#: waves from which on one's end is hidden behind another's begin: CTAs drift apart
FIRST = 4


def _instances(dtype: str) -> tuple[SplitKInstance, ...]:
    tiles = RINGS.items()
    return tuple(SplitKInstance("tn", 64, width, ring, dtype=dtype, k_blocks=2) for width, ring in tiles)


INSTANCES, OTHER_INSTANCES = _instances("fp16"), _instances("bf16")


def cost_us(config: SplitKConfig, shape: Shape) -> float:
    """Microseconds by which these kernels differ for a shape; the rest is memory's, whichever is taken.

    They are those of waves of CTAs, of clusters, of A (from the L2, once a CTA), and of B as far as the CTAs
    that read it are too few to keep memory busy.
    """
    i, slices = config.instance, config.cluster_split_k
    lines = i.tile_m if i.swap_ab else i.tile_n
    ctas, stages = ceil_div(shape.n, lines) * slices, ceil_div(i.k_tiles(shape), slices)
    slots = cost.at_once(slices, cost.residents(config.threads, config.shared_bytes))
    waves = [min(slots, ctas - first) for first in range(0, ctas, slots)]
    line = 2e-6 * TILE_K * i.k_blocks * stages  # MB of a CTA's part of a line
    read = line * lines * sum(ceil_div(at_once, MULTIPROCESSORS) for at_once in waves)
    apart = (_CLUSTER + _MEMBER * slices) * (slices > 1)
    of_a, of_b = read * shape.m / lines, read * min(1.0, MULTIPROCESSORS / ctas)
    first = min(len(waves), FIRST)
    return _WAVE * first + _LATER * (len(waves) - first) + apart + _OF_A * of_a + _OF_B * of_b


def best(shape: Shape, least: int = LEAST) -> list[SplitKConfig]:
    """Configurations for at most 64 rows (layout tn), the best first; none for a B of fewer elements.

    They may start while the launch ahead ends.
    """
    if shape.m > MOST or shape.n * shape.k < least:
        return []
    every = (SplitKConfig(i, slices, mode=Mode(pdl=True)) for i in INSTANCES for slices in _SLICES)
    able = [config for config in every if config.why_illegal(shape) is None]
    return sorted(able, key=lambda config: (cost_us(config, shape), config.rank))

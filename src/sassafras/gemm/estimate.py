"""A static estimate of a configuration's time: it ranks candidates before any is measured.

Its constants are round numbers for an H200 at 1.9 GHz (`docs/hgemm.md`), not fitted. It is never reported.
"""

from __future__ import annotations

from .families import Config
from .launch import ceil_div
from .lean import STEP, LeanConfig
from .shapes import Shape
from .staged import TILE_K, StagedConfig

_MULTIPROCESSORS = 132
_CLOCK_GHZ = 1.9
#: cycles: launch and prologue; one dependent round trip to the L2; a CTA's barrier and sum; the cluster's
_START, _ROUND_TRIP, _CTA_SUM, _CLUSTER_SUM = 1500, 700, 150, 700
#: bytes a cycle and multiprocessor from the L2 to the L1, and from the L1 to registers (64-byte row pieces)
_L2_BYTES, _L1_BYTES = 40, 64
#: cycles of one mma.m16n8k16 on one of four partitions
_MMA = 4


def estimate_us(config: Config, shape: Shape) -> float:
    """Microseconds, roughly; good for ranking within a family."""
    return _staged_us(config, shape) if isinstance(config, StagedConfig) else _lean_us(config, shape)


def _staged_us(config: StagedConfig, shape: Shape) -> float:
    tiles_m, tiles_n = config.tiles(shape)
    rows, columns = config.tile
    per_multiprocessor = ceil_div(tiles_m * tiles_n * config.cluster, _MULTIPROCESSORS)
    resident = max(1, min(2048 // config.threads, (228 * 1024) // (config.shared_bytes + 1024)))
    waves = ceil_div(per_multiprocessor, resident)
    steps = ceil_div(ceil_div(shape.k, TILE_K), config.cluster)
    from_l2 = per_multiprocessor * steps * 2 * TILE_K * (rows + columns) / _L2_BYTES
    multiply = per_multiprocessor * steps * (TILE_K // 16) * (rows // 16) * (columns // 8) * _MMA / 4
    latency = waves * (_ROUND_TRIP * (1 + (steps - 1) / config.instance.stages) + 120 * steps)
    total = _START + max(latency, from_l2, multiply)
    if config.cluster > 1:
        total += waves * (_CLUSTER_SUM + 30 * config.cluster)
    return total / _CLOCK_GHZ / 1000


def _lean_us(config: LeanConfig, shape: Shape) -> float:
    instance = config.instance
    tiles_m, tiles_n = config.tiles(shape)
    ctas = tiles_m * tiles_n * config.cluster
    warps = config.threads // 32
    resident = max(
        1,
        min(
            32,
            2048 // config.threads,
            65536 // (config.threads * max(32, instance.registers)),
            (228 * 1024) // (config.shared_bytes + 1024),
        ),
    )
    per_multiprocessor = ceil_div(ctas, _MULTIPROCESSORS)
    waves = ceil_div(per_multiprocessor, resident)
    steps = ceil_div(ceil_div(shape.k, STEP), config.slices)
    groups = ceil_div(steps, instance.steps)
    # each group waits for a round trip, and two are in flight
    latency = waves * _ROUND_TRIP * (1 + (groups - 1) / 2)
    rows, columns = config.tile
    k_of_cta = steps * STEP * config.warps_k
    from_l2 = per_multiprocessor * 2 * k_of_cta * (rows + columns) / _L2_BYTES
    per_warp = 2 * STEP * (16 * instance.mt + 8 * instance.nt)
    from_l1 = per_multiprocessor * warps * steps * per_warp / _L1_BYTES
    multiply = per_multiprocessor * warps * steps * 2 * instance.mt * instance.nt * _MMA / 4
    if config.layout == "nn":  # byte permutations share the issue slots
        multiply += per_multiprocessor * warps * steps * 4 * instance.nt * 2 / 4
    total = _START + max(latency, from_l2, from_l1, multiply) + 0.3 * min(latency, from_l1)
    if config.slices > 1:
        total += waves * (_CTA_SUM + 20 * config.warps_k)
    if config.cluster > 1:
        total += waves * (_CLUSTER_SUM + 30 * config.cluster)
    return total / _CLOCK_GHZ / 1000

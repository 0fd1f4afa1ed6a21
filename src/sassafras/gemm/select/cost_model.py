"""A static estimate of a configuration's time: it ranks candidates before any is measured.

Its constants are round numbers for an H200 at 1.9 GHz (`docs/concepts/gemm-kernels.md`); two factors are
fitted. It is never reported as a time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..configs.fallback import TILE_K, FallbackConfig
from ..configs.persistent import PersistentConfig
from ..configs.registry import Config
from ..configs.small import STEP, SmallConfig
from ..configs.split_k import SplitKConfig
from ..configs.split_k_two_pass import TwoPassSplitKConfig
from ..configs.tma_wgmma import k_tiles
from ..configs.unaligned import UnalignedConfig
from ..problem.launch import AT_ONCE, MULTIPROCESSORS, ceil_div
from ..problem.shape import Shape

_MULTIPROCESSORS = MULTIPROCESSORS
_CLOCK_GHZ = 1.9
#: cycles: launch and prologue; one dependent round trip to the L2; a CTA's barrier and sum; the cluster's
_START, _ROUND_TRIP, _CTA_SUM, _CLUSTER_SUM = 1500, 700, 150, 700
#: bytes a cycle and multiprocessor from the L2 to the L1, and from the L1 to registers (64-byte row pieces)
_L2_BYTES, _L1_BYTES = 40, 64
#: cycles of one mma.m16n8k16 on one of four partitions
_MMA = 4


#: what was measured over what the first principles below say (median of hgemm-offline.json), and what was
#: missing: bytes a microsecond at which a grid of short-lived CTAs stores C
_SLOWER_LEAN, _SLOWER_STAGED, _PLAIN_STORES = 1.4, 1.6, 2.5e6
#: WGMMA: multiply-adds a cycle and multiprocessor; what sustained clocks and issue leave of them
_PRODUCTS, _SUSTAINED = 2048, 0.72
#: cycles from the launch to the first tensor copy (a node of a graph alone takes 1300)
_LAUNCH = 2200
#: cycles: a tensor copy from issue to arrival; bytes a cycle and multiprocessor that stores of C reach
_COPY, _STORE_BYTES = 1000, 24
#: bytes a cycle and multiprocessor of the memory, everybody loading
_MEMORY_BYTES = 17


def estimate_us(config: Config, shape: Shape) -> float:
    """Microseconds, roughly; good for ranking within a family."""
    if isinstance(config, TwoPassSplitKConfig):
        return _two_launches_us(config, shape)
    if isinstance(config, SplitKConfig):
        return _cluster_split_us(config, shape, _FITTED)
    if isinstance(config, PersistentConfig):
        return _warp_specialized_us(config, shape)
    if isinstance(config, UnalignedConfig):
        return _any_rows_us(config, shape)
    stores = 2 * shape.m * shape.n / _PLAIN_STORES
    if isinstance(config, FallbackConfig):
        return _SLOWER_STAGED * _staged_us(config, shape) + stores
    return _SLOWER_LEAN * _lean_us(config, shape) + stores


def expected_us(config: Config, shape: Shape) -> float:
    """The same for kernels as they are now: what a sweep proposes first.

    `estimate_us` stays what the shipped chooser was trained with, until both are fitted to new times.
    """
    if isinstance(config, SplitKConfig) and not isinstance(config, TwoPassSplitKConfig):
        return _cluster_split_us(config, shape, _EXPECTED)
    return estimate_us(config, shape)


def _k_tile_cycles(rows: int, columns: int, stages: int, loaded: float, share: int) -> float:
    """One k tile in the steady state: tensor cores, operands from shared memory, copies, latency over stages.

    Args:
        loaded: bytes that this CTA brings from the L2.
        share: CTAs on the multiprocessor.
    """
    multiply = rows * columns * TILE_K / _PRODUCTS / _SUSTAINED
    # every 64 rows read all of B once, and their own part of A
    read = rows / 64 * 2 * TILE_K * (64 + columns) / 128
    return max(share * multiply, share * read, share * loaded / _L2_BYTES, _COPY / stages)


#: `AT_ONCE`, as the first fit took it
_GUESSED = (132, 130, 122, 122, 122, 122, 122, 122)


@dataclass(frozen=True, slots=True)
class _ClusterSplit:
    """Of the cluster-split family, in cycles, or bytes a cycle and multiprocessor.

    Attributes:
        launch, copy, meeting: up to the first instruction; a first copy; the cluster's first meeting.
        sums, slice: the cluster's sum, each slice of it.
        parts: the meeting of parts.
        load, partial, workspace, parts_read, store, memory: bytes a cycle: operands, partial sums of
            slices, of parts (written, read), stores, memory. Reading is a guess for copies that run ahead;
            with 20 KB under way 16 were fitted.
        arrive: bytes a cycle of operands that a multiprocessor takes in, `load` being those that it asks for
            itself; 0: those are all.
        beside: what of the shorter of memory and multiprocessors shows up.
        at_once: CTAs at once, by the size of their cluster.
    """

    launch: float = 1670
    copy: float = 1340
    meeting: float = 930
    sums: float = 500
    slice: float = 580
    parts: float = 1940
    load: float = 53
    partial: float = 11.3
    workspace: float = 16
    parts_read: float = 48
    store: float = 19
    memory: float = 14
    arrive: float = 0
    beside: float = 0
    at_once: tuple[int, ...] = _GUESSED


#: Fitted to every second shape of the first sweep of all families; on the others the median rank correlation
#: within a shape is 0.82, and the best of the first five is 3 % from the best (0.53 and 8 % before the fit).
_FITTED = _ClusterSplit()
#: slices exchange sums without a fence, all at once; what is shared is asked for once. Guesses from the SASS
#: and old times (docs/experiments/hgemm-kernels.md). The measured clusters are here alone: choosers
#: that learnt with them were no better, and what ships has learnt without (2026-11-22-hgemm-streams.md there)
_EXPECTED = replace(
    _FITTED, meeting=500, sums=900, slice=60, partial=28, load=60, arrive=85, beside=0.05, at_once=AT_ONCE
)


def _at_once(cluster: int, resident: int, one_each: tuple[int, ...] = _GUESSED) -> int:
    """CTAs that run at once, in whole clusters; so many on a multiprocessor."""
    return max(1, one_each[min(cluster, 8) - 1] * resident // cluster) * cluster


def _cluster_split_us(config: SplitKConfig, shape: Shape, c: _ClusterSplit) -> float:
    instance = config.instance
    rows, columns = config.tile
    tiles_m, tiles_n = config.tiles(shape)
    ctas = tiles_m * tiles_n * config.slices * config.parts
    resident = max(1, min(2048 // config.threads, (228 * 1024) // (config.shared_bytes + 1024)))
    share = min(resident, max(1.0, ctas / _MULTIPROCESSORS))
    waves = ceil_div(ctas, _at_once(config.cluster, resident, c.at_once))
    steps = ceil_div(k_tiles(shape), config.slices * config.parts)
    asked: float = 2 * TILE_K * (rows + columns)
    if c.arrive:
        asked = 2 * TILE_K * (rows / config.share_n + columns / config.share_m)
    step = max(
        share * rows * columns * TILE_K / _PRODUCTS / _SUSTAINED,
        share * asked / c.load,
        share * 2 * TILE_K * (rows + columns) / (c.arrive or c.load),
        share * rows / 64 * 2 * TILE_K * (64 + columns) / 128,
        c.copy / instance.ring,
    )
    once = c.copy + steps * step + 300 + share * 2 * rows * columns / config.slices / config.parts / c.store
    if config.share_m * config.share_n > 1:
        once += c.meeting
    if config.slices > 1:
        once += c.sums + c.slice * config.slices + 4 * rows * columns / c.partial
    if config.parts > 1:
        left = 4 * rows * columns / config.slices
        once += c.parts + left / c.workspace + config.parts * left / c.parts_read
    memory = shape.nbytes / _MULTIPROCESSORS / c.memory
    total = c.launch + max(waves * once, memory) + c.beside * min(waves * once, memory)
    return total / _CLOCK_GHZ / 1000


#: Two launches, fitted to the best modes of 678 pairs of the shipped dataset (warm, back to back; fitted to
#: half of the shapes, the mean error is 6.5 % on these and 6.6 % on the others): microseconds of both
#: launches without their work; bytes a microsecond and multiprocessor of operands that arrive; FLOP a
#: microsecond of all; what of the second longest of arriving, multiplying and memory shows up; microseconds
#: that a megabyte of sums takes, left and added
_TWO_START, _TWO_ARRIVE, _TWO_FLOP, _TWO_BESIDE, _TWO_SUMS = 1.92, 179e3, 902e6, 0.24, 0.485
#: bytes of operands that stay in the L2 between calls, and bytes a microsecond of those that do not
_KEPT, _STREAMED = 45e6, 4.3e6


def _two_launches_us(config: TwoPassSplitKConfig, shape: Shape) -> float:
    rows, columns = config.tile
    ctas = config.ctas(shape)  # a chooser asks about neighbours, too, where it may be illegal
    k = TILE_K * ceil_div(k_tiles(shape), config.parts) * ceil_div(ctas, _MULTIPROCESSORS)
    *_, beside, longest = sorted(
        (
            2 * k * (rows + columns) / _TWO_ARRIVE,
            2 * k * rows * columns * _MULTIPROCESSORS / _TWO_FLOP,
            shape.nbytes / _STREAMED if shape.nbytes > _KEPT else 0.0,
        )
    )
    return _TWO_START + longest + _TWO_BESIDE * beside + _TWO_SUMS * 4 * ctas * rows * columns / 1e6


#: Rows of any length, in cycles and bytes a cycle, as the cluster-split family was fitted; nothing of this
#: one was measured when this was written: launch; first copy; the cluster's sum, each slice of it
_ANY_LAUNCH, _ANY_COPY, _ANY_SUM, _ANY_SLICE = 1670, 1340, 500, 580
#: operands from the L2 (five sectors for four), partial sums, stores, memory; a loading warp's cycles a copy
_ANY_LOAD, _ANY_PARTIAL, _ANY_STORE, _ANY_MEMORY, _ANY_ISSUE = 42, 11.3, 10, 14, 60
#: of shared memory, a row of a k tile that moves into place: it arrives, is read twice, written, multiplied
_ANY_MOVE = 5.5


def _any_rows_us(config: UnalignedConfig, shape: Shape) -> float:
    instance = config.instance
    rows, columns = config.tile
    tiles_m, tiles_n = config.tiles(shape)
    ctas = tiles_m * tiles_n * config.slices
    resident = max(1, min(2048 // config.threads, (228 * 1024) // (config.shared_bytes + 1024)))
    share = min(resident, max(1.0, ctas / _MULTIPROCESSORS))
    waves = ceil_div(ctas, _at_once(config.cluster, resident))
    steps = ceil_div(k_tiles(shape), config.slices)
    step = max(
        share * rows * columns * TILE_K / _PRODUCTS / _SUSTAINED,
        share * 2 * TILE_K * (rows + columns) / _ANY_LOAD,
        share * 4 * _ANY_ISSUE,
        share * (rows + columns) * _ANY_MOVE * bool(shape.k % 8),
        _ANY_COPY / instance.stages,
    )
    store = share * rows * columns * (8 / 128 + 2 / _ANY_STORE / config.slices)
    once = _ANY_COPY + steps * step + 600 + store
    if config.slices > 1:
        once += _ANY_SUM + _ANY_SLICE * config.slices + 4 * rows * columns / _ANY_PARTIAL
    total = _ANY_LAUNCH + max(waves * once, shape.nbytes / _MULTIPROCESSORS / _ANY_MEMORY)
    return total / _CLOCK_GHZ / 1000


#: what of a k tile's time in memory shows up (bands of 1 took 3 % more than bands of 16)
_ORDER = 0.04


def _fetched_cycles(config: PersistentConfig, shape: Shape) -> float:
    """Cycles in which the memory brings a k tile of all rows and columns that are at work at once."""
    instance, (tiles_m, tiles_n) = config.instance, config.tiles(shape)
    clusters = min(config.clusters(), tiles_m * tiles_n)
    if config.group > 0:
        high = min(config.group, tiles_m)
        wide = min(tiles_n, ceil_div(clusters, high))
        high = max(high, ceil_div(clusters, wide))
    else:  # a Hilbert curve fills squares
        wide = min(-config.group or round(clusters**0.5), tiles_n)
        high = min(tiles_m, ceil_div(clusters, wide))
        wide = max(wide, ceil_div(clusters, high))
    rows, columns = config.tile
    extent = high * rows * instance.cluster_m + wide * columns * instance.cluster_n
    return 2 * TILE_K * extent / _MULTIPROCESSORS / _MEMORY_BYTES


def _warp_specialized_us(config: PersistentConfig, shape: Shape) -> float:
    instance = config.instance
    rows, columns = config.tile
    tiles_m, tiles_n = config.tiles(shape)
    tiles, clusters = tiles_m * tiles_n, config.clusters()
    share = instance.resident
    loaded = 2 * TILE_K * (rows / instance.cluster_n + columns / instance.cluster_m)
    step = _k_tile_cycles(rows, columns, instance.stages, loaded, share)
    step += _ORDER * _fetched_cycles(config, shape)
    split_tiles, units = config.work(shape)
    store = share * 2 * rows * columns / _STORE_BYTES
    mainloop = k_tiles(shape) * step
    # stores drain behind the next tile; what stops the tensor cores is the way to shared memory
    gap = 0.0 if instance.ping_pong else 300 + rows * columns / instance.sharers / 128
    whole = max(mainloop + gap, store) * ceil_div(tiles - split_tiles, clusters)
    split = 0.0
    if units:
        per_cluster = ceil_div(units, clusters) * ceil_div(split_tiles * k_tiles(shape), units) * step
        slices = max(2.0, units / split_tiles)
        split = per_cluster + 2500 + slices * 4 * rows * columns / _L2_BYTES
    memory = shape.nbytes / _MULTIPROCESSORS / _MEMORY_BYTES
    total = _LAUNCH + 600 + _COPY + min(store, 2000) + max(whole + split, memory)
    return total / _CLOCK_GHZ / 1000


def _staged_us(config: FallbackConfig, shape: Shape) -> float:
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


def _lean_us(config: SmallConfig, shape: Shape) -> float:
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

"""What the kernels' static estimates have in common: an H200's constants, steps that several kernels take.

An estimate ranks configurations before any is measured, within a kernel best. It is never reported as a time.
The constants are round numbers at 1.9 GHz.
"""

from __future__ import annotations

from ..problem.launch import AT_ONCE, MULTIPROCESSORS
from ..problem.shape import Shape
from .tma_wgmma import TILE_K

CLOCK_GHZ = 1.9
#: cycles: launch and prologue; one dependent round trip to the L2; a CTA's barrier and sum; the cluster's
START, ROUND_TRIP, CTA_SUM, CLUSTER_SUM = 1500, 700, 150, 700
#: bytes a cycle and multiprocessor from the L2 to the L1, and from the L1 to registers (64-byte row pieces)
L2_BYTES, L1_BYTES = 40, 64
#: cycles of one mma.m16n8k16 on one of four partitions
MMA = 4
#: bytes a microsecond at which a grid of short-lived CTAs stores C
PLAIN_STORES = 2.5e6
#: WGMMA: multiply-adds a cycle and multiprocessor; what sustained clocks and issue leave of them
PRODUCTS, SUSTAINED = 2048, 0.72
#: FLOP and bytes a microsecond that an H200 sustains at its power limit
_FLOP, _BYTES = 790e6, 4.3e6
#: shared memory of a multiprocessor, of which each CTA takes a kilobyte more than it asks for
_SHARED = 228 * 1024


def least_us(shape: Shape) -> float:
    """Microseconds that the machine's peak leaves of any kernel, roughly."""
    return max(shape.flop / _FLOP, shape.nbytes / _BYTES)


def microseconds(cycles: float) -> float:
    """Of cycles at the usual clock."""
    return cycles / CLOCK_GHZ / 1000


def residents(threads: int, shared_bytes: int) -> int:
    """CTAs that a multiprocessor holds at once, at least 1."""
    return max(1, min(2048 // threads, _SHARED // (shared_bytes + 1024)))


def at_once(cluster: int, resident: int) -> int:
    """CTAs that run at once, in whole clusters; `resident` on a multiprocessor."""
    return max(1, AT_ONCE[min(cluster, 8) - 1] * resident // cluster) * cluster


def share_of(ctas: int, resident: int) -> float:
    """CTAs that a busy multiprocessor has at once."""
    return min(resident, max(1.0, ctas / MULTIPROCESSORS))


def multiply_cycles(rows: int, columns: int) -> float:
    """Cycles in which the tensor cores multiply one k tile."""
    return rows * columns * TILE_K / PRODUCTS / SUSTAINED


def read_cycles(rows: int, columns: int) -> float:
    """Cycles in which they read it from shared memory: every 64 rows all of B, and their own part of A."""
    return rows / 64 * 2 * TILE_K * (64 + columns) / 128


def memory_cycles(shape: Shape, bytes_a_cycle: float) -> float:
    """Cycles in which the memory moves all operands, at so many bytes a cycle and multiprocessor."""
    return shape.nbytes / MULTIPROCESSORS / bytes_a_cycle

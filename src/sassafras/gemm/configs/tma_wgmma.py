"""What the TMA + WGMMA families share: layouts, tensor maps, shared memory."""

from __future__ import annotations

from typing import Any

from ..problem.launch import TensorMap, ceil_div
from ..problem.shape import Shape

#: k elements of a tile in shared memory (128 bytes, the row of the swizzle)
TILE_K = 64
#: name -> (A is contiguous along m, B is contiguous along n); the first letter is B's, as in cuBLAS
LAYOUTS = {"tn": (False, False), "nn": (False, True), "tt": (True, False), "nt": (True, True)}
#: widths of WGMMA for which `kernels/ptx_hopper.cuh` has an instruction
WIDTHS = (16, 32, 48, 64, 80, 96, 112, 128, 144, 152, 160, 168, 176, 192, 224, 256)


def majors(layout: str, swap_ab: bool) -> tuple[bool, bool]:
    """Whether the kernel's A and B are contiguous along their rows (MN-major) instead of k."""
    a, b = LAYOUTS[layout]
    return (b, a) if swap_ab else (a, b)


def misaligned(shape: Shape, layout: str) -> str | None:
    """Which operand tensor copies cannot read: rows no multiple of 16 bytes, too long; None when they can."""
    if max(shape.m, shape.n, shape.k) >= 1 << 31:
        return f"{shape}: extents have 32 bits"
    a_mn, b_mn = LAYOUTS[layout]
    rows = {"A": shape.m if a_mn else shape.k, "B": shape.n if b_mn else shape.k, "C": shape.n}
    for name, length in rows.items():
        if length % 8:
            return f"a row of {name} has {length} elements, no multiple of 8: tensor copies need 16-byte rows"
    return None


def operand_map(operand: str, rows: int, k: int, box_rows: int, mn_major: bool, dtype: str) -> TensorMap:
    """The tensor map of the kernel's A or B (`kernels/hopper_tile.cuh`, Operand).

    Args:
        rows: extent along m or n.
        box_rows: rows that one CTA loads of a tile.
    """
    if mn_major:
        return TensorMap(operand, dtype, (rows, k), (2 * rows,), (64, TILE_K))
    return TensorMap(operand, dtype, (k, rows), (2 * k,), (TILE_K, box_rows))


def operand_maps(instance: Any, seen: Shape, k: int, boxes: tuple[int, int]) -> dict[str, TensorMap]:
    """``map_a`` and ``map_b`` of an instance's launch.

    Args:
        seen: the problem as the kernel sees it.
        boxes: rows that one CTA loads of a tile of A, of B.
    """
    extents = (seen.m, seen.n)
    return {
        f"map_{name}": operand_map(name, extent, k, rows, mn_major, instance.dtype)
        for name, extent, rows, mn_major in zip(
            "ab", extents, boxes, majors(instance.layout, instance.swap_ab), strict=True
        )
    }


#: a place that no tile reaches: none is moved
APART = 1 << 30


def last(extent: int, tile: int) -> int:
    """Where the last tile begins: so that it ends with the matrix (`kernels/hopper_tile.cuh`)."""
    return max(0, extent - tile)


def box_rows(extent: int, rows: int, mn_major: bool) -> int:
    """Rows that are loaded of a tile of so many: those inside where the matrix is smaller.

    An operand whose rows are contiguous comes in blocks of 64.
    """
    return rows if mn_major else min(extent, rows)


def staging(columns: int, swap_ab: bool) -> tuple[int, int, int]:
    """(rows, columns) of C in a warp's store buffer, and its bytes (`Staging` in hopper_tile.cuh)."""
    width = columns if swap_ab else next(w for w in (64, 32, 16) if columns % w == 0)
    return (width, 16, 32 * width) if swap_ab else (16, width, 32 * width)


def stored(columns: int, swap_ab: bool, together: bool = False) -> tuple[int, int, int]:
    """`staging` of the persistent kernel: 64 columns if there are so many, the last ones twice.

    Args:
        together: the four warps of a warpgroup fill a buffer of 64 x 64, of which each has a quarter.
    """
    if together:
        return 64, 64, 2048
    return staging(64 if columns >= 64 and not swap_ab else columns, swap_ab)


def stage_bytes(rows: int, columns: int) -> int:
    """Bytes of one k tile of both operands."""
    return 2 * TILE_K * (rows + columns)


def divider(divisor: int) -> tuple[int, int]:
    """(multiplier, shift) with which a kernel divides numbers below 2^31 by `divisor`.

    quotient = (2 * number * multiplier >> 32) >> shift: the multiplier is 2^(31 + shift) / divisor, rounded
    up, which is exact for such numbers when 2^shift is the power of two that is not below the divisor
    (Granlund and Montgomery, "Division by invariant integers using multiplication", 1994). It is given as the
    signed number with its 32 bits.

    Raises:
        ValueError: the divisor is not from 1 to 2^31.
    """
    if not 1 <= divisor <= 1 << 31:
        raise ValueError(f"{divisor}: kernels divide by 1 to 2^31")
    shift = (divisor - 1).bit_length()
    multiplier = -(-(1 << (31 + shift)) // divisor)
    return multiplier - ((multiplier >> 31) << 32), shift


#: upper word of the L2's policy for what is stored, as ``createpolicy.fractional`` makes it (the lower one is
#: 0): the usual one. With C given up first (0x12F00000) products whose C the L2 has no room for gain up to
#: 2.5 %, and the next kernel that reads C loses more
STORE_POLICY = 0x10000000


def k_tiles(shape: Shape) -> int:
    """k tiles of a problem."""
    return ceil_div(shape.k, TILE_K)


def bad_tile(
    rows: int, columns: int, mn_a: bool, mn_b: bool, parts_a: int = 1, parts_b: int = 1
) -> str | None:
    """Why operands cannot be loaded in tiles of this size; None when they can."""
    if columns not in WIDTHS:
        return f"no product is {columns} wide; there are {', '.join(map(str, WIDTHS))}"
    for name, extent, mn, parts in (("A", rows, mn_a, parts_a), ("B", columns, mn_b, parts_b)):
        unit = (64 if mn else 8) * parts
        if extent % unit:
            return f"{extent} rows of {name}'s tile are no multiple of {unit}"
    return None

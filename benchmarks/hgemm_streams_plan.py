"""What `hgemm_streams.py` tries: ways to read an n x k matrix, as one kernel's arguments, and its checksums.

A `Variant` says how; `lay_out` turns it and a matrix into tensor maps, a `Pattern` (the struct in
hgemm_streams.cu, field by field) and a launch; `expected` says what the kernel's checksums are, from the same
tensor maps.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

#: shared memory of a CTA and of a multiprocessor (a CTA takes 1 KB more than it asks for)
CTA_BYTES, MULTIPROCESSOR_BYTES = 227 * 1024, 228 * 1024
#: threads of the kernel; those that read
THREADS, READERS = 160, 128
#: of every so many bytes of a stage the first 2 KB are read
WINDOW, READ = 8192, 2048
HINTS = ("none", "evict_first", "evict_unchanged", "evict_last")
LAYOUTS = ("nn", "tn", "packed", "sweep")


#: of `Pattern`
FIELDS = (
    "stages", "copies", "box_bytes", "rank", "slab_x", "slab_y", "slab_z", "step_x", "step_y", "step_z",
    "copy_x", "copy_y", "copy_z", "hint", "small_copies", "small_bytes", "small_rows", "small_hint",
    "sharers", "cluster", "slabs", "steps", "parted", "slab_stride", "stagger",
)  # fmt: skip


class Pattern(ctypes.Structure):
    """The kernel's last parameter. See hgemm_streams.cu."""

    _fields_ = tuple((name, ctypes.c_int32) for name in FIELDS)


@dataclass(frozen=True)
class Variant:
    """One way to read the matrix.

    Attributes:
        layout: ``nn`` (rows of n elements, one for each k), ``tn`` (rows of k elements, one for each n),
            ``packed`` (a slab lies in one piece, in the order in which it is read), ``sweep`` (what all slabs
            read at step 0, then what they read at step 1, ..). The last two are no layouts, but bounds.
        width: of a slab: n that a CTA reads.
        k: of a stage: 64 or 128.
        boxes: how a stage is cut into copies: ``usual`` (nn: 64 n each, 32 where the width is no multiple of
            64; tn: 64 k each), ``one`` copy by a tensor map of three dimensions, ``half`` the rows a copy
            (tn), ``long`` rows of all k of the stage, one after the other (tn; products could not read that).
        flight: KB of the matrix that a CTA has under way (the ring).
        promotion: bytes that the L2 fetches, says the tensor map: 0, 64, 128, 256.
        hint, small_hint: cache hints of the copies, of `HINTS`.
        small: rows of a second operand that every CTA reads whole, 0: none.
        shared: CTAs of a cluster of two load a half of it each, and send it to both.
        cluster: CTAs of a cluster.
        parts: 0: one CTA a slab. Otherwise so many CTAs, each with an equal part of all steps of all slabs.
        slab_stride: slab number i is i * slab_stride modulo their number.
        stagger: cluster i begins stagger * i steps into its slab.
        resident: CTAs that a multiprocessor may hold.
        overlap: a call may begin while the one before it ends.
    """

    layout: str
    width: int = 128
    k: int = 64
    boxes: str = "usual"
    flight: int = 96
    promotion: int = 256
    hint: str = "none"
    small: int = 0
    small_hint: str = "none"
    shared: bool = False
    cluster: int = 1
    parts: int = 0
    slab_stride: int = 1
    stagger: int = 0
    resident: int = 1
    overlap: bool = False

    def changes(self, base: Variant) -> dict[str, Any]:
        """Fields in which this differs."""
        both = ((f.name, getattr(self, f.name), getattr(base, f.name)) for f in fields(self))
        return {name: value for name, value, other in both if value != other}

    @property
    def lasting(self) -> bool:
        """Whether it leaves lines in the L2 that keep a privilege after the kernel: others pay for it."""
        return "evict_last" in (self.hint, self.small_hint)

    @property
    def name(self) -> str:
        """Its layout, and what differs from `base`."""
        changed = self.changes(Variant(self.layout))
        changed.pop("layout", None)
        return " ".join([self.layout, *(f"{name}={value}" for name, value in changed.items())])


@dataclass(frozen=True)
class Map:
    """A tensor map: extents and box in elements, innermost first; strides in bytes, but for the innermost."""

    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 128

    @property
    def bytes(self) -> int:
        """Of a box."""
        return 2 * math.prod(self.box)


@dataclass(frozen=True)
class Plan:
    """What is launched."""

    matrix: Map
    small: Map
    pattern: dict[str, int]
    grid: int
    shared_bytes: int

    @property
    def stage_bytes(self) -> int:
        """Of the matrix and the small operand."""
        p = self.pattern
        return p["copies"] * p["box_bytes"] + p["small_copies"] * p["small_bytes"]


def _matrix(v: Variant, n: int, k: int) -> tuple[Map, int, dict[str, int]]:
    """(tensor map, copies of a stage, coordinates as Pattern has them)."""
    at: dict[str, int] = {}
    if v.layout == "nn":
        inner = 64 if v.width % 64 == 0 else 32
        if v.boxes == "one":
            at = {"slab_z": v.width // inner, "step_y": v.k}
            box = (inner, v.k, v.width // inner)
            return Map((inner, k, -(-n // inner)), (2 * n, 2 * inner), box, 2 * inner), 1, at
        at = {"slab_x": v.width, "step_y": v.k, "copy_x": inner}
        return Map((n, k), (2 * n,), (inner, v.k), 2 * inner), v.width // inner, at
    if v.layout == "tn":
        if v.boxes == "one":
            at = {"slab_y": v.width, "step_z": v.k // 64}
            return Map((64, n, k // 64), (2 * k, 128), (64, v.width, v.k // 64)), 1, at
        if v.boxes == "long":
            at = {"slab_z": v.width, "step_y": v.k // 64}
            return Map((64, k // 64, n), (128, 2 * k), (64, v.k // 64, v.width)), 1, at
        at = {"slab_y": v.width, "step_x": v.k}
        if v.boxes == "half":
            return Map((k, n), (2 * k,), (64, v.width // 2)), 2, at | {"copy_y": v.width // 2}
        return Map((k, n), (2 * k,), (64, v.width)), v.k // 64, at | {"copy_x": 64}
    rows, slabs, steps = v.width * v.k // 64, n // v.width, k // v.k
    at = (
        {"slab_y": steps * rows, "step_y": rows}
        if v.layout == "packed"
        else {"slab_y": rows, "step_y": slabs * rows}
    )
    return Map((64, n * k // 64), (128,), (64, rows)), 1, at


def reject(v: Variant, n: int, k: int) -> str | None:
    """Why the variant cannot read this matrix; None when it can."""
    if v.layout not in LAYOUTS or v.boxes not in ("usual", "one", "half", "long"):
        return f"no layout {v.layout!r} with boxes {v.boxes!r}"
    if v.hint not in HINTS or v.small_hint not in HINTS or v.promotion not in (0, 64, 128, 256):
        return "no such hint or promotion"
    if v.k not in (64, 128) or v.width % 32 or n % 64 or k % v.k:
        return "k of a stage is 64 or 128, the width a multiple of 32, the matrix whole stages"
    if v.boxes in ("half", "long") and v.layout != "tn":
        return f"boxes {v.boxes!r} are for tn"
    if v.boxes == "half" and v.k != 64:
        return "half the rows a copy: with k of 64"
    if v.layout in ("packed", "sweep") and (n % v.width or v.boxes != "usual"):
        return "whole slabs only, in one copy"
    if v.layout == "nn" and v.boxes == "one" and v.width % 64:
        return "one copy of 64 n a layer"
    matrix, copies, _ = _matrix(v, n, k)
    if any(extent > 256 for extent in matrix.box):
        return f"box {matrix.box}: extents up to 256"
    slabs = -(-n // v.width)
    grid = v.parts or slabs
    if grid % v.cluster or (v.shared and (v.cluster != 2 or not v.small or v.parts)):
        return "clusters of two share a small operand, and walk alike"
    if v.parts and v.stagger:
        return "parts are staggered already"
    if math.gcd(v.slab_stride, slabs) != 1:
        return f"a stride of {v.slab_stride} does not reach all of {slabs} slabs"
    weights = copies * matrix.bytes
    stages = v.flight * 1024 // weights
    wanted = stages * (weights + 2 * v.small * v.k + 16) + 1024
    if stages < 2:
        return f"{v.flight} KB are less than two stages of {weights} bytes"
    if wanted > CTA_BYTES or v.resident * (wanted + 1024) > MULTIPROCESSOR_BYTES:
        return f"{v.resident} CTAs of {wanted} bytes of shared memory"
    return None


def lay_out(v: Variant, n: int, k: int) -> Plan:
    """The launch. Raises ValueError when `reject` has a reason."""
    if why := reject(v, n, k):
        raise ValueError(f"{v.name} of {n} x {k}: {why}")
    matrix, copies, at = _matrix(v, n, k)
    sharers = 2 if v.shared else 1
    rows = v.small // sharers
    small = Map((k, max(v.small, 8)), (2 * k,), (64, max(rows, 8)))
    slabs, stages = -(-n // v.width), v.flight * 1024 // (copies * matrix.bytes)
    pattern = dict.fromkeys(FIELDS, 0) | at | {
        "stages": stages, "copies": copies, "box_bytes": matrix.bytes, "rank": len(matrix.dims),
        "hint": HINTS.index(v.hint), "small_copies": v.k // 64 if v.small else 0,
        "small_bytes": 128 * v.small, "small_rows": rows, "small_hint": HINTS.index(v.small_hint),
        "sharers": sharers, "cluster": v.cluster, "slabs": slabs, "steps": k // v.k,
        "parted": int(v.parts > 0), "slab_stride": v.slab_stride, "stagger": v.stagger,
    }  # fmt: skip
    plan = Plan(matrix, small, pattern, v.parts or slabs, 0)
    # as much as leaves room for so many CTAs on a multiprocessor, and for no more
    least = MULTIPROCESSOR_BYTES // (v.resident + 1) // 128 * 128
    return replace(plan, shared_bytes=max(least, 1024 + stages * (plan.stage_bytes + 16)))


def walk(plan: Plan, cta: int) -> Iterator[tuple[int, int]]:
    """(slab, step) in the order in which a CTA reads them."""
    p = plan.pattern
    slabs, steps = p["slabs"], p["steps"]
    units = range(cta * steps, (cta + 1) * steps)
    if p["parted"]:
        units = range(slabs * steps * cta // plan.grid, slabs * steps * (cta + 1) // plan.grid)
    for unit in units:
        slab, step = divmod(unit, steps)
        yield slab * p["slab_stride"] % slabs, (step + cta // p["cluster"] * p["stagger"]) % steps


def boxed(buffer: np.ndarray, described: Map, at: tuple[int, ...]) -> np.ndarray:
    """The words (uint32) of the box that begins there, row after row; zeros outside of the tensor."""
    strides = (2, *described.strides)
    tensor = np.lib.stride_tricks.as_strided(buffer.view(np.uint16), described.dims[::-1], strides[::-1])
    found = np.zeros(described.box[::-1], np.uint16)
    inside = [slice(a, min(a + b, d)) for a, b, d in zip(at, described.box, described.dims, strict=True)][
        ::-1
    ]
    part = tensor[tuple(inside)]
    found[tuple(slice(0, length) for length in part.shape)] = part
    return found.reshape(-1).view(np.uint32)


def expected(plan: Plan, matrix: np.ndarray, small: np.ndarray, cta: int) -> int:
    """A CTA's checksum, modulo 2^32: words read of its step number i, times 2 i + 1.

    Args:
        matrix, small: contiguous arrays of 16-bit elements.

    The swizzle moves words within 1 KB, and whole KB are summed up: it need not be known here.
    """
    p, total = plan.pattern, 0
    for number, (slab, step) in enumerate(walk(plan, cta)):
        stage = []
        for copy in range(p["copies"]):
            at = tuple(slab * p[f"slab_{c}"] + step * p[f"step_{c}"] + copy * p[f"copy_{c}"] for c in "xyz")
            stage.append(boxed(matrix, plan.matrix, at[: p["rank"]]))
        for copy in range(p["small_copies"]):
            for part in range(p["sharers"]):
                k = 64 * (step * p["small_copies"] + copy)
                stage.append(boxed(small, plan.small, (k, part * p["small_rows"])))
        words = np.concatenate(stage).astype(np.uint64)
        read = sum(int(words[i // 4 : (i + READ) // 4].sum()) for i in range(0, plan.stage_bytes, WINDOW))
        total += read * (2 * number + 1)
    return total & 0xFFFFFFFF


def variants(layout: str) -> list[Variant]:
    """The base of a layout first, then one change (or what belongs together) at a time; the base again."""
    base = Variant(layout)
    if layout in ("packed", "sweep"):
        return [base, replace(base, flight=192), replace(base, k=128, flight=192)]
    found: list[dict[str, Any]] = [
        *({"flight": kb} for kb in (32, 64, 128, 192)),
        {"width": 64}, {"width": 64, "flight": 48, "resident": 2}, {"width": 64, "resident": 2},
        {"width": 96}, {"width": 256}, {"width": 256, "flight": 192},
        {"k": 128}, {"k": 128, "flight": 192}, {"k": 128, "boxes": "one"},
        *({"hint": hint} for hint in HINTS[1:]),
        *({"promotion": size} for size in (0, 64, 128)),
        {"stagger": 1}, {"stagger": 2}, {"stagger": 37}, {"slab_stride": 17}, {"slab_stride": 65},
        {"parts": 132}, {"parts": 132, "flight": 192}, {"parts": 264, "resident": 2, "width": 64},
        {"cluster": 2}, {"overlap": True},
        {"small": 64}, {"small": 128}, {"small": 64, "shared": True, "cluster": 2},
        {"small": 128, "shared": True, "cluster": 2}, {"small": 64, "small_hint": "evict_last"},
        {"small": 64, "small_hint": "evict_last", "hint": "evict_first"},
    ]  # fmt: skip
    if layout == "nn":
        found.append({"boxes": "one"})
    else:
        found += [{"boxes": "half"}, {"k": 128, "boxes": "long"}]
    return [base, *(replace(base, **changed) for changed in found), base]


#: fields that are chosen together when changes are put together
AXES = (
    ("width", "resident"), ("k", "boxes"), ("flight",), ("hint",), ("promotion",), ("stagger",),
    ("slab_stride",), ("parts",), ("overlap",),
)  # fmt: skip


def together(base: Variant, gains: list[tuple[float, Variant]], n: int, k: int) -> list[Variant]:
    """The changes that gained, put together: the best, with the second, with the third, ..; then all of it
    with a small operand, which each CTA reads by itself, or clusters of two share.

    Args:
        gains: (time of the base over the variant's, the variant), those that count as a gain only.
    """
    best, taken, made = base, set[str](), []
    for _, variant in sorted(gains, key=lambda gain: -gain[0]):
        changed = variant.changes(base)
        axes = {axis for axis in AXES if set(axis) & set(changed)}
        names = {name for axis in axes for name in axis}
        if not changed or set(changed) - names or names & taken:
            continue
        tried = replace(best, **changed)
        if reject(tried, n, k):
            continue
        best, taken = tried, taken | names
        made.append(best)
    for small in (64, 128):
        for one in (best, replace(best, flight=min(best.flight, 96))):
            with_small = [replace(one, small=small), replace(one, small=small, shared=True, cluster=2)]
            made += [v for v in with_small if not reject(v, n, k)]
    return [v for v in dict.fromkeys(made) if v != base]

"""What the bring-up of new kernels runs, and what a wrong result says about them. Needs no GPU."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..configs import registry
from ..configs.persistent import PersistentConfig
from ..configs.persistent_instances import PersistentInstance
from ..configs.registry import Config, Instance
from ..configs.split_k import SplitKConfig
from ..configs.split_k_instances import SplitKInstance
from ..configs.split_k_two_pass import TwoPassSplitKConfig
from ..configs.tma_wgmma import majors
from ..configs.two_pass_reduction import PartialsInstance
from ..configs.unaligned import BANDS, UnalignedConfig, UnalignedInstance
from ..problem.shape import Shape

#: macros of a variant, by name. ``plain`` is what ships; ``watchdog`` ends a hang and names the barrier.
VARIANTS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "watchdog": ("SASSAFRAS_WATCHDOG",),
    "offsets": ("SASSAFRAS_MN_VARIANT=1",),
    "registers": ("SASSAFRAS_KEEP_REGISTERS",),
    "release": ("SASSAFRAS_REMOTE_RELEASE",),
}
#: what the watchdog's tags mean (`barrier_wait<TAG>` in the kernels)
TAGS = {
    1: "loader waits for an empty stage",
    2: "multiplier waits for a full stage",
    3: "multiplier waits for its turn",
    4: "multiplier waits for the sums of the other slices",
}


@dataclass(frozen=True, slots=True)
class BringupJob:
    """One configuration, in one variant, on some shapes."""

    config: str
    variant: str
    shapes: tuple[str, ...]

    @property
    def name(self) -> str:
        """Unique in a run."""
        return f"{self.config} [{self.variant}]"


def hopper_instances() -> Sequence[Instance]:
    """The TMA + WGMMA families' instances, simplest first: what fails for all shows early."""
    found: list[SplitKInstance | PersistentInstance | UnalignedInstance] = [
        i
        for i in (*registry.INSTANCES, *registry.OTHER_INSTANCES, *registry.UNPROVEN_INSTANCES)
        if isinstance(i, SplitKInstance | PersistentInstance | UnalignedInstance) and not i.epilogue
    ]
    order = (SplitKInstance, PartialsInstance, PersistentInstance, UnalignedInstance)
    return sorted(
        found,
        key=lambda i: (order.index(type(i)), getattr(i, "dtype", "fp16") != "fp16", i.rows, i.columns),
    )


def configs_of(instance: Instance) -> list[Config]:
    """A few configurations that use every path of an instance."""
    if isinstance(instance, PartialsInstance):  # with second kernels for few parts and many
        splits = ((1, 1, 2), (1, 1, 7), (1, 1, 12), (1, 1, 16))
        if instance.shared:
            splits = ((2, 1, 3), (1, 2, 8), (2, 1, 14), (1, 2, 16))
        return [TwoPassSplitKConfig(instance, 1, *split) for split in splits]
    if isinstance(instance, SplitKInstance):
        alone: tuple[tuple[int, ...], ...] = (
            (1,),
            (2,),
            (3,),
            (7,),
            (8,),
            (2, 1, 1, 2),
            (8, 1, 1, 2),
            (1, 1, 1, 4),
            (1, 1, 1, 7),
            (4, 1, 1, 3),
        )
        shared = (
            (1, 2, 1),
            (1, 1, 2),
            (1, 2, 2),
            (2, 2, 2),
            (1, 1, 4),
            (1, 4, 1),
            (1, 2, 1, 4),
            (2, 1, 2, 2),
            (1, 2, 2, 5),
        )
        clusters = shared if instance.shared else alone
        banded = [] if instance.shared else [SplitKConfig(instance, band=band) for band in (3, 4)]
        return [*(SplitKConfig(instance, *cluster) for cluster in clusters), *banded]
    if isinstance(instance, PersistentInstance):
        return [PersistentConfig(instance, g, k) for g, k in ((8, 1), (4, 3), (8, 0))]
    if isinstance(instance, UnalignedInstance):
        split = [UnalignedConfig(instance, slices) for slices in (1, 2, 5, 8)]
        return [*split, *(UnalignedConfig(instance, band=band) for band in BANDS)]
    return []


def shapes_for(config: Config) -> list[Shape]:
    """Exact and boundary shapes: one tile, many k tiles, tails everywhere, many tiles a CTA."""
    rows, columns = config.tile
    if config.swapped:
        rows, columns = columns, rows
    if isinstance(config, UnalignedConfig):
        odd = (
            Shape(rows, columns, 64),
            Shape(rows, columns, 1024),
            Shape(rows + 1, columns + 3, 521),
            Shape(5, 7, 9),
            Shape(61, 67, 71),
            Shape(3 * rows + 23, 2 * columns + 42, 2055),
            Shape(1031, 2053, 394),
            Shape(4095, 3081, 137),
            Shape(333, 776, 999),
            Shape(333, 777, 1000),
        )
        return [s for s in odd if config.why_illegal(s) is None]
    candidates: tuple[Shape, ...] = (
        Shape(rows, columns, 64),
        Shape(rows, columns, 1024),
        Shape(rows + 8, columns + 8, 520),
        Shape(8, 16, 8),
        Shape(3 * rows + 24, 2 * columns + 40, 2056),
        Shape(1032, 2056, 392),
        Shape(4096, 3080, 136),
    )
    if isinstance(config, TwoPassSplitKConfig):  # enough k for each part; tails of k, of m and n
        long = 64 * config.parts
        candidates += (
            Shape(rows, columns, 8 * long),
            Shape(3 * rows + 24, 2 * columns + 40, 2 * long - 56),
            Shape(1032, 2056, long),
            Shape(8, 16, 3 * long - 8),
        )
    if getattr(config.instance, "lead", 0):
        candidates += (Shape(4096, 3080, 264), Shape(4104, 3080, 1032))  # several tiles a CTA, more k tiles
    return [s for s in candidates if config.why_illegal(s) is None]


def jobs(variant: str = "plain", instances: Iterable[Instance] | None = None) -> list[BringupJob]:
    """All that a bring-up runs in one variant."""
    return [
        BringupJob(config.name, variant, tuple(map(str, shapes)))
        for instance in (hopper_instances() if instances is None else instances)
        for config in configs_of(instance)
        if (shapes := shapes_for(config))
    ]


def variants_for(instance: Instance) -> list[str]:
    """Which variants may tell what is wrong with an instance that fails as it ships."""
    found = ["watchdog"]
    if isinstance(instance, SplitKInstance | PersistentInstance):
        if any(majors(instance.layout, instance.swapped)):
            found.append("offsets")
        if isinstance(instance, PersistentInstance):
            if instance.consumers > 1:
                found.append("registers")
            if instance.cluster > 1:
                found.append("release")
    return found


def diagnose(expected: np.ndarray, got: np.ndarray, tile: tuple[int, int]) -> dict[str, Any]:
    """What is wrong with a result, in few words.

    Args:
        expected: FP64 (m, n).
        got: what the kernel stored, FP64 (m, n); NaN where it stored nothing.
        tile: rows and columns of C that a CTA computes.

    Returns:
        ``wrong`` (fraction of elements), ``error`` (largest, over the RMS of expected), and ``pattern``.
    """
    scale = float(np.sqrt(np.mean(expected**2))) or 1.0
    difference = np.abs(got - expected) / scale
    bad = ~(difference <= 2e-2)
    finite = difference[np.isfinite(difference)]
    found: dict[str, Any] = {
        "wrong": round(float(bad.mean()), 5),
        "error": round(float(finite.max()), 5) if finite.size else None,
    }
    if not bad.any():
        return {**found, "pattern": ""}
    notes = []
    missing = np.isnan(got)
    if missing.any():
        notes.append(f"{missing.mean():.0%} NaN (never stored, or read before it arrived)")
    for axis, name, extent in ((1, "rows", tile[0]), (0, "columns", tile[1])):
        spoilt = bad.any(axis=axis)
        if spoilt.all():
            continue
        notes.append(f"wrong {name}: {_runs(np.nonzero(spoilt)[0])}")
        residues = sorted({int(i) % extent for i in np.nonzero(spoilt)[0]})
        if len(residues) < extent:
            notes.append(f"modulo the tile's {extent}: {_runs(np.array(residues))}")
    clean = np.nan_to_num(got, posinf=0.0, neginf=0.0)
    if clean.std() > 0 and expected.std() > 0:
        correlation = float(np.corrcoef(clean.ravel(), expected.ravel())[0, 1])
        notes.append(f"correlation {correlation:.3f}")
        slope = float((clean * expected).sum() / (expected**2).sum())
        if correlation > 0.1 and correlation < 0.999:
            notes.append(f"slope {slope:.3f} (part of k?)")
        elif correlation >= 0.999:
            notes.append(f"slope {slope:.3f} (a factor?)")
    for name, mapping in (("columns", _moved(expected, got)), ("rows", _moved(expected.T, got.T))):
        if mapping:
            notes.append(f"{name} moved: {mapping}")
    return {**found, "pattern": "; ".join(notes)}


def _runs(numbers: np.ndarray, most: int = 6) -> str:
    """``0-7, 16-23`` of sorted whole numbers; at most so many runs."""
    if not len(numbers):
        return ""
    breaks = np.nonzero(np.diff(numbers) != 1)[0]
    starts = [numbers[0], *numbers[breaks + 1]]
    ends = [*numbers[breaks], numbers[-1]]
    parts = [f"{a}-{b}" if a != b else f"{a}" for a, b in zip(starts, ends, strict=True)]
    return ", ".join(parts[:most]) + (f", and {len(parts) - most} more" if len(parts) > most else "")


def _moved(expected: np.ndarray, got: np.ndarray, most: int = 256) -> str:
    """Which columns of `expected` the first ones of `got` hold, where they are others."""
    width = min(expected.shape[1], most)
    rows = slice(0, min(16, expected.shape[0]))
    have, want = got[rows, :width], expected[rows, :width]
    scale = np.abs(want).max() or 1.0
    close = (np.abs(have[:, :, None] - want[:, None, :]) <= 1e-2 * scale).all(axis=0)  # (got, expected)
    source = np.where(close.any(axis=1), close.argmax(axis=1), -1)
    moved = [(i, int(s)) for i, s in enumerate(source) if s >= 0 and s != i]
    if not moved:
        return ""
    runs: list[list[int]] = []
    for i, s in moved:
        if runs and i == runs[-1][1] + 1 and s - i == runs[-1][2]:
            runs[-1][1] = i
        else:
            runs.append([i, i, s - i])
    parts = [f"{a}-{b} hold {a + shift}-{b + shift}" for a, b, shift in runs]
    return ", ".join(parts[:8]) + (f", and {len(parts) - 8} more" if len(parts) > 8 else "")


def probe_k(m: int, n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs that show how k is paired: C[i, j] should be i % k. FP64 A (m, k), B (k, n); k at most 2048."""
    a = np.zeros((m, k))
    a[np.arange(m), np.arange(m) % k] = 1.0
    return a, np.repeat(np.arange(k, dtype=np.float64)[:, None], n, axis=1)


def read_probe(got: np.ndarray, k: int) -> str:
    """What `probe_k` says: which k of B meets each k of A, where it is another; "" when all is well."""
    notes = []
    for column in sorted({0, 8, 64, got.shape[1] - 1} & set(range(got.shape[1]))):
        values = got[:k, column]
        right = np.arange(len(values)) % k
        wrong = np.nonzero(~(values == right))[0]
        if len(wrong):
            pairs = ", ".join(f"{i} meets {values[i]:g}" for i in wrong[:6])
            notes.append(f"column {column}: {len(wrong)} of {len(values)} k wrong, {pairs}")
    return "; ".join(notes[:3])

"""A finished capture on disk: ``captured.json``, cubins, and integer tensors. Data, never code."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sassafras.core import WorkloadError
from sassafras.core.errors import os_errors, reason

from . import FORMAT

NAME = "captured.json"
_DIGEST = re.compile(r"[0-9a-f]{64}")
#: larger than any valid index
_MOST_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class CapturedShape:
    """What a kernel was launched with, and how often.

    Attributes:
        id: short and unique within the kernel.
        grid: blocks (Triton's programs) along x, y, z.
        args: by parameter name: a number, or a buffer (dtype, shape, strides, aligned, and of integers low,
            high, and data: the sha256 that names its contents).
        count: launches, those that the autotuner made apart.
        in_graph: how many of them went into a CUDA graph, whose replays are not counted.
        timed, gpu_us: launches timed with CUDA events, and their sum in microseconds.
        same_memory: pairs of arguments that pointed to the same address.
    """

    id: str
    grid: tuple[int, int, int]
    args: Mapping[str, Any]
    count: int
    in_graph: int = 0
    timed: int = 0
    gpu_us: float = 0.0
    same_memory: tuple[tuple[str, str], ...] = ()

    @property
    def mean_us(self) -> float | None:
        """Mean GPU time of the timed launches, microseconds; None where none was timed."""
        return self.gpu_us / self.timed if self.timed else None


@dataclass(frozen=True, slots=True)
class CapturedVariant:
    """One compiled kernel: a function, its specialisation, its constants and options.

    Attributes:
        digest: sha256 of the cubin.
        name: entry of the cubin.
        function: the Python function.
        config: the autotuner's configuration, as text; empty without one.
        bench_us: what the autotuner measured for it, microseconds.
        roles: in, out or inout by argument; arguments that are missing are taken for inout.
        shapes: the most launched first.
        uncounted: launches of further shapes, over the limit.
        problem: why it cannot be made a workload, or "".
        facts: everything else (threads, shared_bytes, ctas, scratch_bytes, signature, constants, ...).
    """

    digest: str
    name: str
    function: str
    config: str
    bench_us: float | None
    roles: Mapping[str, str]
    shapes: tuple[CapturedShape, ...]
    uncounted: int
    problem: str
    facts: Mapping[str, Any] = field(repr=False)

    @property
    def count(self) -> int:
        """Launches of all shapes."""
        return sum(shape.count for shape in self.shapes) + self.uncounted

    @property
    def gpu_us(self) -> float | None:
        """Estimated GPU time of all its launches: mean of the timed ones times launches; None if none was."""
        means = [(s.mean_us, s.count) for s in self.shapes if s.count]
        if not means or all(mean is None for mean, _ in means):
            return None
        return sum(mean * count for mean, count in means if mean is not None)

    @property
    def label(self) -> str:
        """A name that tells variants of one function apart."""
        return f"{self.name}-{self.digest[:8]}"


@dataclass(frozen=True)
class Captured:
    """A capture.

    Attributes:
        folder: where its cubins and data lie.
        variants: the one with the most GPU time (or launches, where nothing was timed) first.
        wall_s: seconds between the first and the last launch, of the process for which they were most.
        gpu, triton, program: where it was recorded.
        problems: what went wrong while recording, with counts.
    """

    folder: Path
    variants: tuple[CapturedVariant, ...]
    wall_s: float
    gpu: str
    triton: str
    program: str
    problems: Mapping[str, int]

    @property
    def timed(self) -> bool:
        """Were GPU times recorded?"""
        return any(variant.gpu_us is not None for variant in self.variants)

    def shares(self) -> dict[str, float]:
        """Each launched variant's share of the Triton GPU time, or of launches where none was timed."""
        weights = {
            v.digest: (v.gpu_us or 0.0) if self.timed else float(v.count) for v in self.variants if v.count
        }
        total = sum(weights.values()) or 1.0
        return {digest: weight / total for digest, weight in weights.items()}

    def find(self, which: str) -> CapturedVariant:
        """The variant with this label, digest (or its beginning) or, where there is one only, name.

        Raises:
            WorkloadError: none, or several.
        """
        found = [v for v in self.variants if which in (v.label, v.digest)]
        if len(which) >= 6:
            found = found or [v for v in self.variants if v.digest.startswith(which)]
        found = found or [v for v in self.variants if which in (v.name, v.function) and v.count]
        if len(found) != 1:
            names = ", ".join(v.label for v in (found or self.variants)[:12])
            raise WorkloadError(
                f"{len(found)} captured kernels are called {which!r}",
                where=str(self.folder),
                hint=f"there are {names}",
            )
        return found[0]

    def cubin(self, variant: CapturedVariant) -> bytes:
        """A variant's code.

        Raises:
            WorkloadError: it is missing or damaged.
        """
        path = self.folder / f"{variant.digest}.cubin"
        with os_errors("cannot read a captured cubin", path, WorkloadError):
            data = path.read_bytes()
        if hashlib.sha256(data).hexdigest() != variant.digest:
            raise WorkloadError("a captured cubin is damaged", where=str(path))
        return data

    def ptx(self, variant: CapturedVariant) -> str:
        """What ptxas made a variant's code of.

        Raises:
            WorkloadError: it is missing, or no text.
        """
        path = self.folder / f"{variant.digest}.ptx"
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise WorkloadError(
                f"the capture holds no PTX of this kernel: {reason(error)}",
                where=str(path),
                hint="record it again",
            ) from error


def read(path: str | Path) -> Captured:
    """Read a finished capture.

    Args:
        path: its folder, or the ``captured.json`` in it.

    Raises:
        WorkloadError: there is none, or it is damaged or of another version.
    """
    path = Path(path)
    if path.is_dir():
        path /= NAME
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise WorkloadError("the capture's index is too large", where=str(path))
        facts = json.loads(path.read_text(encoding="utf-8"))
        if facts["format"] != FORMAT:
            raise WorkloadError(
                f"a capture of format {facts['format']!r}",
                where=str(path),
                hint=f"this version reads {FORMAT}",
            )
        names = {name: str(facts[name]) for name in ("gpu", "triton", "program")}
        made = tuple(variant(v) for v in facts["variants"])
        captured = Captured(
            path.parent, made, float(facts["wall_s"]), **names, problems=dict(facts["problems"])
        )
    except OSError as error:
        raise WorkloadError(
            f"cannot read the capture: {error.strerror}",
            where=str(path),
            hint="make one with `sassafras capture`",
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WorkloadError(
            f"this is no sound capture: {reason(error)}", where=str(path), hint="record it again"
        ) from error
    order = captured.shares()
    ranked = sorted(captured.variants, key=lambda v: (-order.get(v.digest, -1.0), v.digest))
    return replace(captured, variants=tuple(ranked))


def variant(row: Mapping[str, Any]) -> CapturedVariant:
    """A variant from its JSON. Raises ValueError, KeyError or TypeError for anything odd."""
    if not _DIGEST.fullmatch(row["digest"]):
        raise ValueError("a digest is no sha256")
    shapes = sorted((shape(s) for s in row["shapes"]), key=lambda s: (-s.count, s.id))
    known = {"digest", "name", "function", "config", "bench_us", "roles", "shapes", "uncounted", "problem"}
    bench = row["bench_us"]
    return CapturedVariant(
        row["digest"],
        str(row["name"]),
        str(row["function"]),
        str(row["config"]),
        None if bench is None else float(bench),
        {str(k): str(v) for k, v in row["roles"].items()},
        tuple(shapes),
        int(row["uncounted"]),
        str(row["problem"]),
        {k: v for k, v in row.items() if k not in known},
    )


def shape(row: Mapping[str, Any]) -> CapturedShape:
    """A shape from its JSON. Raises as `variant` does."""
    x, y, z = (int(n) for n in row["grid"])
    if min(x, y, z) < 1:
        raise ValueError("a grid is empty")
    names = [v.get("data") for v in row["args"].values() if isinstance(v, dict)]
    for name in names:
        if name is not None and not _DIGEST.fullmatch(name):
            raise ValueError("a data file's name is no sha256")
    pairs = tuple((str(a), str(b)) for a, b in row.get("same_memory", ()))
    return CapturedShape(
        str(row["id"]),
        (x, y, z),
        dict(row["args"]),
        int(row["count"]),
        int(row["in_graph"]),
        int(row["timed"]),
        float(row["gpu_us"]),
        pairs,
    )

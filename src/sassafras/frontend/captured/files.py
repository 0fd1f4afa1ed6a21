"""A finished capture on disk: ``captured.json``, cubins, and integer tensors. Data, never code."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sassafras.core import WorkloadError
from sassafras.core.errors import os_errors, reason

from . import FORMAT

NAME = "captured.json"
_DIGEST = re.compile(r"[0-9a-f]{64}")
#: larger than any valid index, cubin or PTX of a capture
_MOST_BYTES = 256 << 20
#: larger than any valid number of microseconds or seconds
_MOST = 1e18


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
        """Estimated GPU time of all its launches, those of a shape that was not timed (the first of a shape
        never is) by the mean of the timed ones; None if none was."""
        timed = sum(shape.timed for shape in self.shapes)
        if not timed:
            return None
        mean = sum(shape.gpu_us for shape in self.shapes if shape.timed) / timed
        known = sum(s.count * s.mean_us for s in self.shapes if s.mean_us is not None)
        return known + mean * (self.count - sum(s.count for s in self.shapes if s.timed))

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
        index: name of the file in `folder` that it was read from.
    """

    folder: Path
    variants: tuple[CapturedVariant, ...]
    wall_s: float
    gpu: str
    triton: str
    program: str
    problems: Mapping[str, int]
    index: str = NAME

    @property
    def timed(self) -> bool:
        """Were GPU times recorded?"""
        return any(variant.gpu_us is not None for variant in self.variants)

    def shares(self) -> dict[str, float]:
        """Each launched variant's share of the Triton GPU time (of one without a time by the mean launch), or
        of launches where none was timed."""
        launched = [variant for variant in self.variants if variant.count]
        timed = [(v.gpu_us, v.count) for v in launched if v.gpu_us is not None]
        mean = sum(us for us, _ in timed) / sum(count for _, count in timed) if timed else 1.0
        weights = {v.digest: mean * v.count if v.gpu_us is None else v.gpu_us for v in launched}
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
            data = contents(path)
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
            return contents(path).decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise WorkloadError(
                f"the capture holds no PTX of this kernel: {reason(error)}",
                where=str(path),
                hint="record it again",
            ) from error


def contents(path: Path, most: float = _MOST_BYTES) -> bytes:
    """Bytes of a capture's file, at most so many. Raises OSError where it is none: a pipe would never end."""
    facts = path.stat()
    if not stat.S_ISREG(facts.st_mode) or facts.st_size > most:
        raise OSError(errno.EINVAL, "no file, or too large a one")
    return path.read_bytes()


def read(path: str | Path) -> Captured:
    """Read a finished capture.

    Args:
        path: its folder, or the ``captured.json`` in it.

    Raises:
        WorkloadError: there is none, or it is damaged or of another version.
    """
    path = Path(path)
    try:
        if path.is_dir():
            path /= NAME
        facts = json.loads(contents(path))
        if facts["format"] != FORMAT:
            raise WorkloadError(
                f"a capture of format {facts['format']!r}",
                where=str(path),
                hint=f"this version reads {FORMAT}",
            )
        return parse(path.parent, facts, path.name)
    except OSError as error:
        raise WorkloadError(
            f"cannot read the capture: {reason(error)}",
            where=str(path),
            hint="make one with `sassafras capture`",
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise WorkloadError(
            f"this is no sound capture: {reason(error)}", where=str(path), hint="record it again"
        ) from error


def parse(folder: Path, facts: Mapping[str, Any], index: str = NAME) -> Captured:
    """A capture from its JSON. Raises ValueError, KeyError, TypeError or AttributeError for anything odd."""
    made = tuple(variant(v) for v in facts["variants"])
    if not made or len({v.digest for v in made}) < len(made):
        raise ValueError("it holds no kernel, or one twice")
    names = {name: text(facts[name]) for name in ("gpu", "triton", "program")}
    problems = {text(what): whole(count) for what, count in facts["problems"].items()}
    captured = Captured(folder, made, number(facts["wall_s"]), **names, problems=problems, index=index)
    order = captured.shares()
    ranked = sorted(captured.variants, key=lambda v: (-order.get(v.digest, -1.0), v.digest))
    return replace(captured, variants=tuple(ranked))


def variant(row: Mapping[str, Any]) -> CapturedVariant:
    """A variant from its JSON. Raises as `parse` does."""
    if not _DIGEST.fullmatch(row["digest"]):
        raise ValueError("a digest is no sha256")
    shapes = sorted((shape(s) for s in row["shapes"]), key=lambda s: (-s.count, s.id))
    known = {"digest", "name", "function", "config", "bench_us", "roles", "shapes", "uncounted", "problem"}
    for name, least in (("threads", 1), ("ctas", 1), ("shared_bytes", 0), ("scratch_bytes", 0)):
        whole(row[name], least)
    if not all(isinstance(row[name], dict) for name in ("signature", "constants")):
        raise ValueError("a signature is no table")
    if not isinstance(row["source_hash"], str):
        raise ValueError("a source has no hash")
    bench = row["bench_us"]
    return CapturedVariant(
        row["digest"],
        text(row["name"]),
        text(row["function"]),
        text(row["config"]),
        # the autotuner's own of a configuration that does not run
        bench if bench is None or bench == math.inf else number(bench),
        {str(k): str(v) for k, v in row["roles"].items()},
        tuple(shapes),
        whole(row["uncounted"]),
        text(row["problem"]),
        {k: v for k, v in row.items() if k not in known},
    )


def shape(row: Mapping[str, Any]) -> CapturedShape:
    """A shape from its JSON. Raises as `parse` does."""
    x, y, z = (whole(n, 1) for n in row["grid"])
    for value in row["args"].values():
        if isinstance(value, dict) and "unsupported" not in value:
            _buffer(value)
    pairs = tuple((str(a), str(b)) for a, b in row.get("same_memory", ()))
    return CapturedShape(
        text(row["id"]),
        (x, y, z),
        dict(row["args"]),
        whole(row["count"]),
        whole(row["in_graph"]),
        whole(row["timed"]),
        number(row["gpu_us"]),
        pairs,
    )


def _buffer(facts: Mapping[str, Any]) -> None:
    """Raises as `parse` does unless these describe a buffer."""
    if not isinstance(facts["dtype"], str) or not isinstance(facts["shape"], list):
        raise ValueError("a buffer has no data type or shape")
    sizes, strides = [whole(n) for n in facts["shape"]], facts.get("strides")
    if strides is not None and len([whole(n, -(2**63)) for n in strides]) != len(sizes):
        raise ValueError("a buffer has other strides than axes")
    if (name := facts.get("data")) is not None and not _DIGEST.fullmatch(name):
        raise ValueError("a data file's name is no sha256")
    if "low" in facts and whole(facts["low"], -(2**63)) > whole(facts["high"], -(2**63), 2**64):
        raise ValueError("a buffer's lowest value is above its highest")


def whole(value: Any, least: int = 0, most: int = 2**63) -> int:
    """A whole number from `least` to below `most`. Raises ValueError for anything else."""
    if type(value) is not int or not least <= value < most:
        raise ValueError(f"{value!r:.40} where a whole number from {least} up belongs")
    return value


def number(value: Any) -> float:
    """A finite number of seconds or microseconds. Raises ValueError for anything else."""
    if type(value) not in (int, float) or not 0 <= value < _MOST:
        raise ValueError(f"{value!r:.40} where a number from 0 up belongs")
    return float(value)


def text(value: Any) -> str:
    """As text that can be printed and stored: half a surrogate pair is a question mark."""
    return str(value).encode("utf-8", "replace").decode("utf-8")

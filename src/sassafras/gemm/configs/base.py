"""What the configurations of all families have in common: names, roles of operands, how launches follow."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, TypeVar

from sassafras.core import SassafrasError

from ..problem.launch import Launch, ceil_div
from ..problem.shape import Shape

#: dynamic shared memory of which a multiprocessor cannot give two CTAs
SOLO_BYTES = 116 * 1024


@dataclass(frozen=True, slots=True, order=True)
class Mode:
    """How launches of a kernel follow the launch before them.

    Attributes:
        overlap: programmatic stream serialization: CTAs may start while the launch before is still at work,
            and wait for its end before they touch global memory. Hides the way from one launch to the next.
        late: the kernel lets its own successor start when it has read its operands, not right after its own
            wait: waiting CTAs then do not crowd onto the multiprocessors that are free early.
        solo: shared memory is padded so that a multiprocessor holds one CTA, for the same reason.
    """

    overlap: bool = False
    late: bool = False
    solo: bool = False

    def __str__(self) -> str:
        letters = "o" * self.overlap + "l" * self.late + "s" * self.solo
        return f"+{letters}" if letters else ""

    @classmethod
    def split(cls, name: str) -> tuple[str, Mode]:
        """A configuration's name without its mode, and the mode. Raises SassafrasError."""
        stem, plus, letters = name.partition("+")
        mode = cls("o" in letters, "l" in letters, "s" in letters)
        if str(mode) != plus + letters or (letters and not mode.overlap):
            raise SassafrasError("modes are +o, +ol, +os, +ols (overlap, late, solo)", where=name)
        return stem, mode

    def applied(self, launch: Launch) -> Launch:
        """The launch in this mode."""
        scalars = {**launch.scalars, "late": int(self.late)} if "late" in launch.scalars else launch.scalars
        shared = max(launch.shared_bytes, SOLO_BYTES) if self.solo else launch.shared_bytes
        return replace(launch, scalars=scalars, shared_bytes=shared, overlap=self.overlap)


PLAIN = Mode()


class Configuration:
    """Base of every family's configuration: an instance (the compiled kernel) and what is chosen at launch.

    A family gives `stem`, `_parse`, `why_illegal`, `dominated`, `_launch`,
    `estimate_us`.
    """

    __slots__ = ()
    #: the kernel's name
    FAMILY: ClassVar[str]
    #: whether the kernel knows when to let its successor start
    HAS_LATE: ClassVar[bool] = False

    instance: Any
    mode: Mode

    @property
    def stem(self) -> str:
        """The name without the mode."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """For example ``cs_tn_64x128_s8q1/c2+ol``: instance, choices at launch, mode."""
        return f"{self.stem}{self.mode}"

    @classmethod
    def parse(cls, name: str) -> Self:
        """The configuration of a `name`. Raises SassafrasError."""
        stem, mode = Mode.split(name)
        return replace(cls._parse(stem), mode=mode)  # type: ignore[type-var]

    @classmethod
    def _parse(cls, stem: str) -> Self:
        raise NotImplementedError

    @property
    def instances(self) -> tuple[Any, ...]:
        """The kernels that a call launches, in order."""
        return (self.instance,)

    @property
    def slices(self) -> int:
        """Into how many parts k is split within a cluster."""
        raise NotImplementedError

    @property
    def layout(self) -> str:
        """How A and B have to lie in memory: the first letter says it of B, the second of A."""
        return str(self.instance.layout)

    @property
    def dtype(self) -> str:
        """``fp16`` or ``bf16``."""
        return str(getattr(self.instance, "dtype", "fp16"))

    @property
    def swapped(self) -> bool:
        """A and B change roles: the kernel computes the transpose of C."""
        return bool(getattr(self.instance, "swapped", False))

    @property
    def threads(self) -> int:
        """Threads a CTA."""
        return int(self.instance.threads)

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of a CTA's tile (of the swapped problem, if swapped)."""
        return self.instance.rows, self.instance.columns

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory a CTA needs."""
        return int(self.instance.shared_bytes)

    def seen(self, shape: Shape) -> Shape:
        """The problem as the kernel sees it: m and n exchanged when swapped."""
        return Shape(shape.n, shape.m, shape.k) if self.swapped else shape

    def tiles(self, shape: Shape) -> tuple[int, int]:
        """Tiles along the kernel's m and n."""
        seen, (rows, columns) = self.seen(shape), self.tile
        return ceil_div(seen.m, rows), ceil_div(seen.n, columns)

    def why_illegal(self, shape: Shape) -> str | None:
        """Why this configuration cannot run this shape; None when it may."""
        raise NotImplementedError

    def dominated(self, shape: Shape) -> str | None:
        """Why a legal configuration is surely worse than another; None when it may be good."""
        raise NotImplementedError

    def launch(self, shape: Shape) -> Launch:
        """How to launch it. Raises SassafrasError when it cannot run (`why_illegal`)."""
        if why := self.why_illegal(shape):
            raise SassafrasError(why, where=f"{self.name} for {shape}")
        return self.mode.applied(self._launch(shape))

    def _launch(self, shape: Shape) -> Launch:
        raise NotImplementedError

    def estimate_us(self, shape: Shape) -> float:
        """Microseconds, roughly: good for ranking (`cost`)."""
        raise NotImplementedError

    def in_modes(self) -> list[Self]:
        """This configuration in every mode that may pay, the plain one first."""
        modes = [PLAIN, Mode(overlap=True)]
        if self.HAS_LATE:
            modes.append(Mode(overlap=True, late=True))
        if self.shared_bytes < SOLO_BYTES:
            modes.append(Mode(overlap=True, solo=True))
        return [replace(self, mode=mode) for mode in modes]  # type: ignore[type-var]

    def facts(self) -> dict[str, Any]:
        """JSON-able description."""
        rows, columns = self.tile
        return {
            "config": self.name,
            "layout": self.layout,
            "tile": f"{rows}x{columns}",
            "slices": self.slices,
        }


_Instance = TypeVar("_Instance", bound=Any)


def named(instances: Iterable[_Instance], name: str, kind: str) -> _Instance:
    """The instance of an entry name.

    Args:
        kind: what an instance of this family is called, for the error.

    Raises:
        SassafrasError: none has this name.
    """
    for instance in instances:
        if instance.name == name:
            return instance
    raise SassafrasError(f"no {kind} has this name", where=name)

"""What the configurations of all kernels have in common: names, roles of operands, how launches follow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from sassafras.core import SassafrasError

from ..problem.launch import Launch, TensorMap, ceil_div
from ..problem.shape import Shape

Choices = tuple[dict[str, Any], ...]
#: into how many CTAs of a cluster k may be split
SLICES: Choices = tuple({"cluster_split_k": slices} for slices in range(1, 9))
#: dynamic shared memory of which a multiprocessor cannot give two CTAs
SOLO_BYTES = 116 * 1024


@dataclass(frozen=True, slots=True, order=True)
class Mode:
    """How launches of a kernel follow the launch before them.

    Attributes:
        pdl: programmatic dependent launch: CTAs may start while the launch before is at work, and wait for
            its end before they touch global memory. Hides the launch latency.
        trigger_late: the kernel triggers its successor when it has read its operands, not right after its own
            wait: waiting CTAs then do not crowd onto the multiprocessors that are free early.
        one_cta_per_sm: shared memory is padded so that a multiprocessor holds one CTA, for the same reason.
    """

    pdl: bool = False
    trigger_late: bool = False
    one_cta_per_sm: bool = False

    def __str__(self) -> str:
        """The end of a configuration's name (`names.MODES`)."""
        letters = "o" * self.pdl + "l" * self.trigger_late + "s" * self.one_cta_per_sm
        return f"+{letters}" if letters else ""

    def applied(self, launch: Launch) -> Launch:
        """The launch in this mode."""
        scalars = launch.scalars
        if "late" in scalars:
            scalars = {**scalars, "late": int(self.trigger_late)}
        shared = max(launch.shared_bytes, SOLO_BYTES) if self.one_cta_per_sm else launch.shared_bytes
        return replace(launch, scalars=scalars, shared_bytes=shared, overlap=self.pdl)


PLAIN = Mode()


def cuts_at(k: int, ranges: int, unit: int) -> tuple[int, ...]:
    """Where `ranges` ranges of k end that are whole multiples of `unit`, but for the last one, which ends
    with k. Fewer ranges where there are not as many units."""
    each = unit * ceil_div(ceil_div(k, unit), ranges)
    return tuple(range(each, k, each))


@dataclass(frozen=True, slots=True, order=True)
class Configuration:
    """Base of every kernel's configuration: an instance (the compiled kernel) and what is chosen at launch.

    A kernel gives `why_illegal`, `dominated`, `_scalars`, `estimate_us`.

    Attributes:
        mode: how launches follow each other.
    """

    #: the kernel's name
    FAMILY: ClassVar[str]
    #: choices at launch that names say, by field: what stands before the number. ``v``: a negative one
    LAUNCH: ClassVar[dict[str, str]]
    #: what may be chosen at launch, by field
    CHOICES: ClassVar[Choices] = ({},)
    #: of its entry's name, which `FAMILY` says as well
    ENDING: ClassVar[str] = ""
    #: whether the kernel knows when to let its successor start
    HAS_LATE: ClassVar[bool] = False
    #: operands whose lines may begin anywhere, not at multiples of 8 elements alone
    ANY_LINES: ClassVar[str] = ""

    instance: Any
    mode: Mode = field(default=PLAIN, kw_only=True)

    @classmethod
    def every(cls, instances: Iterable[Any]) -> Iterator[Self]:
        """All configurations of instances, in a fixed order, legal or not; bands are of a single matrix."""
        for i in instances:
            yield from (cls(i, **c) for c in cls.CHOICES if not (i.epilogue and c.get("band")))

    @property
    def stem(self) -> str:
        """The name without the mode: the kernel, its entry's name without the kernel, choices at launch."""
        name, launch = self.instance.name.removesuffix(self.ENDING), ""
        for field_, before in self.LAUNCH.items():
            if value := getattr(self, field_):
                launch += f"{before if value > 0 else 'v'}{abs(value)}"
        return f"{self.FAMILY}_{name.partition('_')[2]}/{launch}"

    @property
    def name(self) -> str:
        """For people, for example ``split_k_tn_64x128_s8q1/c2+ol`` (`names.parse`)."""
        return f"{self.stem}{self.mode}"

    @property
    def rank(self) -> tuple[str, str]:
        """Which comes first of equally fast ones: by the entry, then by the name."""
        return self.instance.name, self.name

    @property
    def instances(self) -> tuple[Any, ...]:
        """The kernels that a call launches, in order."""
        return (self.instance,)

    @property
    def cluster(self) -> int:
        """CTAs of a cluster; here those that split k."""
        return int(self.cluster_split_k)  # type: ignore[attr-defined]

    @property
    def ranges(self) -> int:
        """Into how many ranges k is split in all."""
        return self.cluster

    @property
    def layout(self) -> str:
        """How A and B have to lie in memory: the first letter says it of B, the second of A."""
        return str(self.instance.layout)

    @property
    def dtype(self) -> str:
        """``fp16`` or ``bf16``."""
        return str(self.instance.dtype)

    @property
    def swap_ab(self) -> bool:
        """A and B change roles: the kernel computes the transpose of C."""
        return bool(self.instance.swap_ab)

    @property
    def any_alignment(self) -> bool:
        """It takes any addresses and leading dimensions."""
        return False

    @property
    def threads(self) -> int:
        """Threads a CTA."""
        return int(self.instance.threads)

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of a CTA's tile (of the swapped problem, if swapped)."""
        return self.instance.tile_m, self.instance.tile_n

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory a CTA needs."""
        return int(self.instance.shared_bytes)

    def seen(self, shape: Shape) -> Shape:
        """The problem as the kernel sees it: m and n exchanged when swapped."""
        return Shape(shape.n, shape.m, shape.k) if self.swap_ab else shape

    def cuts(self, shape: Shape) -> tuple[int, ...] | None:
        """Where the ranges of k end but for the last one, which tells the order in which k is summed.

        Within a range 16 products at a time are added to one FP32 accumulator, k ascending; then the ranges'
        sums, the first one first. Configurations with equal cuts give equal bits for equal rows, whatever
        their tiles, whichever operand is swapped (tests/gpu/test_batch_invariant_gpu.py). None: the kernel
        has an order of its own.
        """
        return None

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
        scalars, maps = self._scalars(shape), self._maps(shape)
        cluster = (self.cluster, 1, 1)
        return Launch(self._grid(shape), self.threads, self.shared_bytes, cluster, scalars, maps)

    def _grid(self, shape: Shape) -> tuple[int, int, int]:
        down, across = self.tiles(shape)
        return self.cluster, across, down

    def _scalars(self, shape: Shape) -> dict[str, int]:
        """Values of the kernel's integer parameters, by name."""
        raise NotImplementedError

    def _extents(self, shape: Shape) -> dict[str, int]:
        """Of them those of kernels that read operands by address."""
        seen, ldb = self.seen(shape), shape.n if self.layout == "nn" else shape.k
        return {"m": seen.m, "n": seen.n, "k": shape.k, "lda": shape.k, "ldb": ldb, "ldc": shape.n}

    def _maps(self, shape: Shape) -> dict[str, TensorMap]:
        return {}

    def estimate_us(self, shape: Shape) -> float:
        """Microseconds, roughly: good for ranking (`cost`)."""
        raise NotImplementedError

    def in_modes(self) -> list[Self]:
        """This configuration in every mode that may pay, the plain one first."""
        modes = [PLAIN, Mode(pdl=True)]
        if self.HAS_LATE:
            modes.append(Mode(pdl=True, trigger_late=True))
        if self.shared_bytes < SOLO_BYTES:
            modes.append(Mode(pdl=True, one_cta_per_sm=True))
        return [replace(self, mode=mode) for mode in modes]  # type: ignore[type-var]

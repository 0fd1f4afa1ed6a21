"""Which GPU's tables serve: its own, else those of the nearest measured one."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """What decides which kernel wins on a Hopper GPU, as its driver says it.

    Attributes:
        name: of the device.
        multiprocessors: how many.
        gigabytes_s: of the memory, by its clock and its width.
        clock_mhz: the multiprocessors' highest.
    """

    name: str
    multiprocessors: int
    gigabytes_s: float
    clock_mhz: float

    def distance(self, other: GpuFacts) -> float:
        """Sum of the logarithms of what the three differ by; 0 for GPUs that are alike."""
        return sum(
            abs(math.log(mine / its))
            for mine, its in (
                (self.multiprocessors, other.multiprocessors),
                (self.gigabytes_s, other.gigabytes_s),
                (self.clock_mhz, other.clock_mhz),
            )
        )


#: GPUs whose tables and predictors come with the package
SHIPPED = (
    GpuFacts("NVIDIA H200", 132, 4917, 1980),
    GpuFacts("NVIDIA H100 80GB HBM3", 132, 3352, 1980),
)
#: those of them that have tables of a further part (`backward.part`)
PARTS = {"backward": ("NVIDIA H200",)}


def tables_of(gpu: str, facts: GpuFacts | None = None, part: str = "") -> str:
    """The GPU whose shipped tables serve a Hopper GPU of this name: its own, else the nearest one's.

    Args:
        facts: of the GPU; without them a GPU that has no tables is served by the first one's.
        part: nt and tt with `backward.PART`.
    """
    have = [one for one in SHIPPED if not part or one.name in PARTS[part]]
    if any(one.name == gpu for one in have):
        return gpu
    facts = facts or next((one for one in SHIPPED if one.name == gpu), None)
    return min(have, key=lambda one: one.distance(facts) if facts else 0.0).name


def measured() -> str:
    """Names of the GPUs whose tables come with the package, for a sentence."""
    return " and ".join(one.name.removeprefix("NVIDIA ") for one in SHIPPED)

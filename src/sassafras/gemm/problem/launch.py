"""What it takes to launch a configuration: grid, shared memory, scalars, tensor maps, workspace.

Every family's configuration answers `launch(shape)` with a `Launch`; its instance names the kernel's
parameters in order (`Instance.parameters`), each of one of these kinds:

- ``*fp16``, ``*bf16``: address of operand ``a``, ``b`` or ``c``; a and b change places with `Config.swap_ab`.
- ``i32``, ``i64``: ``Launch.scalars[name]``; ``f32`` as well, whose scalar is the number's bit pattern.
- ``tensormap``: 128 bytes at a 64-byte boundary (``__grid_constant__``), encoded from
  ``Launch.tensor_maps[name]``.
- ``*i64``: address of one number, given at each launch.
- ``*f32``: address of ``Launch.workspace_bytes`` bytes, contents arbitrary, 16-byte aligned.

A workspace belongs to one launch at a time: launches that may overlap (two streams, two graphs) need their
own. The pointer may be null when the size is 0.

A `Launch` may have another one behind it (`Launch.then`), of a kernel of its own, on the same stream at once:
both are one call. They share operands and workspace; sizes are those of the first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sassafras.core.tensor_map import TensorMap

#: shared memory a CTA may use on sm_90
SHARED_LIMIT = 227 * 1024
#: extents of the second and third dimension of a grid
GRID_LIMIT = 65535
#: multiprocessors of an H200 or H100 SXM
MULTIPROCESSORS = 132
#: CTAs that run at once on an H200 where a multiprocessor has room for one, by the size of their cluster, 1
#: to 8: it stays within a GPC, and does not always fill it
AT_ONCE = (132, 132, 117, 120, 110, 102, 105, 120)


def ceil_div(value: int, by: int) -> int:
    """The quotient, rounded up."""
    return -(-value // by)


@dataclass(frozen=True, slots=True)
class Launch:
    """How to launch a configuration for a shape.

    Attributes:
        grid: CTAs in x, y and z; x is a multiple of the cluster.
        threads: threads a CTA.
        shared_bytes: dynamic shared memory a CTA.
        cluster: cluster shape.
        scalars: values of the integer parameters, by name.
        tensor_maps: tensor maps, by parameter name.
        workspace_bytes: scratch that the launch needs, 0 for none.
        overlap: it may start while the launch before is at work (programmatic stream serialization).
        then: what is launched right behind it, None: nothing.
    """

    grid: tuple[int, int, int]
    threads: int
    shared_bytes: int
    cluster: tuple[int, int, int]
    scalars: dict[str, int]
    tensor_maps: dict[str, TensorMap] = field(default_factory=dict)
    workspace_bytes: int = 0
    overlap: bool = False
    then: NextLaunch | None = None


@dataclass(frozen=True, slots=True)
class NextLaunch:
    """The second launch of a call: its kernel (an instance of any family) and how it is launched."""

    instance: Any
    launch: Launch

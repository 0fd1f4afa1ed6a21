"""Costs of instructions on the timing model, for schedules built from scratch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sassafras.core import Case, Kernel, SassafrasError, Space, Workload
from sassafras.schedule.machine import Costs
from sassafras.timing_model import MODEL_VERSION, ModelDevice
from sassafras.timing_model import records as rec
from sassafras.timing_model.kernel_model import UnknownWords


def informed(
    make: Callable[[Kernel], Space[Any, Any]], workload: Workload, case: Case
) -> Callable[[Kernel], Space[Any, Any]]:
    """Spaces that know the timing model's costs; those of kernels that cannot be modelled keep the usual."""

    def opened(kernel: Kernel) -> Space[Any, Any]:
        space: Any = make(kernel)
        if not hasattr(space, "expect"):
            return space
        try:
            device = ModelDevice(kernel.arch)
            device.open(workload, case, kernel)
            # (a space may be of the schedules of a copy)
            model = device.model.copy(space.function) if getattr(space, "via", ()) else device.model
        except (SassafrasError, UnknownWords):
            return space
        o = device.model.occupancy
        space.expect(costs(model), max(1.0, o.warps * o.slots / 4))  # warps that share a sub-core
        return space

    return opened


def costs(model: Any) -> Costs:
    """A `KernelModel`'s rows as `schedule.machine.Costs`, for one warp alone."""
    rows, c = model.rows, model.constants
    kind, pipe = rows[:, rec.KIND], rows[:, rec.PIPE]
    memory = pipe == rec.MEM
    tracked = memory | np.isin(kind, [rec.VARIABLE, rec.PHASE_WAIT, rec.HGMMA])
    port = rows[:, rec.BYTES] / model.bandwidth
    read = np.where(memory, rows[:, rec.READ] + 1, rows[:, rec.READ])
    result = rows[:, rec.LATENCY] + np.where(memory, 1 + port.astype(np.int32), 0)
    flight = np.where(kind == rec.LDGSTS, result, 0)
    flight = np.where(kind == rec.HGMMA, rows[:, rec.BUSY], flight)
    result = np.where(kind == rec.LDGSTS, read, result)
    closes = np.where(kind == rec.GROUP_COMMIT, 1, 0)
    closes = np.where((kind == rec.HGMMA) & (rows[:, rec.ARG] & rec.GROUP_BIT > 0), 2, closes)
    awaits = np.where(kind == rec.GROUP_WAIT, 1, np.where(kind == rec.HGMMA_WAIT, 2, 0))
    return Costs(
        pipe=_i32(np.where((pipe == rec.MEM) | (pipe == rec.NONE), -1, pipe)),
        busy=_i32(rows[:, rec.BUSY]),
        queue=_i32(memory),
        result=_i32(np.where(tracked, result, 0)),
        read=_i32(np.where(tracked, read, 0)),
        port=np.where(memory, port, 0.0),
        hold=_i32(np.where(kind == rec.BAR_SYNC, rows[:, rec.LATENCY], 0)),
        member=_i32(np.where(kind == rec.LDGSTS, 1, np.where(kind == rec.HGMMA, 2, 0))),
        flight=_i32(flight),
        closes=_i32(closes),
        awaits=_i32(awaits),
        but=_i32(np.where(awaits > 0, rows[:, rec.ARG], 0)),
        visits=visits(model),
        queue_interval=int(c.agu_interval),
        source=f"timing model {MODEL_VERSION}",
    )


def _i32(values: np.ndarray) -> np.ndarray:
    return np.asarray(values).astype(np.int32)


def visits(model: Any) -> np.ndarray:
    """Executions of each position by one warp on the model's path, with the rounds of loops that it adds
    without simulating them: float64."""
    path = model.path
    out = np.bincount(path.positions, minlength=len(model.function)).astype(float)
    extra = np.ones(len(out))
    for loop in path.loops:
        if loop.simulated < loop.trips:
            extra[loop.start : loop.end + 1] *= loop.trips / loop.simulated
    return out * extra

"""What the timing model expects of instructions, for schedules built from scratch. Wiring: `device` meets
`schedule`; and bounds: what no schedule can undercut by the model's rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sassafras.core import Case, Kernel, SassafrasError, Space, Workload


def informed(
    make: Callable[[Kernel], Space[Any, Any]], workload: Workload, case: Case
) -> Callable[[Kernel], Space[Any, Any]]:
    """Spaces that know the timing model's costs; those of kernels that cannot be modelled keep the usual."""

    def opened(kernel: Kernel) -> Space[Any, Any]:
        from sassafras.timing_model import ModelDevice
        from sassafras.timing_model.kernel_model import UnknownWords

        space = make(kernel)
        if not hasattr(space, "expect"):
            return space
        try:
            device = ModelDevice(kernel.arch)
            device.open(workload, case, kernel)
            model = model_of(device, space)
        except (SassafrasError, UnknownWords):
            return space
        space.expect(costs(model), warps_a_sub_core(device))
        return space

    return opened


def model_of(device: Any, space: Any) -> Any:
    """The opened kernel's model, or that of the copy that the space's schedules are of.

    Raises:
        UnknownWords: the copy's control flow is another.
    """
    return device.model.copy(space.function) if getattr(space, "via", ()) else device.model


def warps_a_sub_core(device: Any) -> float:
    """Resident warps that share one of the four sub-cores."""
    o = device.model.occupancy
    return float(max(1.0, o.warps * o.slots / 4))


def costs(model: Any) -> Any:
    """A `KernelModel`'s rows as `schedule.machine.Costs`, for one warp alone."""
    from sassafras.schedule.machine import Costs
    from sassafras.timing_model import MODEL_VERSION
    from sassafras.timing_model import records as rec

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


@dataclass(frozen=True, slots=True)
class Bound:
    """What no schedule of a space undercuts, by the timing model's rules.

    Attributes:
        cycles: of the whole kernel, modelled.
        latency: cycles that one warp needs alone, over the whole path, launch apart.
        throughput: cycles that its busiest pipe needs for all warps of an SM over what is simulated.
        limit: ``latency`` or the name of that pipe.
        proved: share of `latency` that stands in blocks whose best order is proved.
    """

    cycles: float
    latency: float
    throughput: float
    limit: str
    proved: float


def bound(device: Any, space: Any, seconds: float = 0.0, largest: int = 700) -> Bound:
    """The least that the model can say of any schedule of `space`.

    What is simulated takes at least what one warp takes alone: block after block in the best order, counting
    only what must be waited for (`schedule.machine` leaves out what it cannot be sure of). And it takes at
    least what its busiest pipe, queue or port is busy for all warps. Rounds of loops that the model adds at
    the rate of the last ones take at least what a warp alone takes for them; more cannot be said, as
    the rate is a mean over warps that do not run in step.

    Args:
        device: a `ModelDevice` with the kernel opened.
        space: the space, told the model's costs (`expect`).
        seconds: the exact solver's limit for a block; 0: chains and pipes only.
        largest: blocks of more instructions are not given to the solver.

    Raises:
        ToolMissing: `seconds` are given, and OR-tools are not installed.
    """
    from sassafras.schedule import exact
    from sassafras.schedule.construct_jit import lengths
    from sassafras.timing_model import records as rec

    model, builder = model_of(device, space), space.constructor
    m, o, c = builder.machine, model.occupancy, model.constants
    path = np.bincount(model.path.positions, minlength=len(model.function)).astype(float)
    extra = visits(model) - path
    latency = added = proved = 0.0
    start = np.arange(len(space.function), dtype=np.int32)
    for b, (s, e) in enumerate(zip(m.start.tolist(), m.end.tolist(), strict=True)):
        if path[s] <= 0:
            continue
        least = max(int(m.least[b]), _simple(m, b, lengths(m, b, False)))
        sure = least >= builder.cycles(start, b)
        if seconds > 0 and not sure and e - s <= largest:
            found = exact.solve(m, b, start[s:e] - s, seconds, rounds=False)
            least, sure = max(least, found.bound), found.proved
        latency += float(path[s] * least)
        added += float(extra[s] * least)
        proved += float((path[s] + extra[s]) * least * sure)
    share = proved / (latency + added) if latency else 1.0
    latency += float(np.sum(model.path.taken)) * c.branch_taken
    warps = o.warps * o.slots
    a_core = -(-warps // 4)
    # what each sub-core's pipes, its memory queue, and the SM's memory port need for one round of CTAs
    need = {"issue": path.sum() * a_core}
    for p in range(rec.PIPES):
        if p not in (rec.MEM, rec.NONE):
            mine = model.rows[:, rec.PIPE] == p
            need[rec.PIPE_NAMES[p]] = float((path * model.rows[:, rec.BUSY])[mine].sum()) * a_core
    memory = model.rows[:, rec.PIPE] == rec.MEM
    # (what the queues still hold when the last warp leaves is not waited for, nor are stores)
    need["memory queue"] = (float(path[memory].sum()) * a_core - c.mem_queue) * c.agu_interval
    waves = np.maximum(c.lsu_interval, model.rows[:, rec.WAVES])
    need["load/store unit"] = float((path * waves)[memory].sum()) * warps
    need["load/store unit"] -= 4.0 * c.mem_queue * float(waves[memory].max(initial=0))
    loads = memory & np.isin(model.rows[:, rec.KIND], [rec.LOAD, rec.LDGSTS])
    need["memory bandwidth"] = float((path * model.rows[:, rec.BYTES])[loads].sum()) * warps / model.bandwidth
    products = model.rows[:, rec.KIND] == rec.HGMMA
    need["tensor core"] = float((path * model.rows[:, rec.BUSY])[products].sum()) * a_core
    limit = max(need, key=lambda k: need[k])
    scale = o.ctas / o.simulated
    busiest = need[limit] * o.simulated / o.slots
    alone = latency * -(-o.simulated // o.slots)
    # rounds of loops that are not simulated are added at the rate of single warps
    added *= o.simulated / o.slots
    return Bound(
        float(c.launch + (max(busiest, alone) + added) * scale),
        float((alone + added) * scale),
        float(busiest * scale),
        "latency" if alone >= busiest else limit,
        float(share),
    )


def _simple(m: Any, b: int, lengths: np.ndarray) -> int:
    """Without a solver: the longest chain from the start, and what the issue slot and each pipe need."""
    s, e = int(m.start[b]), int(m.end[b])
    chain = int((m.head[s:e] + lengths).max())
    issue = int(m.own[s:e].sum())
    pipes = [
        int(m.busy[s:e][m.pipe[s:e] == p].sum() - m.busy[s:e][m.pipe[s:e] == p].max())
        for p in {int(p) for p in m.pipe[s:e] if p >= 0}
    ]
    return max([chain, issue, *pipes])

"""The best order of a block on `schedule.machine`, by a constraint solver (OR-tools' CP-SAT).

Issue cycles are the variables. Arcs are lower bounds of differences; the issue slot, pipes and memory
operations are intervals that do not overlap; the block's cycles are minimised. In a loop of one block what
one round leaves pending for the next binds too, with the block's own length as the distance between rounds.
Where the solver finishes, the length is the least possible; where it does not, it still returns a bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sassafras.core.errors import ToolMissing

from .machine import Machine


@dataclass(frozen=True, slots=True)
class Solved:
    """What the solver says.

    Attributes:
        order: places in the original from the block's first, or None where it found nothing.
        cycles: of that order on the machine.
        bound: no order takes less.
        proved: whether both are the same.
        seconds: spent.
    """

    order: np.ndarray | None
    cycles: int
    bound: int
    proved: bool
    seconds: float


def available() -> bool:
    """Whether OR-tools can be imported."""
    import importlib.util

    return importlib.util.find_spec("ortools") is not None


def _solver() -> Any:
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:
        raise ToolMissing("the exact solver needs OR-tools", hint="pip install 'sassafras[exact]'") from error
    return cp_model


def solve(
    m: Machine,
    block: int,
    order: np.ndarray,
    seconds: float,
    window: tuple[int, int] | None = None,
    seed: int = 0,
    workers: int = 1,
    rounds: bool = True,
) -> Solved:
    """Find the order of a block that takes the fewest cycles.

    Args:
        m: the machine.
        block: number of the block.
        order: where to begin: places in the original from the block's first.
        seconds: limit of the solver's deterministic time, which is near to seconds on one core.
        window: first and last position that may change; what stands outside keeps its order. The bound then
            holds for such orders only.
        seed, workers: the solver's. One worker gives the same answer every time.
        rounds: in a loop of one block, count what one round leaves pending for the next.

    Raises:
        ToolMissing: OR-tools are not installed.
    """
    from .construct_jit import measure

    cp = _solver()
    s, e = int(m.start[block]), int(m.end[block])
    n = e - s
    at_first = np.empty(n, dtype=np.int64)
    known = int(measure(m, block, np.asarray(order, dtype=np.int32), at_first))
    carried = m.carried[m.carried_at[block] : m.carried_at[block + 1]].tolist() if rounds else []
    horizon = (
        int(m.own[s:e].sum() + 4096) if known < 0 else known + max((c for _, _, c in carried), default=0)
    )
    model = cp.CpModel()
    issue = [model.new_int_var(int(m.head[s + x]), horizon, f"t{x}") for x in range(n)]
    length = model.new_int_var(int(m.least[block]), horizon, "length")
    for x in range(n):
        model.add(length >= issue[x] + int(max(m.own[s + x], m.tail[s + x])))
        for k in range(m.succ_at[s + x], m.succ_at[s + x + 1]):
            model.add(issue[int(m.succ[k]) - s] >= issue[x] + int(m.delay[k]))
    for a, b, cycles in carried:
        model.add(issue[b - s] + length >= issue[a - s] + cycles)
    # one after the other
    for sizes in _exclusive(m, s, e):
        model.add_no_overlap(
            [model.new_fixed_size_interval_var(issue[x], size, f"i{x}") for x, size in sizes]
        )
    free = set(range(n)) if window is None else set(range(window[0], window[1] + 1))
    for p in range(n - 1):
        if p not in free or p + 1 not in free:
            model.add(issue[order[p + 1]] > issue[order[p]])
    if known > 0:
        for x in range(n):
            model.add_hint(issue[x], int(at_first[x]))
    model.minimize(length)
    solver = cp.CpSolver()
    solver.parameters.max_deterministic_time = seconds
    solver.parameters.max_time_in_seconds = 20 * seconds
    solver.parameters.num_workers = workers
    solver.parameters.random_seed = seed % (1 << 31)
    status = solver.solve(model)
    bound = int(np.ceil(solver.best_objective_bound - 1e-6)) if status != cp.INFEASIBLE else 0
    if status not in (cp.OPTIMAL, cp.FEASIBLE):
        return Solved(None, known, max(bound, 0), False, solver.wall_time)
    at = np.array([solver.value(v) for v in issue])
    found = np.argsort(at, kind="stable").astype(np.int32)
    return Solved(found, round(solver.objective_value), bound, status == cp.OPTIMAL, solver.wall_time)


def _exclusive(m: Machine, s: int, e: int) -> list[list[tuple[int, int]]]:
    """Sets of (place, cycles) that exclude one another: the issue slot, pipes, kinds with a spacing."""
    out = [[(x - s, int(m.own[x])) for x in range(s, e)]]
    for pipe in sorted({int(p) for p in m.pipe[s:e] if p >= 0}):
        users = [(x - s, int(m.busy[x])) for x in range(s, e) if m.pipe[x] == pipe]
        if len(users) > 1 and max(size for _, size in users) > 1:
            out.append(users)
    kinds = sorted({int(k) for k in m.kind[s:e] if k >= 0})
    spacing = m.spacing
    for k in kinds:
        # everything that keeps at least this distance from everything else among it, both ways
        size = int(spacing[k, k]) if len(spacing) else 0
        if size <= 1:
            continue
        group = [k]
        for other in kinds:
            if other != k and all(
                spacing[g, other] >= size and spacing[other, g] >= size for g in [*group, other]
            ):
                group.append(other)
        users = [(x - s, size) for x in range(s, e) if int(m.kind[x]) in group]
        if len(users) > 1:
            out.append(users)
    return out

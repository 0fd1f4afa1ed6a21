"""Where the assembly game meets kernels: the Gymnasium registration, and kernels to train the agent on.

import gymnasium, sassafras.training.environment
game = gymnasium.make("sassafras/AssemblyGame-v0", workload="suite:softmax", device="model")

``python -m sassafras.training`` trains the agent.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sassafras.core import Case, Device, SearchError, ToolMissing, Workload, refused_cubin
from sassafras.evaluate import KernelEvaluator
from sassafras.jobs.opening import DEFAULT_ARCH, load_workload, open_device
from sassafras.schedule import ScheduleSpace
from sassafras.validate import Validator

GAME = "sassafras/AssemblyGame-v0"


def register() -> None:
    """Make the game known to Gymnasium. Called when this module is imported; safe to call twice."""
    try:
        import gymnasium
    except ImportError:
        return
    if GAME not in gymnasium.registry:
        gymnasium.register(id=GAME, entry_point="sassafras.training.environment:assembly_game")


def assembly_game(
    workload: str | Path | Workload,
    *,
    case: str | None = None,
    device: str | Device = "auto",
    arch: str | None = None,
    moves: str = "memory",
    view: str = "all",
    horizon: int = 32,
    rows: int | None = None,
    noise: float | None = None,
    render_mode: str | None = None,
) -> Any:
    """The assembly game of one kernel: what ``gymnasium.make("sassafras/AssemblyGame-v0", ...)`` calls.

    Args:
        workload: a workload, or what `sassafras.targets.load` reads.
        case: name of one of its cases; None: the first.
        device: ``auto``, ``cuda``, ``model``, or an unopened `Device`.
        arch: compile for this; None: the device's own.
        moves: ``memory`` (CuAsmRL's: a memory instruction up or down by one) or ``all``.
        view: ``all`` columns of the features, or ``paper`` for CuAsmRL's.
        horizon, rows, noise: see `search.ppo.game.AssemblyGame`.

    Raises:
        SassafrasError: what is wrong with the workload, the device or the kernel.
        ToolMissing: gymnasium is not installed.
    """
    try:
        from sassafras.search.ppo.game import AssemblyGame
    except ImportError as error:
        raise ToolMissing("the assembly game needs gymnasium", hint="pip install 'sassafras[rl]'") from error
    found = load_workload(workload)
    chosen = found.case(case)
    opened = open_device(device, arch)
    try:
        space, evaluate = table(found, chosen, opened, arch or opened.arch or DEFAULT_ARCH, moves, view)
    except BaseException:
        opened.close()
        raise

    class _Played(AssemblyGame):
        def close(self) -> None:
            opened.close()

    return _Played(space, evaluate, horizon=horizon, rows=rows, noise=noise, render_mode=render_mode)


def table(
    workload: Workload, case: Case, device: Device, arch: str, moves: str = "all", view: str = "all"
) -> tuple[Any, Callable[[Any], Any]]:
    """A kernel's schedule space, and what judges its states: validator first, then the device.

    Raises:
        SassafrasError: the kernel cannot be built, scheduled, validated or run.
    """
    kernel = workload.build(case, arch)
    space: Any = ScheduleSpace(kernel, moves=moves, view=view, arch_by_name=True)  # type: ignore[arg-type]
    validator = Validator(kernel.cubin, kernel.name)
    if not (report := validator.check(kernel.cubin)).ok:
        raise SearchError(
            f"the validator refuses the unmodified kernel: {report}",
            where=workload.name,
            hint=refused_cubin.kept(kernel),
        )
    device.open(workload, case, kernel)
    judge = KernelEvaluator(device, lambda _, cubin: validator.check(cubin), kernel)
    return space, lambda state: judge.evaluate(space.candidate(state))


def lonely(case: Case) -> Case:
    """The case with one CTA an SM at most.

    With many warps on an SM the timing model is chaotic: moves that mean nothing change its figure by some
    0.3 to 0.6 % of the runtime (seen on norms and softmax), more than a good move gains. With one CTA what a
    move changes is the schedule's own doing, and an evaluation takes a fraction of the time.
    """
    x, y, z = case.grid
    return dataclasses.replace(case, grid=(min(x * y * z, 132), 1, 1))


register()

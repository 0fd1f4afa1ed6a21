"""The assembly game of a kernel, and its registration with Gymnasium.

import gymnasium, sassafras.api.assembly_game
game = gymnasium.make("sassafras/AssemblyGame-v0", workload="suite:softmax", device="model")
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sassafras.core import Device, SearchError, ToolMissing, Workload, refused_cubin
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
        gymnasium.register(id=GAME, entry_point="sassafras.api.assembly_game:assembly_game")


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
        kernel = found.build(chosen, arch or opened.arch or DEFAULT_ARCH)
        space: Any = ScheduleSpace(kernel, moves=moves, view=view, arch_by_name=True)  # type: ignore[arg-type]
        validator = Validator(kernel.cubin, kernel.name)
        if not (report := validator.check(kernel.cubin)).ok:
            raise SearchError(
                f"the validator refuses the unmodified kernel: {report}",
                where=found.name,
                hint=refused_cubin.kept(kernel),
            )
        opened.open(found, chosen, kernel)
    except BaseException:
        opened.close()
        raise
    judge = KernelEvaluator(opened, lambda _, cubin: validator.check(cubin), kernel)

    class _Played(AssemblyGame):
        def close(self) -> None:
            opened.close()

    return _Played(
        space,
        lambda state: judge.evaluate(space.candidate(state)),
        horizon=horizon,
        rows=rows,
        noise=noise,
        render_mode=render_mode,
    )


register()

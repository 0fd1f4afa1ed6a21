"""The schedule spaces that `optimize` knows by name.

The proof of renamed and moved copies comes from outside: scheduler and validator share no code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sassafras.core import Kernel, SassafrasError, Space, refused_cubin

#: makes a judge with `check(cubin)` and `via(cubin)`, whose answers have `ok`
Prove = Callable[[bytes, str], Any]
#: schedules of a proved copy that have to be approved before a search gets it
_TRIED = 4
#: name -> what it opens
SPACES = {
    "swaps": "order and stall counts under the compiler's scoreboards and waits",
    "control": "scoreboards, waits and stall counts from scratch; true dependences bind the order",
    "renaming": "control, and other register names where they break false dependences",
    "blocks": "control, and instructions moved over the branch between a block and its only predecessor",
}


def space_of(
    name: str, prove: Prove, asked_by_name: bool = False, **options: Any
) -> Callable[[Kernel], Space[Any, Any]]:
    """What makes the space of this name from a baseline.

    Args:
        name: one of `SPACES`.
        prove: judge of copies and schedules, made of a cubin and its kernel's name (`validate.Validator`).
        asked_by_name: the user named the architecture on purpose.
        options: further arguments of `ScheduleSpace`.

    Raises:
        SassafrasError: there is no such space.
    """
    if name not in SPACES:
        raise SassafrasError(f"there is no space {name!r}", hint="one of " + ", ".join(SPACES))

    def make(kernel: Kernel) -> Space[Any, Any]:
        from sassafras.schedule import ScheduleSpace

        _supported(kernel)
        if name == "renaming":
            return renamed(kernel, prove, asked_by_name, **options)
        if name == "blocks":
            return moved(kernel, prove, asked_by_name, **options)
        control: Any = "keep" if name == "swaps" else "regenerate"
        return ScheduleSpace(kernel, arch_by_name=asked_by_name, control=control, **options)

    return make


def _supported(kernel: Kernel) -> None:
    """Raise for code of a known architecture that cannot be rescheduled; the cubin is kept."""
    from sassafras.sass import ARCHS, Program

    function = Program.parse(kernel.cubin).function(kernel.name)
    arch = ARCHS.get(function.arch)
    if function.pinned_reason and arch is not None and arch.scheduled is not False:
        raise SassafrasError(
            f"this kernel cannot be rescheduled: {function.pinned_reason}",
            where=kernel.name[:60],
            hint=refused_cubin.kept(kernel),
        )


def renamed(kernel: Kernel, prove: Prove, asked_by_name: bool = False, **options: Any) -> Any:
    """The schedules of a renamed copy that the validator has proved; without one, those of the kernel itself.

    Where the proof fails, half as many values are renamed, down to none: the validator decides.
    """
    from sassafras.schedule.renaming import rename

    def make(program: Any, most: int | None) -> tuple[bytes, int]:
        made = rename(program, kernel.name, most)
        return made.cubin, made.webs

    return _proved(kernel, prove, make, "renamed", asked_by_name, options)


def moved(kernel: Kernel, prove: Prove, asked_by_name: bool = False, **options: Any) -> Any:
    """The schedules of a copy with instructions moved over branches, likewise proved; or the kernel's own."""
    from sassafras.schedule.blocks import move

    def make(program: Any, most: int | None) -> tuple[bytes, int]:
        made = move(program, kernel.name, most)
        return made.cubin, made.up + made.down

    return _proved(kernel, prove, make, "moved over branches", asked_by_name, options)


def _usable(space: Any, validator: Any) -> bool:
    """Whether schedules of a proved copy are approved: the first few that a search would draw."""
    rng, state = np.random.default_rng(0), space.start()
    for _ in range(_TRIED):
        step = space.sample(state, rng)
        if step is None:
            return False
        state = space.apply(state, step)
        if not validator.check(space.emit(state)).ok:
            return False
    return True


def _proved(
    kernel: Kernel,
    prove: Prove,
    make: Callable[[Any, int | None], tuple[bytes, int]],
    what: str,
    asked_by_name: bool,
    options: dict[str, Any],
) -> Any:
    """The space of the largest copy that is proved and whose schedules are approved; `make` takes how much to
    change at most."""
    from sassafras.sass import Program
    from sassafras.schedule import ScheduleSpace

    program = Program.parse(kernel.cubin)
    validator = prove(kernel.cubin, kernel.name)
    most: int | None = None
    for _ in range(5):
        try:
            cubin, changed = make(program, most)
        except SassafrasError:
            break
        if changed == 0:
            break
        space = ScheduleSpace(
            kernel, arch_by_name=asked_by_name, control="regenerate", rename=cubin, **options
        )
        if validator.via(space.via[0]).ok and _usable(space, validator):
            space.description = space.description.replace(", renamed", f", {what}")
            return space
        most = changed // 2
    return ScheduleSpace(kernel, arch_by_name=asked_by_name, control="regenerate", **options)

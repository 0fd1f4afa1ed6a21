"""The schedule spaces that `optimize` knows by name.

The proof of renamed and moved copies comes from outside: scheduler and validator share no code.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from sassafras.core import Kernel, SassafrasError, Space, refused_cubin
from sassafras.sass import ARCHS, Program

from .blocks import move
from .renaming import rename
from .space import ScheduleSpace

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


#: name -> what makes the copy that it holds the schedules of, and the copy's description
_COPIES = {"renaming": (rename, "renamed"), "blocks": (move, "moved over branches")}


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
    options |= {"arch_by_name": asked_by_name, "control": "keep" if name == "swaps" else "regenerate"}

    def make(kernel: Kernel) -> ScheduleSpace:
        _supported(kernel)
        made = _of_copy(name, kernel, prove, options) if name in _COPIES else None
        return made or ScheduleSpace(kernel, **options)

    return make


def _supported(kernel: Kernel) -> None:
    """Raise for code of a known architecture that cannot be rescheduled; the cubin is kept."""
    function = Program.parse(kernel.cubin).function(kernel.name)
    arch = ARCHS.get(function.arch)
    if function.pinned_reason and arch is not None and arch.scheduled is not False:
        raise SassafrasError(
            f"this kernel cannot be rescheduled: {function.pinned_reason}",
            where=kernel.name[:60],
            hint=refused_cubin.kept(kernel),
        )


def prove_copies(kernel: Kernel, judge: Any) -> None:
    """Prove to a judge the copies that `renaming` and `blocks` search: it then approves their schedules."""
    for name in _COPIES:
        with suppress(SassafrasError):  # nothing in this kernel can move: it has no schedules
            _of_copy(name, kernel, lambda *_: judge, {"control": "regenerate", "arch_by_name": True})


def _of_copy(name: str, kernel: Kernel, prove: Prove, options: dict[str, Any]) -> ScheduleSpace | None:
    """The schedules of the largest copy that is proved and whose schedules are approved, if there is one.

    Where the proof fails, half as much is changed, down to nothing: the judge decides.
    """
    copy, what = _COPIES[name]
    program, judge = Program.parse(kernel.cubin), prove(kernel.cubin, kernel.name)
    most: int | None = None
    for _ in range(5):
        try:
            made = copy(program, kernel.name, most)
        except SassafrasError:
            return None
        if made.changed == 0:
            return None
        space = ScheduleSpace(kernel, rename=made.cubin, **options)
        if judge.via(space.via[0]).ok and _usable(space, judge):
            space.description = space.description.replace(", renamed", f", {what}")
            return space
        most = made.changed // 2
    return None


def _usable(space: ScheduleSpace, judge: Any) -> bool:
    """Whether schedules of a proved copy are approved: the first few that a search would draw."""
    rng, state = np.random.default_rng(0), space.start()
    for _ in range(_TRIED):
        step = space.sample(state, rng)
        if step is None:
            return False
        state = space.apply(state, step)
        if not judge.check(space.emit(state)).ok:
            return False
    return True

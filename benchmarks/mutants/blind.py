"""Blind mutants: memory instructions exchanged as SIP does it, whatever depends on what.

SIP swaps a memory instruction with its neighbour, control codes and all, and lets tests on random inputs
decide (github.com/hgl71964/cuasmrl at 5ffbc39, ``generate_neighbor``). Three of four draws here are such
swaps (`ADJACENT`), of which a kernel has few; the others exchange any two memory instructions of a basic
block (`ANY`), as many such swaps would. Branches and padding stay in place; barriers are swapped with. What
never executes (``@!PT``) is left alone: moving it would change nothing.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from second_model import SecondModel, Unread

from sassafras.core import Kernel
from sassafras.sass import Emitter, Fence, Function, Memory, Program, Queue
from sassafras.validate import Validator

from .edits import Editor

ADJACENT, ANY = "adjacent", "any two"
#: draws for each mutant that is asked for, before a kernel has no more distinct ones
_DRAWS = 60


@dataclass(frozen=True, slots=True)
class BlindMutant:
    """A copy of a kernel with two instructions exchanged.

    Attributes:
        number: of its draw.
        kind: `ADJACENT` or `ANY`.
        pair: the two instructions, each with its offset in the original.
        rule: of the first violation that the validator names, ``""`` for an approved mutant.
        why: that violation, in words.
        cubin: its bytes.
    """

    number: int
    kind: str
    pair: tuple[str, str]
    rule: str
    why: str
    cubin: bytes


class Swaps(Editor):
    """Draws exchanges of one kernel. Arguments as of `Editor`."""

    def __init__(self, function: Function, seed: int) -> None:
        super().__init__(function, seed)
        self._fixed = [
            fixed or i.guard == "!PT" for fixed, i in zip(self._fixed, function.instructions, strict=True)
        ]
        self._block_of = {at: block for block in self._blocks for at in range(*block)}
        self.memory = [
            at
            for at, i in enumerate(function.instructions)
            if at in self._block_of and i.op.queue in (Queue.LSU, Queue.MIO)
            if i.op.memory is not Memory.NONE and i.op.fence is Fence.NONE and i.guard != "!PT"
        ]

    def pair(self, number: int) -> tuple[str, int, int] | None:
        """Draw `number`: its kind and two positions, the smaller first; None where there is no partner."""
        rng = random.Random(f"{self._key}:{number}")
        at, kind = rng.choice(self.memory), rng.choice((ADJACENT, ADJACENT, ADJACENT, ANY))
        start, end = self._block_of[at]
        if kind == ADJACENT:
            partners = [at + rng.choice((-1, 1))]
        else:
            partners = [other for other in self.memory if other != at]
        partners = [to for to in partners if start <= to < end and not self._fixed[to]]
        if not partners:
            return None
        to = rng.choice(partners)
        return kind, min(at, to), max(at, to)

    def exchanged(self, first: int, second: int) -> tuple[np.ndarray, np.ndarray]:
        """Order and words with two positions exchanged."""
        order = self._order.copy()
        order[[first, second]] = order[[second, first]]
        return order, self._words[order]


def draw(kernel: Kernel, seed: int, refused: int, approved: int) -> list[BlindMutant]:
    """Distinct mutants in the order of their draws.

    Args:
        refused: how many that the validator refuses; fewer where the kernel has no more.
        approved: how many that it approves, at most.
    """
    program = Program.parse(kernel.cubin)
    function = program.function(kernel.name)
    swaps, emitter = Swaps(function, seed), Emitter(program, kernel.name)
    validator = Validator(kernel.cubin, kernel.name, program=program)
    left = {True: approved, False: refused}
    found, seen = [], {kernel.cubin}
    for number in range(_DRAWS * refused):
        if not left[False]:
            break
        if (drawn := swaps.pair(number)) is None:
            continue
        kind, first, second = drawn
        cubin = emitter.write(*swaps.exchanged(first, second))
        if cubin in seen:
            continue
        seen.add(cubin)
        report = validator.check(cubin)
        if not left[report.ok]:
            continue
        left[report.ok] -= 1
        code = function.instructions
        pair = (_shown(code[first].offset, code[first].text), _shown(code[second].offset, code[second].text))
        why = next(iter(report.violations), None)
        rule = why.kind if why else ""
        found.append(BlindMutant(number, kind, pair, rule, str(why) if why else "", cubin))
    return found


def second(kernel: Kernel, mutants: Sequence[BlindMutant]) -> dict[int, str]:
    """The second model's verdicts by number: ``equal``, ``different``, or ``unread`` for all."""
    try:
        model = SecondModel(kernel.cubin, kernel.name)
    except Unread:
        return dict.fromkeys((m.number for m in mutants), "unread")
    return {m.number: model.judge(m.cubin).verdict for m in mutants}


def empty(kernel: Kernel) -> bytes:
    """The kernel with an EXIT in front: it writes nothing, which any test has to notice."""
    program = Program.parse(kernel.cubin)
    function = program.function(kernel.name)
    words = function.words.copy()
    ends = [i for i in function.instructions if i.base == "EXIT" and not i.guard]
    words[0] = words[ends[-1].index]
    return Emitter(program, kernel.name).write(np.arange(len(words)), words)


def _shown(offset: int, text: str) -> str:
    return f"+{offset:#x}: {text}"

"""Basic blocks as the scheduler uses them: those of `sass.cfg`, with two kinds of edges more.

* A BRA without a guard may be conditional all the same (``BRA.DIV UR4, `(L)``, ``BRA P0, `(L)``): the next
  block follows it too.
* ``WARPSYNC.COLLECTIVE R9, `(L)`` may go on at its label: it ends a block.
"""

from __future__ import annotations

import re

from sassafras.sass import Block, Function

_LABEL = re.compile(r"`\(([^)]+)\)")


def blocks(function: Function) -> tuple[Block, ...]:
    """The basic blocks of a function, in address order."""
    code = function.instructions
    starts = {block.start for block in function.blocks}
    ends = {block.end: block for block in function.blocks}
    jumps: dict[int, int] = {}
    for i in code:
        if i.base == "WARPSYNC" and (found := _LABEL.findall(i.text)) and found[0] in function.labels:
            jumps[i.index] = function.labels[found[0]] // 16
            starts |= {i.index + 1, jumps[i.index]} & set(range(len(code)))
    cuts = sorted(starts)
    number = {start: n for n, start in enumerate(cuts)}
    made = []
    for n, start in enumerate(cuts):
        end = cuts[n + 1] if n + 1 < len(cuts) else len(code)
        last = code[end - 1]
        if end in ends:
            follow = {number[function.blocks[s].start] for s in ends[end].successors}
            exits = ends[end].exits
            if last.base == "BRA" and ("." in last.opcode or len(last.operands) > 1) and end < len(code):
                follow.add(n + 1)
        else:
            follow, exits = {n + 1}, False
        if last.index in jumps and jumps[last.index] in number:
            follow.add(number[jumps[last.index]])
        made.append(Block(n, start, end, tuple(sorted(follow)), exits))
    return tuple(made)

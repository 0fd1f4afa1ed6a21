"""How often a scoreboard may be raised before somebody waits for it.

A scoreboard counts. Warps of an H100 raised one by 1 to 160 operations of one kind, then waited
(results/scoreboard-increments.json): a kind of which nothing was ever missing may raise it any number of
times, as its queue holds up the issue before the counter is full. That is known of a kind alone, an opcode's
results or its operands: two kinds have two queues. For them, and for kinds that were not asked, it may be
raised 63 times, or as often as the compiler does.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

from numba import njit

_MEASURED = Path(__file__).resolve().parents[1] / "results" / "scoreboard-increments.json"
#: raises by several kinds, or by one that was not measured
MOST_RAISED = 63
#: `State.raiser`: nobody; several or not measured. Kinds are numbered from 1
NOBODY, SEVERAL = 0, -1


@lru_cache(maxsize=1)
def free() -> dict[tuple[str, bool], int]:
    """(opcode, whether by its operands' scoreboard) -> a kind's number, of those that never lost a raise."""
    asked: dict[tuple[str, bool], list[tuple[bool, bool]]] = {}
    for row in json.loads(_MEASURED.read_text())["rows"]:
        if row["part"] != "raises" or "+" in row["kind"]:
            continue
        words = row["kind"].split()
        opcode, *mods = words[0].split(".")
        clean = not any(row["bad"]) and max(row["count"]) > 2 * MOST_RAISED
        asked.setdefault((opcode, words[-1] == "read"), []).append((not mods, clean))
    # every variant that was asked is clean, and the plain opcode is among them
    good = sorted(k for k, found in asked.items() if any(p for p, _ in found) and all(c for _, c in found))
    return {kind: n for n, kind in enumerate(good, 1)}


@njit(cache=True, no_cfunc_wrapper=True)
def raiser_of(known, count, kind):
    """Who alone has raised a scoreboard, after one more raise by `kind`."""
    if kind == NOBODY or (count > 0 and known != kind):
        return SEVERAL
    return kind


@njit(cache=True, no_cfunc_wrapper=True)
def either(a, b):
    """Who alone has raised a scoreboard on one path or another."""
    if b == NOBODY:
        return a
    return b if a == NOBODY else a if a == b else SEVERAL

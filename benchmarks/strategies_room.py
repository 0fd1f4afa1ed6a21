"""How much there is to do for CuAsmRL's moves (memory instructions, up or down by one), beside the full set.

    python benchmarks/strategies_room.py            # strategies-room.json; no GPU, half a minute

For each kernel of the comparison (`strategies.py`): the actions that are legal in the baseline, of both sets;
and what a player finds who draws from the small set alike, in episodes as the preset plays them: distinct
schedules after so many moves, and the longest stretch of moves without a new one. A search of the preset ends
early after `Ppo.patience` turns without a new schedule (a move is one or two): if chance alone is never long
without one, what ended there was not short of schedules, but the agent had come to play the same ones.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from common import write
from strategies import KERNELS

Row = dict[str, Any]
#: moves of the player that draws alike: as many as the longest searches of the preset made
MOVES = 10_000
#: a pair of actions (up, down) a row
UP_AND_DOWN = 2


def wander(space: Any, moves: int, horizon: int, rng: np.random.Generator) -> tuple[int, int]:
    """(distinct schedules, longest stretch of moves without a new one) of a player that draws its actions
    alike among those that are legal, stop included, for episodes of at most `horizon` moves."""
    seen: set[str] = {space.candidate(space.start()).digest}
    state, left, idle, longest = space.start(), horizon, 0, 0
    for _ in range(moves):
        able = np.flatnonzero(space.legal(state).reshape(-1))
        drawn = int(rng.integers(len(able) + 1))
        left -= 1
        if drawn == len(able):
            left, idle = 0, idle + 1
        else:
            found = space.act(state, *divmod(int(able[drawn]), UP_AND_DOWN))
            state = state if found is None else space.apply(state, found[0])
            digest = space.candidate(state).digest
            idle = idle + 1 if digest in seen else 0
            seen.add(digest)
        if not left:
            state, left = space.start(), horizon
        longest = max(longest, idle)
    return len(seen), longest


def room(kernel: str, moves: int = MOVES, seed: int = 0) -> Row:
    """One kernel's row: instructions, legal actions of both sets in the baseline, and `wander`."""
    from sassafras.jobs.opening import DEFAULT_ARCH
    from sassafras.schedule import ScheduleSpace
    from sassafras.search.ppo import CUASMRL
    from sassafras.targets import load

    name, _, case = kernel.partition("/")
    workload = load(f"suite:{name}")
    baseline = workload.build(workload.case(case or None), DEFAULT_ARCH)
    both = {which: ScheduleSpace(baseline, moves=which) for which in ("memory", "all")}
    legal = {which: space.legal(space.start()) for which, space in both.items()}
    distinct, longest = wander(both["memory"], moves, CUASMRL.horizon, np.random.default_rng(seed))
    return {
        "kernel": kernel, "instructions": len(legal["all"]),
        "memory_actions": int(legal["memory"].sum()), "all_actions": int(legal["all"].sum()),
        "moves": moves, "distinct": distinct, "longest_without_new": longest,
    }  # fmt: skip


def main() -> None:
    """Command line."""
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--kernels", default=",".join(KERNELS))
    parse.add_argument("--out", type=Path)
    given = parse.parse_args()
    rows = []
    for kernel in given.kernels.split(","):
        rows.append(room(kernel))
        print(rows[-1], flush=True)
    share = [r["memory_actions"] / r["all_actions"] for r in rows]
    summary = {
        "least_share": min(share), "most_share": max(share),
        "longest_without_new": max(r["longest_without_new"] for r in rows),
        "least_distinct": min(r["distinct"] for r in rows),
    }  # fmt: skip
    print(write("strategies-room", sorted(rows, key=lambda r: r["kernel"]), summary, {}, out=given.out))


if __name__ == "__main__":
    main()
